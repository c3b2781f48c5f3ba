"""Which segments leave the fast disk, and when. Promise: sealed segments beyond what a topic keeps go to the cold
directory, are packed, or both; what they hold can be read throughout; a cold disk that is missing, full, read-only or
silent is reported and tried again, and nothing else waits for it.

A segment moves only after a snapshot that knows what it holds, so that a start never has to look into it. All work on
files is done by one thread of its own, at a byte rate that falls with the pressure; every change of state happens in
the shard's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any, TypeVar

from topicd.clock import SystemClock
from topicd.disk.cold import ColdDir, ColdMissing, recorded, told
from topicd.errors import FormatError, StorageCorrupt, Throttled
from topicd.ipc.pressure import Board
from topicd.shards.delivery.damage import DamageLog
from topicd.shards.delivery.place import Place
from topicd.shards.delivery.reading.elsewhere import FramesElsewhere
from topicd.shards.delivery.reading.segments import Segments
from topicd.shards.delivery.slices import in_slices
from topicd.shards.delivery.storing.backlog import Backlog
from topicd.shards.delivery.storing.tier_plan import kept, misplaced
from topicd.shards.delivery.topic.catalog import Catalog
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.process.threads import PatientThreads
from topicd.shards.storage.segment.info import Lies, SegmentInfo
from topicd.shards.storage.segment.names import topic_id_of
from topicd.shards.storage.segment.relocate import (
    Copied,
    Move,
    Packing,
    clear_old,
    copy_frames,
    drop_cold_topic,
    finish_drop,
    strays,
)
from topicd.shards.storage.segment.words import Words
from topicd.shards.storage.topic_dir import deleted_in_cold, forget_cold

log = logging.getLogger(__name__)

_PER_ROUND = 4_096  # moves that one snapshot allows
_WORDS_MAX = 256  # topics whose dictionary is kept
_RETRY_S = 5.0
_LOOK_S = 60.0  # between two looks at the cold directory, and for deleted topics
_SLOWEST = 16  # at full pressure the rate is this part
_UNMOVABLE_MAX = 10_000
_SWEPT_AT_ONCE = 64  # topics
_HELD_S = 0.1
_SETTLE_S = 10.0

T = TypeVar("T")


class _Stopped(OSError):
    """The shard ends: what is not finished is done again after the next start."""


class Tiering:
    def __init__(
        self,
        place: Place,
        loop: asyncio.AbstractEventLoop,
        catalog: Catalog,
        segments: Segments,
        elsewhere: FramesElsewhere,
        damage: DamageLog,
        board: Board,
        backlog: Backlog,
    ) -> None:
        self._place = place
        self._loop = loop
        self._catalog = catalog
        self._segments = segments
        self._elsewhere = elsewhere
        self._damage = damage
        self._board = board
        self._backlog = backlog
        self._removing = False  # files, now
        self._clock = SystemClock()
        self._threads = PatientThreads(1, "tiering", 16)
        self._stop = Event()
        self.cold: ColdDir | None = None
        self._planned: deque[tuple[Topic, SegmentInfo, Lies]] = deque()  # allowed by the snapshot under way
        self._ready: deque[tuple[Topic, SegmentInfo, Lies]] = deque()
        self._dropping: deque[tuple[Topic, list[int]]] = deque()  # segments whose data there is to be removed
        self._stranded: deque[tuple[Topic, SegmentInfo]] = deque()
        self._uncleared: deque[tuple[Topic, SegmentInfo, Lies]] = deque()  # moved; their old files are still there
        self._moving: tuple[int, int] | None = None
        self._running = False
        self.eager = False  # a snapshot is wanted now
        self._hurried: dict[int, int] = {}  # topic: up to this seq somebody waits for it
        self._unmovable: set[tuple[int, int]] = set()  # damaged ones: said once, left alone
        self._words: dict[int, Words] = {}
        self._swept: set[int] = set()  # topics whose strays were looked for
        self._unswept: deque[int] | None = None  # of this start, topics that have something there; None: not listed yet
        self._task: asyncio.Future[None] | None = None
        self._retry_at = 0.0
        self._look_at = 0.0
        self._began: float | None = None  # the step under way
        self.problem = ""  # why moves fail
        self.moved = 0
        self.moved_bytes = 0
        self.failures = 0
        self._cold_segments = 0
        self.far = (0, 0, 0)  # segments that are packed or cold, their bytes, those of their files

    def open(self) -> None:
        try:
            self.cold = recorded(self._place.fs, self._place.data)
        except (OSError, FormatError) as exc:
            self._fail(exc)

    def close(self) -> None:
        """The thread is not waited for: it may be at a disk that does not answer."""
        self._stop.set()
        if self._task is not None:
            self._task.cancel()

    # ---- what is to lie where ----

    def wanted(self, topic: Topic) -> list[tuple[SegmentInfo, Lies]]:
        """Segments that do not lie where they should, oldest first."""
        if not topic.policy.tiered:
            return []
        settings = self._place.settings
        found = misplaced(topic, kept(settings, topic), away=self.cold is not None and bool(settings.cold_dir))
        return [(info, target) for info, target in found if (topic.id, info.first_seq) not in self._unmovable][::-1]

    def is_moving(self, topic: Topic, info: SegmentInfo) -> bool:
        return self._moving == (topic.id, info.first_seq)

    def unmovable(self, topic: Topic) -> int:
        """So many of its segments are damaged and stay where they are."""
        return sum(topic_id == topic.id for topic_id, _ in self._unmovable)

    @property
    def waiting(self) -> int:
        return len(self._ready) + len(self._planned) + (self._moving is not None)

    # ---- around a snapshot ----

    def plan(self) -> Iterator[None]:
        """What the snapshot that is about to be taken allows to move. In slices."""
        self._planned.clear()
        self.eager = False
        far, cold = [0, 0, 0], 0

        def look(topic: Topic) -> None:
            nonlocal cold
            for info in topic.contents.segments:
                if info.lies is not Lies.HERE:
                    far[0] += 1
                    far[1] += info.data_bytes
                    far[2] += info.file_bytes
                    cold += info.lies.cold
            if len(self._planned) < _PER_ROUND and topic.live and len(topic.contents.segments):
                self._planned.extend((topic, info, target) for info, target in self.wanted(topic))

        yield from in_slices(list(self._catalog.by_name.values()), look)
        self.far, self._cold_segments = (far[0], far[1], far[2]), cold

    def run(self) -> None:
        """The snapshot is durable."""
        # What comes back first: it makes room where there may be none.
        self._ready = deque(sorted(self._planned, key=lambda planned: planned[2] is not Lies.HERE))
        self._planned.clear()
        self._wake()

    def hurry(self, topic: Topic) -> None:
        """Somebody waits for what the topic holds now: it moves as soon as snapshots allow it."""
        self._hurried[topic.id] = topic.seqs.head
        self.eager, self._retry_at = True, 0.0

    def finish_drop(self, topic: Topic, first_seqs: list[int]) -> None:
        """Segments that are dropped here already. Should this be forgotten, a start finds them again."""
        self._dropping.append((topic, first_seqs))
        self._wake()

    def bring_back(self, topic: Topic, infos: list[SegmentInfo]) -> None:
        """Frames without an index: a start makes one when they are here."""
        self._stranded.extend((topic, info) for info in infos)

    def recall(self, topic: Topic, info: SegmentInfo) -> None:
        """Somebody needs its frames here. That takes no snapshot."""
        if all(one is not info for _, one, _ in self._ready):
            self._ready.appendleft((topic, info, Lies.HERE))
            self._wake()

    def tick(self) -> None:
        """Once a second."""
        self._running = True
        self._follow_hurried()
        due = self._clock.monotonic() >= self._look_at or bool(self.problem)
        if self.cold is not None and due:
            self._wake(look=True)
        elif self._ready or self._dropping or self._stranded or self._uncleared or self._unswept:
            self._wake()

    def _follow_hurried(self) -> None:
        """What was sealed behind the snapshot that was taken for it needs another one."""
        for topic_id, through in list(self._hurried.items()):
            topic = self._catalog.by_id.get(topic_id)
            left = self.wanted(topic) if topic is not None and topic.live else []
            if not left or left[0][0].first_seq > through:
                del self._hurried[topic_id]
            elif not self.waiting:
                self.eager = True

    # ---- work ----

    def _wake(self, *, look: bool = False) -> None:
        if not self._running or self._task is not None or self._stop.is_set() or self._backlog.held:
            return
        if self._clock.monotonic() >= self._retry_at:
            self._task = asyncio.ensure_future(self._work(look), loop=self._loop)

    async def _work(self, look: bool) -> None:
        try:
            if look:
                await self._look_after_cold()
            await self._clear()
            while self._dropping and not self._backlog.held:
                topic, first_seqs = self._dropping[0]
                if topic.live and self.cold is not None:
                    directory = self._place.topic_dir(topic.id)
                    await self._remove(finish_drop, self._place.fs, directory, first_seqs, self.cold)
                self._dropping.popleft()
            while self._stranded and not self._backlog.held:
                await self._move(*self._stranded[0], Lies.HERE)
                self._stranded.popleft()
            while self._ready and not self._backlog.held:
                topic, info, target = one = self._ready[0]
                if topic.live and info.lies is not target and info in topic.contents.segments:
                    await self._move(topic, info, target)
                if self._ready and self._ready[0] is one:
                    self._ready.popleft()
            await self._sweep_some()
            if self.problem:
                log.info("segments move again", extra={"problem": self.problem})
            self.problem = ""
        except _Stopped:
            pass
        except (OSError, FormatError) as exc:
            self._fail(exc)
        except Exception as exc:
            log.exception("moving segments failed")
            self._fail(OSError(str(exc) or repr(exc)))
        finally:
            self._task = None
            self._moving = None

    async def _move(self, topic: Topic, info: SegmentInfo, target: Lies) -> None:
        fs, directory, cold = self._place.fs, self._place.topic_dir(topic.id), self.cold
        if target.cold and cold is None:
            return
        self._moving = (topic.id, info.first_seq)
        packing = Packing(self._place.settings.compress_level, self._words_of(topic)) if target.packed else None
        move = Move(directory, info, cold if target.cold else None, packing)
        try:
            if cold is not None and topic.id not in self._swept:
                await self._in_thread(self._sweep, directory, cold)
                self._swept.add(topic.id)
            copied: Copied = await self._in_thread(copy_frames, fs, move, self._pace)
        except StorageCorrupt as exc:
            # Readers meet it where they read; here it is said once.
            self._give_up(topic, info)
            self._damage.met(topic.name, exc)
            return
        except FileNotFoundError as exc:
            if topic.live:
                self._note_missing(topic, info, exc)
            elif cold is not None:
                await self._in_thread(drop_cold_topic, fs, directory, cold)
            return
        while self._backlog.held:
            await asyncio.sleep(_HELD_S)  # a backup may have listed the file that goes now
        if topic.live:
            info.lies, info.file_bytes = copied.lies, copied.file_bytes
            self._segments.drop(topic, info.first_seq)
            self.moved += 1
            self.moved_bytes += info.data_bytes
            self._uncleared.append((topic, info, copied.lies))
            await self._clear()
        self._moving = None

    async def _clear(self) -> None:
        """What the disk refused to remove is removed later: it would lie there until the next start."""
        while self._uncleared and not self._backlog.held:
            topic, info, where = self._uncleared[0]
            if topic.live and info.lies is where and info in topic.contents.segments:
                directory = self._place.topic_dir(topic.id)
                await self._remove(clear_old, self._place.fs, directory, info.first_seq, where, self.cold)
            self._uncleared.popleft()

    def _note_missing(self, topic: Topic, info: SegmentInfo, error: FileNotFoundError) -> None:
        """The file that was to be copied is not there. (If it is the cold directory that has gone, it is no damage.)"""
        if self.cold is not None and str(error.filename).startswith(f"{self.cold.root}/") and not info.lies.cold:
            raise error
        self._give_up(topic, info)
        message = f"{error.filename}: is missing (seqs {info.first_seq} to {info.last_seq})"
        seqs = {"first_seq": info.first_seq, "last_seq": info.last_seq}
        self._damage.met(topic.name, StorageCorrupt(message, segment=str(error.filename), **seqs))

    def _give_up(self, topic: Topic, info: SegmentInfo) -> None:
        if len(self._unmovable) < _UNMOVABLE_MAX:
            self._unmovable.add((topic.id, info.first_seq))

    def _sweep(self, directory: Path, cold: ColdDir) -> None:
        cold.check(self._place.fs)
        for path in strays(self._place.fs, directory, cold):
            self._place.fs.unlink(path, missing_ok=True)

    async def _list_unswept(self) -> None:
        """Once: a move that a crash has cut off may have left a copy of a topic that moves nothing any more."""
        fs, cold = self._place.fs, self.cold
        if self._unswept is not None or cold is None:
            return

        def names() -> list[str]:
            cold.check(fs)
            return fs.listdir(cold.topics)

        with suppress(OSError):  # nothing waits for it: the next round tries again
            found = [topic_id_of(cold.topics / name) for name in await self._in_thread(names)]
            self._unswept = deque(topic_id for topic_id in found if topic_id is not None)

    async def _sweep_some(self) -> None:
        """A few topics a second, behind all that is to move."""
        for _ in range(_SWEPT_AT_ONCE):
            if not self._unswept or self._backlog.held or self.cold is None:
                return
            topic = self._catalog.by_id.get(self._unswept[0])
            if topic is not None and topic.id not in self._swept:
                await self._in_thread(self._sweep, self._place.topic_dir(topic.id), self.cold)
                self._swept.add(topic.id)
            self._unswept.popleft()

    async def _look_after_cold(self) -> None:
        """Is it there? Who has moved nothing and read nothing for long learns it, too."""
        self._look_at = self._clock.monotonic() + _LOOK_S
        if self.cold is not None and (self._place.settings.cold_dir or self._cold_segments):
            await self._in_thread(self.cold.check, self._place.fs)
            self._elsewhere.found_again()
        await self._forget_deleted()
        await self._list_unswept()

    async def _forget_deleted(self) -> None:
        """Topics that were deleted while some of their data was in the cold directory."""
        fs, topics, cold, place = self._place.fs, self._place.data.topics, self.cold, self._place
        if cold is None:
            return
        for topic_id in await self._in_thread(deleted_in_cold, fs, topics):
            if topic_id % place.delivery_shards == place.index:
                await self._in_thread(drop_cold_topic, fs, place.topic_dir(topic_id), cold)
                await self._in_thread(forget_cold, fs, topics, topic_id)

    async def _remove(self, work: Callable[..., None], *args: Any) -> None:
        self._removing = True
        try:
            await self._in_thread(work, *args)
        finally:
            self._removing = False

    async def settle(self) -> None:
        """Nothing is removed while a backup holds everything; what is being removed is gone before it looks."""
        deadline = self._clock.monotonic() + _SETTLE_S
        while self._removing:
            if self._clock.monotonic() > deadline:
                raise Throttled("the cold directory does not answer", limit="backups", retry_after_ms=1_000)
            await asyncio.sleep(0.005)

    async def _in_thread(self, work: Callable[..., T], *args: Any) -> T:
        self._began = self._clock.monotonic()
        try:
            return await asyncio.wrap_future(self._threads.submit(work, *args), loop=self._loop)
        finally:
            self._began = None

    def _pace(self, size: int) -> None:
        """In the thread: not faster than the rate, and slower the more pressure there is."""
        rate = self._place.settings.cold_rate_bytes
        if rate:
            share = max(1 - self._board.value, 1 / _SLOWEST)
            self._stop.wait(size / (rate * share))
        if self._stop.is_set():
            raise _Stopped("the shard ends")

    def _words_of(self, topic: Topic) -> Words:
        if topic.id not in self._words and len(self._words) >= _WORDS_MAX:
            self._words.pop(next(iter(self._words)))
        return self._words.setdefault(topic.id, Words())

    def _fail(self, error: OSError | FormatError) -> None:
        self.failures += 1
        self._retry_at = self._clock.monotonic() + _RETRY_S
        text = told(error)
        if text != self.problem:
            missing = isinstance(error, ColdMissing)
            log.error("cold directory is missing" if missing else "segments do not move", extra={"error": text})
        self.problem = text

    # ---- figures ----

    @property
    def stalled_s(self) -> float:
        """For so long the thread or a reader has waited for one answer of the disk."""
        began, now = self._began, self._clock.monotonic()
        waited = now - began if began is not None else 0.0
        return max(waited if waited >= 2 * _RETRY_S else 0.0, self._elsewhere.stalled_s)

    def trouble(self) -> str:
        if stalled := self.stalled_s:
            return f"the cold directory has not answered for {stalled:.0f} s"
        return self.problem or self._elsewhere.problem

    def page(self) -> dict[str, Any]:
        return {
            "far_segments": self.far[0],
            "far_bytes": self.far[1],
            "far_file_bytes": self.far[2],
            "tier_waiting": self.waiting,
            "tier_moved": self.moved,
            "tier_moved_bytes": self.moved_bytes,
            "tier_failures": self.failures,
            "cold_loads": self._elsewhere.loads,
            "cold_load_failures": self._elsewhere.failures,
            "cold_cached_bytes": self._elsewhere.held_bytes,
            "cold_stalled_s": round(self.stalled_s, 1),
            "cold_failing": int(bool(self.trouble())),
            "cold_trouble": self.trouble(),
        }
