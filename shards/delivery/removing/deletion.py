"""Deletes: permanent, immediate, silent, bounded by the head at the time of the call. Promise: never scans the log; the
operation goes to the log, its effect follows from it, at once and again at recovery.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any, NamedTuple

from topicd.errors import TopicdError
from topicd.frames import FrameType
from topicd.limits import FRAME_OVERHEAD, MAX_SEQ
from topicd.model import TagMatch
from topicd.shards.delivery.counters import Counters
from topicd.shards.delivery.pulse import Pulse
from topicd.shards.delivery.reading.live import IndexSizes, LiveRecords, Sizes, first_reaching
from topicd.shards.delivery.reading.segments import Segments
from topicd.shards.delivery.removing.retention import Retention, note_removed
from topicd.shards.delivery.storing.backlog import Backlog
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.delivery.writing.durability import Need
from topicd.shards.delivery.writing.log import Log
from topicd.shards.storage.ranges import Ranges
from topicd.shards.storage.segment.info import SegmentInfo

Then = Callable[[], None]
Refused = Callable[[TopicdError], None]
Done = Callable[[dict[str, Any] | None, TopicdError | None], None]

_DELETED = "records of its source were deleted"


class Removed(NamedTuple):
    records: int
    content: int  # bytes
    examined: int = 0

    def plus(self, records: int, content: int) -> Removed:
        return Removed(self.records + records, self.content + content, self.examined)


class Deletion:
    def __init__(
        self,
        log: Log,
        segments: Segments,
        live: LiveRecords,
        retention: Retention,
        backlog: Backlog,
        counters: Counters,
        pulse: Pulse,
    ) -> None:
        self._log = log
        self._segments = segments
        self._live = live
        self._retention = retention
        self._backlog = backlog
        self._counters = counters
        self._pulse = pulse
        # Set by the routers. When copies of a topic's records do not depend on them any more; so far it was copied.
        self.before_loss: Callable[[Topic, str, Then, Refused], None] = lambda topic, why, then, refused: then()
        self.copied: Callable[[Topic], int] = lambda topic: MAX_SEQ

    def delete(self, topic: Topic, before_seq: int | None, match: TagMatch | None, done: Done) -> None:
        self.before_loss(
            *(topic, _DELETED, lambda: self._delete(topic, before_seq, match, done), lambda error: done(None, error))
        )

    def _delete(self, topic: Topic, before_seq: int | None, match: TagMatch | None, done: Done) -> None:
        bound = topic.seqs.visible

        def stored() -> None:
            self._retention.expire(topic)
            removed = self._apply(topic, before_seq, match, bound)
            self._counters.deleted += removed.records
            done(
                {
                    "deleted": removed.records,
                    "deleted_bytes": removed.content,
                    "examined": removed.examined,
                    "earliest_seq": topic.floors.earliest,
                    "head_seq": topic.seqs.visible,
                    "count": topic.contents.count,
                    "bytes": topic.contents.bytes,
                },
                None,
            )

        body = {"before": before_seq, "match": match.to_wire() if match is not None else None, "bound": bound}
        need = topic.policy.change_need
        self._log.change(
            topic,
            FrameType.DELETE,
            body,
            seq=bound,
            need=need,
            applied=stored,
            refused=lambda error: done(None, error),
        )

    def free_acked(self, topic: Topic) -> None:
        """retain: acked. What every named consumer has acknowledged and every router has copied goes; a topic nobody
        consumes by name keeps everything. In the log, or a consumer that is set back or removed later would bring it
        back at recovery."""
        if topic.config.retain != "acked" or not len(topic.consumers):
            return
        last = min(topic.seqs.visible, topic.consumers.acked_by_all, self.copied(topic))
        if last >= topic.floors.earliest:
            self._delete_through(topic, last)
            body = {"before": last + 1, "match": None, "bound": last}
            self._log.change(topic, FrameType.DELETE, body, seq=last, need=Need.PLACED)

    def replay(self, topic: Topic, body: dict[str, Any]) -> None:
        """Marks and floor only: recovery counts what is left once, at its end."""
        if "seqs" in body:
            flat = [int(bound) for bound in body["seqs"]]
            self.replay_seqs(topic, Ranges(zip(flat[0::2], flat[1::2], strict=True)))
            return
        before, match = body.get("before"), body.get("match")
        last = int(body["bound"]) if before is None else min(int(body["bound"]), int(before) - 1)
        if match is None:
            topic.floors.delete_through(last)
        else:
            self._mark_matching(topic, TagMatch.from_wire(match), last)

    def _apply(self, topic: Topic, before_seq: int | None, match: TagMatch | None, bound: int) -> Removed:
        last = bound if before_seq is None else min(bound, before_seq - 1)
        return self._delete_through(topic, last) if match is None else self._delete_matching(topic, match, last)

    def _delete_through(self, topic: Topic, last: int) -> Removed:
        """Everything up to last: one bump of a floor."""
        floors = topic.floors
        floors.delete_through(last)
        if last < floors.earliest:
            return Removed(0, 0)
        records, content = self._live.within(topic, floors.earliest, last)
        topic.contents.remove(records, content)
        note_removed(topic)
        floors.advance(self._live.first_from(topic, last + 1))
        self._retention.give_back(topic)
        return Removed(records, content)

    # ---- seqs by name ----

    def delete_seqs(self, topic: Topic, seqs: Ranges, done: Callable[[int, TopicdError | None], None]) -> None:
        """Through the log; how many there were."""
        self.before_loss(topic, _DELETED, lambda: self._delete_seqs(topic, seqs, done), lambda error: done(0, error))

    def _delete_seqs(self, topic: Topic, seqs: Ranges, done: Callable[[int, TopicdError | None], None]) -> None:

        def stored() -> None:
            records = self.apply_seqs(topic, seqs)
            note_removed(topic)
            done(records, None)

        self._log.change(
            topic,
            FrameType.DELETE,
            {"seqs": [bound for pair in seqs for bound in pair], "bound": topic.seqs.visible},
            seq=topic.seqs.visible,
            need=topic.policy.change_need,
            applied=stored,
            refused=lambda error: done(0, error),
        )

    def apply_seqs(self, topic: Topic, seqs: Ranges) -> int:
        """The log says already that these go: how many were live."""
        removed = self.replay_seqs(topic, seqs)
        if removed.records:
            topic.contents.remove(removed.records, removed.content)
            if topic.floors.earliest in seqs:
                topic.floors.advance(self._live.first_from(topic, topic.floors.earliest))
            self._counters.deleted += removed.records
            self._retention.give_back(topic)
        return removed.records

    def apply_done(self, topic: Topic, first: int, last: int, size: int) -> None:
        """The same of neighbouring jobs that somebody was handed and has finished. size: of their frames, -1 if that is
        not known."""
        if size < 0 or not self._mark_done(topic, first, last, size):
            self.apply_seqs(topic, Ranges(((first, last),)))
            return
        count, floors = last - first + 1, topic.floors
        topic.contents.remove(count, size - FRAME_OVERHEAD * count)
        if first <= floors.earliest <= last:
            floors.advance(self._live.first_from(topic, floors.earliest))
        self._counters.deleted += count
        self._retention.give_back(topic)

    def _mark_done(self, topic: Topic, first: int, last: int, size: int) -> bool:
        """False: they are not all live, or not in one place."""
        contents, stored = topic.contents, topic.seqs.stored
        if first < topic.floors.earliest or last > topic.seqs.visible:
            return False
        if first > stored:
            if contents.tail_dead.touches(first, last):
                return False
            contents.tail_dead.add(first, last)
            return True
        at = first_reaching(contents.segments, first)
        if at == len(contents.segments):
            return False
        info = contents.segments[at]
        marks = contents.marks.get(info.first_seq)
        if info.first_seq > first or last > info.last_seq or (marks is not None and marks.touches(first, last)):
            return False
        contents.mark(info, [(first, last)], size)
        self._backlog.note_marks(topic)
        return True

    def replay_seqs(self, topic: Topic, seqs: Ranges) -> Removed:
        earliest, found = topic.floors.earliest, Removed(0, 0)
        for info in _covering(topic.contents.segments, seqs):
            wanted = seqs.within(max(info.first_seq, earliest), info.last_seq)
            inside = _fresh(topic.contents.marks.get(info.first_seq), wanted) if wanted else wanted
            if inside:
                found = found.plus(*self._mark_ranges(topic, info, inside, self._live.sizes(topic, info)))
        tail = seqs.within(max(topic.seqs.stored + 1, earliest), topic.seqs.visible)
        return found.plus(*self._mark_tail(topic, _fresh(topic.contents.tail_dead, tail)))

    # ---- what an abandoned commit has published ----

    def apply_abandoned(self, topic: Topic, body: dict[str, Any]) -> int:
        """The commit is closed, its producer goes on behind the fence, and what is taken back is deleted: how many."""
        removed = self.replay_abandoned(topic, body)
        topic.contents.remove(removed.records, removed.content)
        note_removed(topic)
        topic.floors.advance(self._live.first_from(topic, topic.floors.earliest))
        if removed.records:
            self._counters.deleted += removed.records
            self._retention.give_back(topic)
        return removed.records

    def replay_abandoned(self, topic: Topic, body: dict[str, Any]) -> Removed:
        topic.producers.fence(int(body["producer_id"]), int(body["fence"]))
        topic.commits.replay_change(body)
        return self.replay_seqs(topic, Ranges((int(first), int(last)) for first, last in body["taken_back"]))

    # ---- by tag ----

    def _delete_matching(self, topic: Topic, match: TagMatch, last: int) -> Removed:
        removed = self._mark_matching(topic, match, last)
        topic.contents.remove(removed.records, removed.content)
        note_removed(topic)
        topic.floors.advance(self._live.first_from(topic, topic.floors.earliest))
        if removed.records:
            self._retention.give_back(topic)
        return removed

    def _mark_matching(self, topic: Topic, match: TagMatch, last: int) -> Removed:
        earliest, found = topic.floors.earliest, Removed(0, 0)
        for info in topic.contents.segments:
            if not info.sealed or info.last_seq < earliest or info.first_seq > last:
                continue
            self._pulse.show()
            lookup = self._segments.lookup(topic, info)
            seqs = lookup.find(match)
            alive = seqs[bisect_left(seqs, earliest) : bisect_left(seqs, last + 1)]
            found = found._replace(examined=found.examined + len(seqs))
            found = found.plus(*self._mark_segment(topic, info, alive, IndexSizes(lookup.offset)))
        recent = topic.contents.recent_tags.matching(match, earliest, last)
        found = found._replace(examined=found.examined + len(recent))
        return found.plus(*self._mark_recent(topic, recent))

    def _mark_segment(self, topic: Topic, info: SegmentInfo, seqs: list[int], sizes: Sizes) -> tuple[int, int]:
        fresh = _not_in(topic.contents.marks.get(info.first_seq), seqs)
        return self._mark_ranges(topic, info, fresh, sizes) if fresh else (0, 0)

    def _mark_ranges(
        self, topic: Topic, info: SegmentInfo, fresh: list[tuple[int, int]], sizes: Sizes
    ) -> tuple[int, int]:
        records = size = 0
        for first, last in fresh:
            records += last - first + 1
            size += sizes.offset(last + 1) - sizes.offset(first)
        topic.contents.mark(info, fresh, size)
        self._backlog.note_marks(topic)
        return records, size - FRAME_OVERHEAD * records

    def _mark_recent(self, topic: Topic, seqs: list[int]) -> tuple[int, int]:
        """Records of the active segment and of the tail."""
        contents = topic.contents
        split = bisect_left(seqs, topic.seqs.stored + 1)
        deleted = content = 0
        for info in contents.segments if split else ():
            if info.sealed:
                continue
            inside = seqs[bisect_left(seqs, info.first_seq) : bisect_left(seqs, info.last_seq + 1)]
            count, size = self._mark_segment(topic, info, inside, self._live.sizes(topic, info))
            deleted, content = deleted + count, content + size
        count, size = self._mark_tail(topic, _not_in(contents.tail_dead, seqs[split:]))
        return deleted + count, content + size

    @staticmethod
    def _mark_tail(topic: Topic, fresh: list[tuple[int, int]]) -> tuple[int, int]:
        contents, deleted, content = topic.contents, 0, 0
        for first, last in fresh:
            alone = contents.tail.blob_of(first)
            if alone is not None and last <= alone.last_seq:
                content += alone.content_of(first, last)
            else:
                for blob in contents.tail.from_seq(first):
                    if blob.first_seq > last:
                        break
                    content += blob.content_of(max(first, blob.first_seq), min(last, blob.last_seq))
            contents.tail_dead.add(first, last)
            deleted += last - first + 1
        return deleted, content


def _covering(segments: list[SegmentInfo], seqs: Ranges) -> list[SegmentInfo]:
    """Those between the first and the last of these seqs: a topic may have thousands of others."""
    if not len(seqs) or not segments:
        return []
    low, high = seqs.bounds
    if low > segments[-1].last_seq:
        return []
    start = first_reaching(segments, low)
    end = start
    while end < len(segments) and segments[end].first_seq <= high:
        end += 1
    return segments[start:end]


def _not_in(known: Ranges | None, seqs: list[int]) -> list[tuple[int, int]]:
    """Ascending seqs as ranges, without those that are known already."""
    ranges: list[tuple[int, int]] = []
    first = previous = 0
    for seq in seqs:
        if seq != previous + 1 or not first:
            if first:
                ranges.append((first, previous))
            first = seq
        previous = seq
    if first:
        ranges.append((first, previous))
    return _fresh(known, ranges)


def _fresh(known: Ranges | None, ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Those that are not known already."""
    return ranges if known is None else [part for a, b in ranges for part in known.missing(a, b)]
