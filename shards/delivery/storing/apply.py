"""What a checkpoint has done, brought into the topics. Promise: memory is let go only for what a synced segment holds,
and a record that was deleted in memory is dead in its segment too.
"""

from __future__ import annotations

import errno
import logging

from topicd.shards.delivery.damage import DamageLog
from topicd.shards.delivery.reading.live import LiveRecords
from topicd.shards.delivery.storing.backlog import Backlog
from topicd.shards.delivery.storing.checkpoint_round import CheckpointRound
from topicd.shards.delivery.storing.segmenting import Draft
from topicd.shards.delivery.topic.contents import Damaged
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.delivery.writing.direct import DirectWrites
from topicd.shards.storage.ranges import Ranges
from topicd.shards.storage.segment.info import SegmentInfo
from topicd.shards.storage.segment.jobs import JobResult

log = logging.getLogger(__name__)


_NAMED = 10  # topics; a hundred thousand of them fail together where a disk is full


class Failures:
    """What went wrong in checkpoints. A full disk stays full for hours: said once, not once a second."""

    def __init__(self) -> None:
        self.errno = errno.EIO  # of the round under way
        self._told: set[int] = set()  # topics whose failure was logged since a round went well; 0: no topic's

    def begin_round(self) -> None:
        self.errno = errno.EIO

    def note(self, topic: Topic, result: JobResult) -> None:
        self.errno = result.errno or errno.EIO
        if topic.id in self._told or len(self._told) > _NAMED:
            return
        self._told.add(topic.id)
        if len(self._told) > _NAMED:
            log.error("checkpoints of more topics failed", extra={"error": str(result.error)})
        else:
            log.error("checkpoint of topic failed", extra={"topic": topic.name, "error": str(result.error)})

    def note_exception(self, exc: Exception) -> None:
        if not isinstance(exc, OSError):
            log.error("checkpoint failed", exc_info=exc)
            return
        self.errno = exc.errno or errno.EIO
        if 0 not in self._told:
            self._told.add(0)
            log.error("checkpoint failed", extra={"error": str(exc)})

    def clear(self) -> None:
        self._told.clear()


class Apply:
    def __init__(
        self, backlog: Backlog, direct: DirectWrites, live: LiveRecords, failures: Failures, damage: DamageLog
    ) -> None:
        self._backlog = backlog
        self._direct = direct
        self._live = live
        self._failures = failures
        self._damage = damage

    def settle_direct(self, work: CheckpointRound, results: list[JobResult]) -> None:
        """Those who wait for direct writes hear of them, and followers get them from memory, before the tail goes."""
        for topic_id in work.ends:
            self._direct.cleared(topic_id)
        reached: dict[int, int] = {}
        failed: dict[int, JobResult] = {}
        for (topic, draft), result in zip(work.drafts, results, strict=True):
            if result.stored and topic.id not in failed:
                reached[topic.id] = draft.last_seq
            else:
                failed.setdefault(topic.id, result)
        for topic, entries in work.direct:
            if not topic.live:
                continue
            stored = [entry for entry in entries if entry.last_seq <= reached.get(topic.id, 0)]
            self._direct.stored(topic, stored)
            if len(stored) < len(entries):
                self._failures.errno = failed[topic.id].errno or errno.EIO
                self.refuse_direct(work, topic)

    def refuse_direct(self, work: CheckpointRound, topic: Topic) -> None:
        self._direct.refuse(topic, self._failures.errno, debris=topic.id in work.unclear)

    def results(self, work: CheckpointRound, results: list[JobResult], marked: list[JobResult]) -> bool:
        """True: everything of it is stored."""
        failed: set[int] = set()
        ok = True
        for (topic, draft), result in zip(work.drafts, results, strict=True):
            if topic.id in failed or not topic.live:
                continue
            if result.stored:
                self._store(topic, draft, result)
            else:
                failed.add(topic.id)
                self._failures.note(topic, result)
        for (topic, first_seq, ranges), result in zip(work.marked, marked, strict=True):
            ok = self._note_marked(topic, first_seq, ranges, result) and ok
        for topic, _ in work.drafts:
            if topic.id not in failed and not len(topic.contents.tail):
                self._backlog.dirty.pop(topic.id, None)
        return ok and not failed

    def _store(self, topic: Topic, draft: Draft, result: JobResult) -> None:
        contents, backlog = topic.contents, self._backlog
        info = self._info_after(topic, draft, result)
        before = contents.tail.bytes
        topic.seqs.store(draft.last_seq)
        topic.inflows.reached(topic.seqs.stored, draft.last_ts)
        contents.tail.drop_through(topic.seqs.stored)
        backlog.tail_bytes -= before - contents.tail.bytes
        self._move_dead(topic, draft, info)
        if info.sealed:
            backlog.active.pop(topic.id, None)
            contents.recent_tags.forget(info.last_seq)
        else:
            backlog.active[topic.id] = topic
        for damage in result.damage:
            if damage.repaired:
                log.warning("segment repaired", extra={"damage": str(damage)})
            else:
                self._damage.sealed(damage)
                contents.damaged.append(Damaged(damage.first_seq, damage.last_seq, damage.path.name))

    @staticmethod
    def _info_after(topic: Topic, draft: Draft, result: JobResult) -> SegmentInfo:
        segments = topic.contents.segments
        if segments and segments[-1].first_seq == draft.first_seq:
            info = segments[-1]
            info.count, info.data_bytes, info.last_ts = draft.count, draft.bytes, draft.last_ts
        else:
            info = draft.info()
            segments.append(info)
        if result.sealed is not None:
            info.sealed = True
        elif draft.seal:
            log.error("segment not sealed", extra={"topic": topic.name, "error": str(result.error)})
        return info

    def _move_dead(self, topic: Topic, draft: Draft, info: SegmentInfo) -> None:
        """Deleted while in the tail: from now on they are marks of the segment."""
        contents = topic.contents
        moved = contents.tail_dead.within(draft.first_seq, draft.last_seq)
        if not moved:
            return
        sizes = self._live.sizes(topic, info)
        contents.mark(info, moved, sum(sizes.offset(last + 1) - sizes.offset(first) for first, last in moved))
        self._backlog.unmarked[topic.id] = topic
        contents.keep_tail_dead(topic.seqs.stored + 1, topic.seqs.head)

    def _note_marked(self, topic: Topic, first_seq: int, ranges: Ranges, result: JobResult) -> bool:
        backlog, mark = self._backlog, (topic.id, first_seq)
        if not topic.live:
            return True
        if not result.stored:
            backlog.unmarked[topic.id] = topic
            backlog.unsure_marks.add(mark)
            self._failures.note(topic, result)
            return False
        backlog.unsure_marks.discard(mark)
        if topic.contents.marked(first_seq, ranges):
            backlog.unmarked.pop(topic.id, None)
        return True
