"""compact: last-per-tag. Of records with the same tag the newest stays; those without a tag all stay. Promise: a record
goes only when a newer one with its tag is in a sealed, synced segment and belongs to no commit under way; it goes as a
delete does, through the log, and readers see no gap; the work takes a small share of the processor, and its memory does
not grow with the topic.

Segment by segment, oldest first: its tags are looked for in all segments before it. What is not sealed yet waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

from topicd.errors import StorageCorrupt, TopicdError
from topicd.ipc.pressure import Board
from topicd.shards.delivery.counters import Counters
from topicd.shards.delivery.place import Place
from topicd.shards.delivery.removing.deletion import Deletion
from topicd.shards.delivery.storing.backlog import Backlog
from topicd.shards.delivery.topic.catalog import Catalog
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.storage.ranges import Ranges
from topicd.shards.storage.segment.info import SegmentInfo
from topicd.shards.storage.segment.superseded import Alive, newest_in, superseded_in

log = logging.getLogger(__name__)

TAGS_AT_ONCE = 16_384  # of a segment: a few MiB
RANGES_AT_ONCE = 1_024  # of seqs in one entry of the log
_SHARE = 10  # a tenth of the processor
_LONGEST_PAUSE_S = 0.25

T = TypeVar("T")


class _Stopped(Exception):
    """The topic is gone, is compacted no more, or the disk refuses: another time."""


class Compaction:
    def __init__(
        self,
        place: Place,
        loop: asyncio.AbstractEventLoop,
        pool: Executor,
        catalog: Catalog,
        deletion: Deletion,
        backlog: Backlog,
        counters: Counters,
        board: Board,
    ) -> None:
        self._place = place
        self._loop = loop
        self._pool = pool
        self._catalog = catalog
        self._deletion = deletion
        self._backlog = backlog
        self._counters = counters
        self._board = board
        self._task: asyncio.Task[None] | None = None
        self._told: set[tuple[int, int]] = set()  # (topic, segment) that could not be read
        self._topics: dict[int, Topic] | None = None
        self.longest_pause_s = _LONGEST_PAUSE_S
        self.closed = False

    def tick(self) -> None:
        """Once a second: go on where something is to be done, unless the daemon has better things to do."""
        if self._task is None and not self.closed and not self._board.refusing:
            due = [topic for topic in self._known().values() if topic.live and next_segment(topic)]
            if due:
                self._task = self._loop.create_task(self._run(due))

    def note(self, topic: Topic) -> None:
        """It is new, or configured anew."""
        if topic.compacted is not None and self._topics is not None:
            self._topics[topic.id] = topic
        else:
            self.forget(topic)

    def forget(self, topic: Topic) -> None:
        if self._topics is not None:
            self._topics.pop(topic.id, None)

    def _known(self) -> dict[int, Topic]:
        """Topics that are compacted; all are looked at once, after recovery."""
        if self._topics is None:
            self._topics = {t.id: t for t in self._catalog.by_name.values() if t.compacted is not None}
        return self._topics

    def close(self) -> None:
        self.closed = True

    async def _run(self, due: list[Topic]) -> None:
        """A segment of each: nobody waits for the whole history of another."""
        try:
            for topic in due:
                try:
                    await self._compact(topic)
                except _Stopped:
                    continue
        except Exception:
            log.exception("compaction failed")
        finally:
            self._task = None

    async def _compact(self, topic: Topic) -> None:
        newer = next_segment(topic)
        if newer is None or topic.compacted is None:
            return
        start, more = 0, True
        while more:
            found = await self._look(topic, newer, newest_in, start, TAGS_AT_ONCE)
            if found is None:
                break
            await self._delete(topic, found.superseded)
            for older in _older(topic, newer):
                ranges = await self._look(topic, older, superseded_in, found.tags) if found.tags else None
                if ranges is not None:
                    await self._delete(topic, ranges)
            start, more = start + TAGS_AT_ONCE, found.more
        if topic.compacted is not None:
            topic.compacted.through = newer.last_seq
            self._counters.compacted_segments += 1
            self._backlog.metadata_changed = True

    async def _look(self, topic: Topic, info: SegmentInfo, look: Callable[..., T], *what: Any) -> T | None:
        """In a thread, on a copy of what is dead; then a pause. None: that segment cannot be looked into."""
        self._check(topic)
        alive = Alive(topic.floors.earliest, topic.contents.marks.get(info.first_seq, Ranges()).copy())
        directory = self._place.topic_dir(topic.id)
        began = self._loop.time()
        try:
            return await self._loop.run_in_executor(
                self._pool, look, self._place.fs, directory, info.first_seq, alive, *what
            )
        except FileNotFoundError:
            return None  # dropped since
        except (OSError, StorageCorrupt) as exc:
            if (topic.id, info.first_seq) not in self._told:
                self._told.add((topic.id, info.first_seq))
                log.warning("a segment is not compacted", extra={"topic": topic.name, "error": str(exc)})
            return None
        finally:
            await asyncio.sleep(min((self._loop.time() - began) * _SHARE, self.longest_pause_s))

    async def _delete(self, topic: Topic, seqs: Ranges) -> None:
        ranges = list(seqs)
        for at in range(0, len(ranges), RANGES_AT_ONCE):
            self._check(topic)
            done: asyncio.Future[int] = self._loop.create_future()
            self._deletion.delete_seqs(topic, Ranges(ranges[at : at + RANGES_AT_ONCE]), _settle(done))
            try:
                records = await done
            except TopicdError:
                raise _Stopped from None
            self._counters.compacted += records
            if topic.compacted is not None:
                topic.compacted.deleted += records

    def _check(self, topic: Topic) -> None:
        if self.closed or not topic.live or topic.compacted is None or self._board.refusing:
            raise _Stopped


def next_segment(topic: Topic) -> SegmentInfo | None:
    """The oldest one whose tags were not looked for yet. Not one with records of a commit that may be taken back."""
    if topic.compacted is None:
        return None
    settled = topic.commits.settled(topic.seqs.visible)
    for info in topic.contents.segments:
        if info.last_seq > topic.compacted.through:
            return info if info.sealed and info.last_seq <= settled else None
    return None


def _older(topic: Topic, newer: SegmentInfo) -> list[SegmentInfo]:
    return [
        info
        for info in topic.contents.segments
        if info.sealed
        and info.first_seq < newer.first_seq
        and info.dead < info.count
        and info.last_seq >= topic.floors.earliest
    ]


def _settle(done: asyncio.Future[int]) -> Callable[[int, TopicdError | None], None]:
    def settle(records: int, error: TopicdError | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(records)
        else:
            done.set_exception(error)

    return settle
