"""Deletes: permanent, immediate, silent, bounded by the head at the time of the call. Promise: never scans the log; the
operation goes to the log, its effect follows from it, at once and again at recovery.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from topicd.errors import TopicdError
from topicd.frames import FrameType, control_frame, core
from topicd.limits import FRAME_OVERHEAD
from topicd.model import Durability, TagMatch
from topicd.shards.delivery.writing.outlet import NEED_OF, ControlEntry, Need
from topicd.shards.storage.ranges import Ranges

if TYPE_CHECKING:
    from topicd.shards.delivery.actor import Actor
    from topicd.shards.delivery.removing.retention import Sizes
    from topicd.shards.delivery.topic.tail import Blob
    from topicd.shards.delivery.topic.topic import Topic
    from topicd.shards.storage.segment.info import SegmentInfo

Done = Callable[[dict[str, Any] | None, TopicdError | None], None]


class Deletion:
    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    def delete(self, topic: Topic, before_seq: int | None, match: TagMatch | None, done: Done) -> None:
        bound = topic.visible

        def stored() -> None:
            self._actor.retention.expire(topic)
            deleted, content, examined = self.apply(topic, before_seq, match, bound)
            self._actor.deleted_total += deleted
            done(
                {
                    "deleted": deleted,
                    "deleted_bytes": content,
                    "examined": examined,
                    "earliest_seq": topic.earliest,
                    "head_seq": topic.visible,
                    "count": topic.count,
                    "bytes": topic.bytes,
                },
                None,
            )

        body = {"before": before_seq, "match": match.to_wire() if match is not None else None, "bound": bound}
        need = max(NEED_OF[Durability(topic.config.durability)], Need.WRITTEN)
        frame = control_frame(FrameType.DELETE, topic.id, bound, self._actor.clock.now_ms(), body)
        self._actor.submit_control(topic, frame, ControlEntry(need, stored, lambda error: done(None, error)))

    def free_through(self, topic: Topic, last: int) -> None:
        """What every consumer has acknowledged. In the log, or a consumer that is set back or removed later would
        bring it back at recovery."""
        self.delete_through(topic, last)
        body = {"before": last + 1, "match": None, "bound": last}
        frame = control_frame(FrameType.DELETE, topic.id, last, self._actor.clock.now_ms(), body)
        self._actor.submit_control(topic, frame, ControlEntry(Need.PLACED))

    def replay(self, topic: Topic, body: dict[str, Any]) -> None:
        """Marks and floor only: recovery counts what is left once, at its end."""
        before, match = body.get("before"), body.get("match")
        last = int(body["bound"]) if before is None else min(int(body["bound"]), int(before) - 1)
        if match is None:
            topic.delete_below = max(topic.delete_below, last + 1)
        else:
            self._mark_matching(topic, TagMatch.from_wire(match), last)

    def apply(self, topic: Topic, before_seq: int | None, match: TagMatch | None, bound: int) -> tuple[int, int, int]:
        """(records, content bytes, records examined)."""
        last = bound if before_seq is None else min(bound, before_seq - 1)
        if match is None:
            return self.delete_through(topic, last)
        return self._delete_matching(topic, match, last)

    def delete_through(self, topic: Topic, last: int) -> tuple[int, int, int]:
        """Everything up to last: one bump of a floor."""
        if last < topic.earliest:
            topic.delete_below = max(topic.delete_below, last + 1)
            return 0, 0, 0
        records, content = self._actor.retention.live_within(topic, topic.earliest, last)
        topic.delete_below = max(topic.delete_below, last + 1)
        topic.count -= records
        topic.bytes -= content
        topic.earliest = self._actor.retention.first_live(topic, last + 1)
        self._actor.retention.give_back(topic)
        return records, content, 0

    # ---- by tag ----

    def _delete_matching(self, topic: Topic, match: TagMatch, last: int) -> tuple[int, int, int]:
        deleted, content, examined = self._mark_matching(topic, match, last)
        topic.count -= deleted
        topic.bytes -= content
        topic.earliest = self._actor.retention.first_live(topic, topic.earliest)
        if deleted:
            self._actor.retention.give_back(topic)
        return deleted, content, examined

    def _mark_matching(self, topic: Topic, match: TagMatch, last: int) -> tuple[int, int, int]:
        deleted = content = examined = 0
        for info in topic.segments:
            if not info.sealed or info.last_seq < topic.earliest or info.first_seq > last:
                continue
            self._actor.show_life()
            lookup = self._actor.segment_lookup(topic, info)
            seqs = lookup.find(match)
            examined += len(seqs)
            alive = seqs[bisect_left(seqs, topic.earliest) : bisect_left(seqs, last + 1)]
            count, size = self._mark_segment(topic, info, alive, self._actor.lookup_sizes(lookup))
            deleted, content = deleted + count, content + size
        recent = sorted(
            seq
            for tag, seqs in topic.recent_tags.items()
            if match.matches(tag)
            for seq in seqs
            if topic.earliest <= seq <= last
        )
        examined += len(recent)
        count, size = self._mark_recent(topic, recent)
        return deleted + count, content + size, examined

    def _mark_segment(self, topic: Topic, info: SegmentInfo, seqs: list[int], sizes: Sizes) -> tuple[int, int]:
        fresh = _not_in(topic.marks.get(info.first_seq), seqs)
        if not fresh:
            return 0, 0
        marks = topic.marks.setdefault(info.first_seq, Ranges())
        unmarked = topic.unmarked.setdefault(info.first_seq, Ranges())
        records = size = 0
        for first, last in fresh:
            marks.add(first, last)
            unmarked.add(first, last)
            records += last - first + 1
            size += sizes.offset(last + 1) - sizes.offset(first)
        info.dead += records
        info.dead_bytes += size
        self._actor.checkpointer.note_marks(topic)
        return records, size - FRAME_OVERHEAD * records

    def _mark_recent(self, topic: Topic, seqs: list[int]) -> tuple[int, int]:
        """Records of the active segment and of the tail."""
        split = bisect_left(seqs, topic.stored + 1)
        deleted = content = 0
        for info in topic.segments if split else ():
            if info.sealed:
                continue
            inside = seqs[bisect_left(seqs, info.first_seq) : bisect_left(seqs, info.last_seq + 1)]
            count, size = self._mark_segment(topic, info, inside, self._actor.segment_sizes(topic, info))
            deleted, content = deleted + count, content + size
        for first, last in _not_in(topic.tail_dead, seqs[split:]):
            for blob in topic.tail.from_seq(first):
                if blob.first_seq > last:
                    break
                low, high = max(first, blob.first_seq), min(last, blob.last_seq)
                content += blob.offset_of(high + 1) - blob.offset_of(low) - FRAME_OVERHEAD * (high - low + 1)
            topic.tail_dead.add(first, last)
            deleted += last - first + 1
        return deleted, content


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
    return ranges if known is None else [part for a, b in ranges for part in known.missing(a, b)]


def note_tags(topic: Topic, blob: Blob) -> None:
    """Remember the tags of records that no sealed table knows yet."""
    for tag, seq in core.frame_tags(blob.data, blob.start, blob.end):
        topic.recent_tags.setdefault(tag, []).append(seq)


def forget_tags(topic: Topic, through: int) -> None:
    """A segment was sealed, its table answers from now on; or its records are gone."""
    topic.recent_tags = {
        tag: kept for tag, seqs in topic.recent_tags.items() if (kept := seqs[bisect_left(seqs, through + 1) :])
    }
