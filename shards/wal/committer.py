"""Group commit of one WAL shard. Promise: what written_pos covers is in the file, what synced_pos covers survives power
loss, and neither is stored before it is true. Bytes: docs/formats.md.

A failure (EIO, ENOSPC) makes everything above failed_pos void, and everything below is durable. The shard then drops
ring bytes until the producer answers with the position where valid bytes begin again.

A sync that somebody waits for happens in the turn. One that is only due, of class disk, runs beside the turns
(aside.py): it covers what was written when it began.

Under pressure (ipc/pressure.py) a group waits for company, up to the commit window: it grows until one slice of time
brings nothing, or a ring has little room left. Without pressure nothing waits.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from topicd.clock import Clock
from topicd.ipc.doorbell import Doorbell
from topicd.ipc.ring import RingConsumer
from topicd.ipc.slots import Slots
from topicd.ipc.walstate import pack_state
from topicd.shards.process.histogram import Histogram
from topicd.shards.storage.walfile import GROUP, WalFile
from topicd.shards.wal.log import WalLog

log = logging.getLogger(__name__)

_RETRY_LATCHED_S = 0.5
_SLICE_S = 0.0005  # of the commit window
_ROOM = 0.5  # of a ring: fuller than that, nothing waits for company


class Inlet:
    """One ring, how far it was written, and who waits at its other end."""

    def __init__(self, ring: RingConsumer, bell: Doorbell | None, written: int, synced: int) -> None:
        self.ring = ring
        self.bell = bell
        self.written = written
        self.synced = synced
        self.waiting_epoch = 0  # of the failure the producer has not answered yet; 0: none


class _Take(NamedTuple):
    inlet: Inlet
    start: int
    end: int


class Committer:
    def __init__(
        self,
        wal: WalLog,
        state: Slots,
        clock: Clock,
        inlets: list[Inlet],
        disk_sync_s: float,
        window_us: Callable[[], int] = lambda: 0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.log = wal
        self.state = state
        self._clock = clock
        self.inlets = inlets
        self.disk_sync_s = disk_sync_s
        self._window_us = window_us
        self._sleep = sleep
        self._waited_us = 0  # of the group under way
        self.group_limit = 0
        self.last_sync = clock.monotonic()
        self._beside: list[int] = []  # what the inlets had written when the sync beside the turns began
        self._latched_since: float | None = None
        self._finished: dict[int, tuple[int, ...]] = {}
        self._attested_lsn = 0
        self._written_lsn = 0  # of the newest group that the inlets count as written
        self.groups = 0
        self.bytes = 0
        self.syncs = 0
        self.failures = 0
        self.waited_s = 0.0  # for company, in all
        self.read_only_errno = 0
        self.sync_latency = Histogram()

    def open(self, group_limit: int) -> None:
        self.group_limit = group_limit
        self._written_lsn = self.log.lsn
        for inlet in self.inlets:
            self._take_over(inlet)
        self._publish_state()
        # A predecessor may have been killed between a counter and its bell, or with the bell half rung.
        self._ring_all()

    def _take_over(self, inlet: Inlet) -> None:
        """Where a predecessor left a ring. It may have died at any step of a failure."""
        ring = inlet.ring
        answered, position = ring.resync
        if ring.failed_epoch > answered:
            inlet.waiting_epoch = ring.failed_epoch
        elif answered and inlet.written < position:
            self._go_on_at(inlet, position)
        elif inlet.written < ring.written_pos:
            # It gave up bytes that were written but could not be synced, and died before it said so.
            inlet.waiting_epoch = ring.fail(inlet.written, errno.EIO)
            ring.set_written(ring.head)
        else:
            # The log was synced when it was opened.
            self._go_on_at(inlet, inlet.written)

    @staticmethod
    def _go_on_at(inlet: Inlet, position: int) -> None:
        inlet.written = inlet.synced = position
        inlet.ring.set_written(position)
        inlet.ring.set_synced(position)

    def turn(self) -> bool:
        """Commit what the rings hold; False when there was nothing to do."""
        if self.read_only_errno and not self._try_unlatch():
            return False
        self._wait_for_company()
        group = self._gather()
        if group and not self._write(group):
            return True
        return self._see_to_syncs() or bool(group)

    def pending(self) -> bool:
        """Is there something a turn would do now? Asked after announcing sleep."""
        if self.read_only_errno:
            return False
        return any(i.ring.head > i.written and not self._is_void(i) for i in self.inlets) or (
            self.log.has_ended or self._sync_awaited() or self._sync_due()
        )

    def next_deadline(self) -> float | None:
        """Seconds until a turn is due without anybody ringing."""
        if self.read_only_errno:
            return _RETRY_LATCHED_S
        if self.log.dirty and not self.log.syncs_beside:
            return max(0.0, self.last_sync + self.disk_sync_s - self._clock.monotonic())
        return None

    def finish(self) -> None:
        """Drain, sync and attest."""
        while self.turn():
            pass
        if self.read_only_errno or (self.log.dirty and not self._sync()):
            return
        if self.attest():
            self._sync()

    def attest(self) -> bool:
        """After the last sync write an empty group that says so: damage below is never taken for a torn tail then."""
        if self.read_only_errno or self.log.dirty or self.log.lsn == self._attested_lsn:
            return False
        file = self.log.first_lsn
        before = self.log.lsn
        try:
            self.log.append([], 0)
        except OSError as exc:
            self.log.forget_append(before)
            log.warning("sync not attested", extra={"error": str(exc)})
            return False
        if self.log.first_lsn != file:
            self._note_finished(file)
        self._attested_lsn = self.log.lsn
        self._publish_state()
        return True

    def recycle_absorbed(self) -> int:
        """Give back finished files that every delivery shard has in its segments; how many."""
        try:
            finished = self.log.finished_files()
        except OSError as exc:
            log.warning("files not recycled", extra={"error": str(exc)})
            return 0
        given = self._recycle(finished)
        for inlet in self.inlets:
            inlet.ring.set_waiting_files(len(finished) - given)
        return given

    def _recycle(self, finished: list[WalFile]) -> int:
        absorbed = [i.ring.absorbed_pos for i in self.inlets]
        if any(position is None for position in absorbed):
            return 0
        given = 0
        for file in finished:
            ends = self._ends_of(file)
            if any(have is not None and have < end for have, end in zip(absorbed, ends, strict=True)):
                break
            try:
                self.log.recycle(file)
            except OSError as exc:
                log.warning("file not recycled", extra={"file": str(file.path), "error": str(exc)})
                break
            self._finished.pop(file.first_lsn, None)
            given += 1
        return given

    # ---- one turn ----

    def _wait_for_company(self) -> None:
        window_us = self._window_us()
        self._waited_us = 0
        if not window_us:
            return
        began, size = self._clock.monotonic(), self._waiting_bytes()
        left = window_us / 1_000_000
        while size and left > 0 and not self._crowded():
            self._sleep(min(_SLICE_S, left))
            left -= _SLICE_S
            before, size = size, self._waiting_bytes()
            if size == before:
                break
        waited = self._clock.monotonic() - began
        self.waited_s += waited
        self._waited_us = round(waited * 1_000_000)

    def _waiting_bytes(self) -> int:
        return sum([i.ring.head - i.written for i in self.inlets if not i.waiting_epoch])

    def _crowded(self) -> bool:
        return any(i.ring.head - i.written > _ROOM * i.ring.capacity for i in self.inlets)

    def _gather(self) -> list[_Take]:
        group: list[_Take] = []
        room = self.group_limit
        for inlet in self.inlets:
            if self._is_void(inlet):
                continue
            head = inlet.ring.head
            size = head - inlet.written
            if size and (size <= room or not group):
                group.append(_Take(inlet, inlet.written, head))
                room -= size
        return group

    def _is_void(self, inlet: Inlet) -> bool:
        """Ring bytes are dropped until the producer has answered the failure."""
        if not inlet.waiting_epoch:
            return False
        answered, position = inlet.ring.resync
        if answered < inlet.waiting_epoch:
            return True
        inlet.waiting_epoch = 0
        self._go_on_at(inlet, position)
        return False

    def _write(self, group: list[_Take]) -> bool:
        length = sum(take.end - take.start for take in group)
        if self.log.lacks_successor or not self.log.fits(length):
            # Under load a file is full long before the next tick; its successor shall be an old one.
            self.recycle_absorbed()
            self.log.prepare_successor()
        parts = [view for take in group for view in take.inlet.ring.views(take.start, take.end)]
        before, file = self.log.lsn, self.log.first_lsn
        began = self._clock.monotonic()
        try:
            self.log.append(parts, length)
        except OSError as exc:
            if self.log.first_lsn != file and file not in self._finished:
                self._note_finished(file)
            self.write_failed(before, exc)
            return False
        finally:
            for part in parts:
                part.release()
        if self.log.first_lsn != file:
            self._note_finished(file)
            self._note_synced_by_rotation()
        self._written_lsn = self.log.lsn
        self.groups += 1
        self.bytes += length + GROUP.size
        for take in group:
            take.inlet.written = take.end
        # State before counters: a successor never goes back behind what a producer was told.
        self._publish_state()
        took_us = round((self._clock.monotonic() - began) * 1_000_000)
        for take in group:
            self._tell_written(take, took_us)
        return True

    def _tell_written(self, take: _Take, took_us: int) -> None:
        ring = take.inlet.ring
        ring.set_write_took(self._waited_us, took_us)
        ring.set_written(take.end)
        if take.inlet.bell is not None and ring.write_wanted_pos > take.start:
            take.inlet.bell.ring_and_yield()

    def _see_to_syncs(self) -> bool:
        """False: there is nothing to do."""
        ended = self.log.has_ended
        if ended and not self._end_beside():
            return True
        if self._sync_awaited():
            return self._sync()
        if self._sync_due():
            self._begin_beside()
            return True
        return ended

    def _sync_awaited(self) -> bool:
        return any(i.ring.sync_wanted_pos > i.synced and i.written > i.synced for i in self.inlets)

    def _sync_due(self) -> bool:
        if not self.log.dirty or self.log.syncs_beside:
            return False
        if any(i.ring.sync_wished_pos > i.synced and i.written > i.synced for i in self.inlets):
            return True
        return self._clock.monotonic() - self.last_sync >= self.disk_sync_s

    def _begin_beside(self) -> None:
        self._beside = [inlet.written for inlet in self.inlets]
        self.last_sync = self._clock.monotonic()
        try:
            self.log.begin_sync()
        except OSError as exc:
            self.sync_failed(exc)

    def _end_beside(self) -> bool:
        try:
            took_s = self.log.end_sync()
        except OSError as exc:
            self._fail(exc, "sync")
            return False
        self._note_sync(took_s)
        self._tell_synced(self._beside)
        return True

    def _sync(self) -> bool:
        started = self._clock.monotonic()
        try:
            self.log.sync()
        except OSError as exc:
            self._fail(exc, "sync")
            return False
        self.last_sync = self._clock.monotonic()
        self._note_sync(self.last_sync - started)
        self._tell_synced([inlet.written for inlet in self.inlets])
        return True

    def _note_sync(self, took_s: float) -> None:
        for inlet in self.inlets:
            inlet.ring.set_sync_took(round(took_s * 1_000_000))
        self.sync_latency.note(took_s)
        self.syncs += 1

    def _note_synced_by_rotation(self) -> None:
        # Rotation synced the finished file; what was written before this group is durable.
        self.syncs += 1
        self.last_sync = self._clock.monotonic()
        self._tell_synced([inlet.written for inlet in self.inlets])

    def _tell_synced(self, positions: list[int]) -> None:
        for inlet, position in zip(self.inlets, positions, strict=True):
            if position <= inlet.synced:
                continue
            before, inlet.synced = inlet.synced, position
            inlet.ring.set_synced(inlet.synced)
            waited_for = max(inlet.ring.sync_wanted_pos, inlet.ring.sync_wished_pos)
            if inlet.bell is not None and waited_for > before:
                inlet.bell.ring_and_yield()

    # ---- turns that were taken in C ----

    def is_calm(self) -> bool:
        """Nothing is going on that only turn() knows: no failure, no pressure."""
        return not self.read_only_errno and not self._window_us() and not any(i.waiting_epoch for i in self.inlets)

    def count(self, *, groups: int, size: int, syncs: int, last_sync: float) -> None:
        self.groups += groups
        self.bytes += size
        self.syncs += syncs
        self.last_sync = last_sync
        if groups:
            self._written_lsn = self.log.lsn

    def write_failed(self, before: int, exc: OSError) -> None:
        """A group could not be written; the log ended at `before`."""
        self.log.forget_append(before)
        self._fail(exc, "write")

    def sync_failed(self, exc: OSError) -> None:
        self.log.sync_failed()
        self._fail(exc, "sync")

    # ---- failure ----

    def _fail(self, exc: OSError, what: str) -> None:
        self.failures += 1
        code = exc.errno or 5
        log.error("storage failed", extra={"what": what, "errno": code, "error": str(exc)})
        self._secure_written()
        # The state first: a successor that finds it ahead of the rings tells the failure again.
        self._publish_state()
        for inlet in self.inlets:
            inlet.waiting_epoch = inlet.ring.fail(inlet.written, code)
            inlet.ring.set_written(inlet.ring.head)  # nothing more is read from there; free the space
        self._latch(code)
        self._try_unlatch()
        self._ring_all()

    def _secure_written(self) -> None:
        """What was written before the failure is made durable now, or is void with the rest. In between it would be
        in the log, and yet failed for those who wait for a sync: their seqs would be given out a second time."""
        if self.log.dirty:
            with suppress(OSError):
                self.log.sync()
        durable = self.log.lsn >= self._written_lsn
        for inlet in self.inlets:
            if durable:
                inlet.synced = inlet.written
                inlet.ring.set_synced(inlet.synced)
            else:
                inlet.written = inlet.synced
        self._written_lsn = self.log.lsn

    def _latch(self, code: int) -> None:
        self.read_only_errno = code
        self._latched_since = None
        for inlet in self.inlets:
            inlet.ring.set_read_only(code)

    def _try_unlatch(self) -> bool:
        """Prove that the disk takes writes again: an empty group, synced, in a place nobody relies on."""
        if self._latched_since is not None and self._clock.monotonic() - self._latched_since < _RETRY_LATCHED_S:
            return False
        before = self.log.lsn
        file = self.log.first_lsn
        try:
            self.log.append([], 0)
            self.log.sync()
        except OSError as exc:
            log.debug("storage still fails", extra={"error": str(exc)})
            self.log.forget_append(before)
            self._latched_since = self._clock.monotonic()
            return False
        if self.log.first_lsn != file:
            self._note_finished(file)
        log.info("storage works again", extra={"errno": self.read_only_errno})
        self._publish_state()
        self.read_only_errno = 0
        self._latched_since = None
        for inlet in self.inlets:
            inlet.ring.set_read_only(0)
        self._ring_all()
        return True

    def _ring_all(self) -> None:
        for inlet in self.inlets:
            if inlet.bell is not None:
                inlet.bell.ring_always()

    # ---- bookkeeping ----

    def _publish_state(self) -> None:
        wal = self.log
        written = [inlet.written for inlet in self.inlets]
        self.state.write(pack_state(wal.lsn, wal.first_lsn, wal.synced_lsn, written))

    def _note_finished(self, first_lsn: int) -> None:
        self._finished[first_lsn] = tuple(inlet.written for inlet in self.inlets)

    def _ends_of(self, file: WalFile) -> tuple[int, ...]:
        """Ring positions at the end of a finished file; a successor that did not see them takes the present ones."""
        if file.first_lsn not in self._finished:
            self._note_finished(file.first_lsn)
        return self._finished[file.first_lsn]
