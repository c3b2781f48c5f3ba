"""Giving disk space back. Promise: a segment goes only after a durable snapshot explains its absence, whole dead
ones by unlink, half-dead ones by a rewrite beside them; reads never notice.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import suppress

from topicd.errors import StorageCorrupt
from topicd.shards.delivery.place import Place
from topicd.shards.delivery.reading.segments import Segments
from topicd.shards.delivery.slices import in_slices
from topicd.shards.delivery.storing.backlog import Backlog
from topicd.shards.delivery.storing.tier_plan import half_dead
from topicd.shards.delivery.storing.tiering import Tiering
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.storage.segment.drop import drop_segments
from topicd.shards.storage.segment.info import Lies, SegmentInfo
from topicd.shards.storage.segment.rewrite import rewrite_segment
from topicd.shards.storage.topic_dir import finish_deletes, start_delete

log = logging.getLogger(__name__)

_REWRITES_PER_ROUND = 16


class Reclaimer:
    def __init__(
        self,
        place: Place,
        loop: asyncio.AbstractEventLoop,
        pool: Executor,
        backlog: Backlog,
        segments: Segments,
        tiering: Tiering,
    ) -> None:
        self._place = place
        self._loop = loop
        self._pool = pool
        self._backlog = backlog
        self._segments = segments
        self._tiering = tiering
        self.urgent = False  # there may be something to give back: a snapshot is worth its price
        # Segments that have left their topic and whose files are still there.
        self._leaving: deque[tuple[Topic, list[int]]] = deque()

    def look(self) -> Iterator[None]:
        """Is it urgent? In slices."""
        found: list[Topic] = []

        def look(topic: Topic) -> None:
            rewritable = self._half_dead(topic)
            for info in rewritable:
                if info.lies is not Lies.HERE:
                    self._tiering.recall(topic, info)
            if not found and (self._droppable(topic) or any(info.lies is Lies.HERE for info in rewritable)):
                found.append(topic)

        yield from in_slices(list(self._backlog.reclaimable.values()), look)
        self.urgent = bool(found)

    def plan(self) -> Iterator[None]:
        """Segments that the next snapshot allows to drop. They leave the topic now; their files go after it. In
        slices."""
        self.urgent = False

        def plan(topic: Topic) -> None:
            dead = self._droppable(topic)
            for info in dead:
                topic.contents.drop(info)
                self._segments.drop(topic, info.first_seq)
            topic.contents.forget_gone(topic.floors.earliest, topic.seqs.head)
            if dead:
                self._leaving.append((topic, [info.first_seq for info in dead]))
            elif not self._half_dead(topic) and not topic.contents.unmarked:
                self._backlog.reclaimable.pop(topic.id, None)

        yield from in_slices(list(self._backlog.reclaimable.values()), plan)

    async def run(self) -> None:
        """The snapshot that follows the plan is durable. What fails here goes after the next one: a disk that was full
        for a moment is not full for ever."""
        place = self._place
        while self._leaving:
            topic, first_seqs = self._leaving[0]
            directory = place.topic_dir(topic.id)
            with suppress(FileNotFoundError):  # the topic was deleted since
                cold = await self._loop.run_in_executor(self._pool, drop_segments, place.fs, directory, first_seqs)
                if cold:
                    self._tiering.finish_drop(topic, cold)
            self._leaving.popleft()
        budget = _REWRITES_PER_ROUND
        for topic in list(self._backlog.reclaimable.values()):
            for info in self._half_dead(topic)[:budget]:
                if info.lies is Lies.HERE:  # else it comes here first
                    budget -= 1
                    await self._rewrite(topic, info)

    async def _rewrite(self, topic: Topic, info: SegmentInfo) -> None:
        place, contents = self._place, topic.contents
        dead = contents.marks[info.first_seq].copy()
        directory = place.topic_dir(topic.id)
        try:
            new = await self._loop.run_in_executor(self._pool, rewrite_segment, place.fs, directory, info, dead)
        except (OSError, StorageCorrupt) as exc:
            log.error("segment not rewritten", extra={"topic": topic.name, "error": str(exc)})
            return
        if info in contents.segments:
            later = contents.marks[info.first_seq].covered - dead.covered
            new.dead, new.dead_bytes = dead.covered + later, info.dead_bytes if later else 0
            contents.segments[contents.segments.index(info)] = new
            self._segments.drop(topic, info.first_seq)

    def remove_topic(self, topic_id: int) -> None:
        """A deleted topic: out of the way at once, unlinked at leisure. Safe to run again after a crash."""
        place = self._place
        try:
            start_delete(place.fs, place.data.topics, topic_id)
            finish_deletes(place.fs, place.data.topics)
        except OSError as exc:
            log.error("topic directory not removed", extra={"topic_id": topic_id, "error": str(exc)})

    def _droppable(self, topic: Topic) -> list[SegmentInfo]:
        return [
            info
            for info in topic.contents.segments
            if info.sealed
            and (info.last_seq < topic.floors.earliest or info.dead >= info.count)
            and not self._tiering.is_moving(topic, info)
        ]

    def _half_dead(self, topic: Topic) -> list[SegmentInfo]:
        found = [info for info in topic.contents.segments if half_dead(topic, info)]
        return [info for info in found if not self._tiering.is_moving(topic, info)]
