"""The way from a delivery shard to one WAL shard: a ring, what is under way in it, and what waits for room.

Promise: every entry is told exactly once that it was stored as its class demands (committed) or that it was not
(failed); entries of one class are told in ring order. What a reader may have seen is sent again after a failure,
so that visible never means lost.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Sequence

from topicd.errors import StorageFailed, TopicdError
from topicd.frames import FrameType, control_frame
from topicd.ipc.doorbell import Doorbell
from topicd.ipc.ring import RingProducer
from topicd.shards.delivery.writing.durability import Need, storage_failed
from topicd.shards.delivery.writing.entry import ControlEntry, Entry, Part
from topicd.shards.process.histogram import Histogram

log = logging.getLogger(__name__)

_WAITING_FILES_MAX = 2
_FULL = 0.9  # of the ring
ENTRIES_MAX = 10_000  # under way to one WAL shard before clients may change nothing more but append


class Again(Entry):
    """What readers may have seen and the disk did not keep, on its way once more."""

    __slots__ = ()


class _Waiting:
    """An entry for which the ring has no room, or room for some of its parts only."""

    __slots__ = ("begun_at", "entry", "left", "parts")

    def __init__(self, parts: list[Part], entry: Entry) -> None:
        self.parts = parts
        self.entry = entry
        self.left = deque(parts)
        self.begun_at: int | None = None  # where the first of its parts was placed


class Outlet:
    def __init__(self, index: int, ring: RingProducer, bell: Doorbell) -> None:
        self.index = index
        self.send_answers: Callable[[], None] = lambda: None  # as soon as entries were told to answer
        self._ring = ring
        self._bell = bell
        self._written_queue: deque[Entry] = deque()
        self._synced_queue: deque[Entry] = deque()
        self._backlog: deque[_Waiting] = deque()
        self._visible: deque[tuple[int, list[Part]]] = deque()  # committed but not synced yet
        self._epoch = 0
        self._placed = ring.head
        self._unflushed = False
        self._moved = 0
        self._moved_at = 0.0
        self._timed_end = 0  # of the entry whose way through the log is being timed; 0: the next one is
        self._timed_at = 0.0
        self.latency = Histogram()  # of one entry at a time: from the ring to the answer
        self.backlog_bytes = 0
        self.in_flight_bytes = 0
        self.pins: set[int] = set()  # where frames begin whose records are in no segment yet
        self._frozen = False

    def open(self) -> None:
        """Answer a failure that a predecessor left unanswered: nothing of it is under way any more."""
        self._epoch = self._ring.failed_epoch
        if self._ring.resync[0] != self._epoch:
            self._ring.answer_failure(self._epoch)
        self._placed = self._ring.head

    @property
    def read_only_errno(self) -> int:
        """Why nothing can be stored now; 0: it can."""
        return self._ring.read_only_errno

    def refusal(self) -> StorageFailed:
        return storage_failed(self.read_only_errno)

    @property
    def idle(self) -> bool:
        return not (self._written_queue or self._synced_queue or self._backlog)

    @property
    def wal_has_left(self) -> bool:
        """Nobody takes what is placed: the WAL shard has left for good, or been killed with nobody to replace it."""
        pid = self._ring.consumer_pid
        return pid == 0 or not os.path.exists(f"/proc/{pid}")

    @property
    def everything_written(self) -> bool:
        """Has the WAL shard taken all that was ever placed, and synced what had to be? (A predecessor's too.)"""
        ring = self._ring
        synced = ring.synced_pos >= min(max(ring.sync_wanted_pos, ring.sync_wished_pos), ring.head)
        return ring.written_pos >= ring.head and (synced or bool(ring.read_only_errno))

    @property
    def everything_synced(self) -> bool:
        """Is all that was ever placed durable?"""
        return self._ring.synced_pos >= self._ring.head

    def when_synced(
        self, done: Callable[[], None], failed: Callable[[TopicdError], None] | None = None, *, patient: bool = False
    ) -> bool:
        """Call done once everything placed so far is durable; `failed`, or else done, if that failed. False: it is
        already, or cannot be now. patient: no client waits for it, so nothing is held up for it."""
        if self._ring.synced_pos >= self._placed or self.read_only_errno:
            return False
        self.submit([], 0, ControlEntry(Need.SYNCED, done, failed or (lambda error: done()), patient=patient))
        self.flush()
        return True

    @property
    def placed_pos(self) -> int:
        return self._placed

    @property
    def settled_pos(self) -> int:
        """Every entry that ends at or below this ring position was committed, and so was what it speaks of."""
        starts = [queue[0].ring_end - queue[0].size for queue in (self._written_queue, self._synced_queue) if queue]
        if self._backlog and (begun_at := self._backlog[0].begun_at) is not None:
            starts.append(begun_at)
        starts += self.pins
        return min(starts, default=self._placed)

    def submit(self, parts: Sequence[Part], size: int, entry: Entry) -> None:
        """Place whole frames, now or when there is room; the entry is told what became of them."""
        entry.size = size
        self.in_flight_bytes += size
        placeable = list(parts)
        if not self._backlog and not self._frozen and self._try_place(placeable, entry):
            return
        self._backlog.append(_Waiting(placeable, entry))
        self.backlog_bytes += size
        if len(self._backlog) == 1:
            self._push_backlog()

    def freeze(self) -> None:
        """Nothing more is placed, as if there were no room: whatever comes waits, and nobody is told that it was
        stored."""
        self._frozen = True

    def thaw(self) -> None:
        if self._frozen:
            self._frozen = False
            self._push_backlog()
            self.flush()

    def flush(self) -> None:
        """Wake the WAL shard for what was submitted since the last flush."""
        if self._unflushed:
            self._unflushed = False
            self._bell.ring()

    @property
    def under_way(self) -> int:
        return len(self._written_queue) + len(self._synced_queue) + len(self._backlog)

    @property
    def crowded(self) -> bool:
        return self.under_way >= ENTRIES_MAX

    @property
    def took_us(self) -> tuple[int, int, int]:
        """(waiting for company, write, sync) of what the WAL shard stored last."""
        return self._ring.took_us

    @property
    def occupied(self) -> float:
        """The share of the ring that the WAL shard has not written yet."""
        ring = self._ring
        return (ring.head - ring.written_pos) / ring.capacity

    @property
    def full(self) -> bool:
        """Is there no room in the ring, or next to none?"""
        return bool(self._backlog) or self.occupied > _FULL

    def stalled_s(self, now: float) -> float:
        """For how long nothing of what is under way has come any further. To be asked regularly."""
        ring = self._ring
        moved = ring.written_pos + ring.synced_pos
        if moved != self._moved or self.idle:
            self._moved, self._moved_at = moved, now
        return now - self._moved_at

    @property
    def oldest_is_stored(self) -> bool:
        """Do the counters say so of what is under way?"""
        ring, written, synced = self._ring, self._written_queue, self._synced_queue
        return bool(
            (written and ring.written_pos >= written[0].ring_end) or (synced and ring.synced_pos >= synced[0].ring_end)
        )

    def collect(self) -> bool:
        """Tell entries what the counters say; True if anything was told."""
        # written before epoch: a failure moves written_pos after it has raised the epoch.
        written, synced, epoch = self._ring.written_pos, self._ring.synced_pos, self._ring.failed_epoch
        told = False
        if epoch != self._epoch:
            self._recover(epoch)
            told = True
        else:
            # Written ones first: one topic's write never waits for a sync that a later one of it needs.
            told = self._release(written, synced)
        self._forget_synced(synced)
        if self._backlog:
            self._push_backlog()
            self.flush()
        return told

    @property
    def wal_waits(self) -> bool:
        """Does the WAL shard keep more finished files than it should, because some shard has not absorbed them?"""
        return self._ring.waiting_files > _WAITING_FILES_MAX

    def set_absorbed(self, position: int | None) -> None:
        self._ring.set_absorbed(position)

    # ---- placing ----

    def _try_place(self, parts: list[Part], entry: Entry) -> bool:
        # Asked for before it is placed: the WAL shard may have written it before the next line runs.
        if entry.need is Need.WRITTEN:
            self._ring.want_write(self._placed + entry.size)
        end = self._ring.try_write(parts, entry.size)
        if end is None:
            return False
        self._after_placing(entry, end, parts)
        return True

    def _after_placing(self, entry: Entry, end: int, parts: list[Part]) -> None:
        entry.ring_end = end
        self._placed = end
        self._unflushed = True
        if not self._timed_end and entry.need is not Need.PLACED:
            self._timed_end, self._timed_at = end, time.monotonic()
        if entry.need is Need.SYNCED:
            self._synced_queue.append(entry)
            if entry.patient:
                self._ring.wish_sync(end)
            else:
                self._ring.want_sync(end)
            return
        self._visible.append((end, parts))
        if entry.need is Need.WRITTEN:
            self._written_queue.append(entry)
        else:
            self.in_flight_bytes -= entry.size
            entry.answer()
            entry.committed()

    def _push_backlog(self) -> None:
        while self._backlog and not self._frozen:
            waiting = self._backlog[0]
            if not self._push(waiting):
                # Ask to be told of the next write, then look once more: room made before that would not ring.
                self._ring.want_write(self._placed)
                self._unflushed = True
                if not self._push(waiting):
                    return
            self._backlog.popleft()
            self.backlog_bytes -= waiting.entry.size

    def _push(self, waiting: _Waiting) -> bool:
        """Place it whole, or go on placing its parts; False: wait for room.

        More than the ring holds goes part by part, each of them whole frames that fit. Readers drop a batch whose
        last frame is missing, so a half-placed batch is no batch."""
        entry = waiting.entry
        if entry.size <= self._ring.capacity:
            return self._try_place(waiting.parts, entry)
        if entry.need is Need.WRITTEN:
            self._ring.want_write(self._placed + sum(len(part) for part in waiting.left))
        while waiting.left:
            end = self._ring.try_write([waiting.left[0]], len(waiting.left[0]))
            if end is None:
                return False
            if waiting.begun_at is None:
                waiting.begun_at = self._placed
            self._placed = end
            self._unflushed = True
            waiting.left.popleft()
        self._after_placing(entry, self._placed, waiting.parts)
        return True

    # ---- telling ----

    def _release(self, written: int, synced: int) -> bool:
        told: list[Entry] = []
        for queue, position in ((self._written_queue, written), (self._synced_queue, synced)):
            while queue and queue[0].ring_end <= position:
                entry = queue.popleft()
                entry.answer()
                told.append(entry)
                if entry.ring_end == self._timed_end:
                    self._timed_end = 0
                    self.latency.note(time.monotonic() - self._timed_at)
        if not told:
            return False
        if not any(entry.awaited for entry in told):
            self.send_answers()
        for entry in told:
            self.in_flight_bytes -= entry.size
            entry.committed()
        return True

    def _forget_synced(self, synced: int) -> None:
        visible = self._visible
        while visible and visible[0][0] <= synced:
            visible.popleft()

    # ---- failure ----

    def _recover(self, epoch: int) -> None:
        """Fail what was not stored, answer the WAL shard, send again what readers may have seen."""
        self._timed_end = 0
        position, code = self._ring.failure
        self._release(position, min(position, self._ring.synced_pos))
        lost = [*self._synced_queue, *self._written_queue, *(w.entry for w in self._backlog)]
        unreleased = {id(entry) for entry in self._written_queue}
        seen = [(end, parts) for end, parts in self._visible if end > position]
        waiting = [waiting.parts for waiting in self._backlog if isinstance(waiting.entry, Again)]
        ends = {entry.ring_end for entry in self._written_queue if id(entry) in unreleased}
        self._synced_queue.clear()
        self._written_queue.clear()
        self._backlog.clear()
        self._visible.clear()
        self.backlog_bytes = self.in_flight_bytes = 0
        self._epoch = epoch
        self._ring.answer_failure(epoch)
        log.error("storage failed", extra={"wal": self.index, "errno": code, "entries": len(lost)})
        # Newest first: each topic's head goes back step by step to where the oldest failed batch began.
        error = storage_failed(code)
        for entry in sorted(lost, key=lambda e: e.ring_end or self._placed + 1, reverse=True):
            entry.failed(error)
        resync = control_frame(FrameType.RESYNC, 0, 0, 0, {"epoch": epoch})
        self.submit([resync], len(resync), Entry(Need.PLACED))
        for parts in [*(parts for end, parts in seen if end not in ends), *waiting]:
            self.submit(parts, sum(len(part) for part in parts), Again(Need.PLACED))
        self.flush()
