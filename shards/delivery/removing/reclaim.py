"""Giving disk space back. Promise: a segment goes only after a durable snapshot explains its absence, whole dead
ones by unlink, half-dead ones by a rewrite beside them; reads never notice.
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from topicd.errors import StorageCorrupt
from topicd.shards.storage.segment.drop import drop_segments
from topicd.shards.storage.segment.rewrite import rewrite_segment
from topicd.shards.storage.topic_dir import finish_deletes, start_delete

if TYPE_CHECKING:
    from topicd.shards.delivery.actor import Actor
    from topicd.shards.delivery.topic.topic import Topic
    from topicd.shards.storage.segment.info import SegmentInfo

log = logging.getLogger(__name__)

_REWRITES_PER_ROUND = 16


class Reclaimer:
    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._candidates: dict[int, Topic] = {}
        self.dropped = 0
        self.rewritten = 0

    @property
    def urgent(self) -> bool:
        """There may be something to give back: a snapshot is worth its price."""
        return any(self._droppable(topic) or self._half_dead(topic) for topic in self._candidates.values())

    def note(self, topic: Topic) -> None:
        self._candidates[topic.id] = topic

    def plan(self) -> list[tuple[Topic, list[int]]]:
        """Segments that the next snapshot allows to drop. They leave the topic now; their files go after it."""
        found = []
        for topic in list(self._candidates.values()):
            if not topic.live:
                del self._candidates[topic.id]
                continue
            dead = self._droppable(topic)
            for info in dead:
                topic.gone.add(info.first_seq, info.last_seq)
                topic.segments.remove(info)
                topic.marks.pop(info.first_seq, None)
                topic.unmarked.pop(info.first_seq, None)
                self._actor.readers.drop(topic.id, info.first_seq)
            # Below every floor nobody asks any more.
            low = topic.gone.within(topic.earliest, topic.head)
            topic.gone = type(topic.gone)(low)
            if dead:
                found.append((topic, [info.first_seq for info in dead]))
            elif not self._half_dead(topic):
                del self._candidates[topic.id]
        return found

    async def run(self, pool: ThreadPoolExecutor, dropping: list[tuple[Topic, list[int]]]) -> None:
        actor = self._actor
        for topic, first_seqs in dropping:
            directory = actor.topic_dir(topic.id)
            await actor.loop.run_in_executor(pool, drop_segments, actor.fs, directory, first_seqs)
            self.dropped += len(first_seqs)
        budget = _REWRITES_PER_ROUND
        for topic in list(self._candidates.values()):
            for info in self._half_dead(topic)[:budget]:
                budget -= 1
                await self._rewrite(pool, topic, info)

    async def _rewrite(self, pool: ThreadPoolExecutor, topic: Topic, info: SegmentInfo) -> None:
        actor = self._actor
        dead = topic.marks[info.first_seq].copy()
        directory = actor.topic_dir(topic.id)
        try:
            new = await actor.loop.run_in_executor(pool, rewrite_segment, actor.fs, directory, info, dead)
        except (OSError, StorageCorrupt) as exc:
            log.error("segment not rewritten", extra={"topic": topic.name, "error": str(exc)})
            return
        if info in topic.segments:
            later = topic.marks[info.first_seq].covered - dead.covered
            new.dead, new.dead_bytes = dead.covered + later, info.dead_bytes if later else 0
            topic.segments[topic.segments.index(info)] = new
            actor.readers.drop(topic.id, info.first_seq)
            self.rewritten += 1

    def remove_topic(self, topic_id: int) -> None:
        """A deleted topic: out of the way at once, unlinked at leisure. Safe to run again after a crash."""
        actor = self._actor
        try:
            start_delete(actor.fs, actor.data.topics, topic_id)
            finish_deletes(actor.fs, actor.data.topics)
        except OSError as exc:
            log.error("topic directory not removed", extra={"topic_id": topic_id, "error": str(exc)})

    def _droppable(self, topic: Topic) -> list[SegmentInfo]:
        return [
            info
            for info in topic.segments
            if info.sealed and (info.last_seq < topic.earliest or info.dead >= info.count)
        ]

    def _half_dead(self, topic: Topic) -> list[SegmentInfo]:
        return [
            info
            for info in topic.segments
            if info.sealed
            and info.first_seq in topic.marks
            and info.first_seq not in topic.unmarked
            and 2 * info.dead_bytes >= info.data_bytes > 0
        ]
