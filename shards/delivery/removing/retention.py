"""What caps and TTL remove. Promise: floors move at once and only forward, every record removed is counted, and the new
floor goes to the log with the write that caused it. Files go later, by whole segments.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from topicd.frames import FrameType, control_frame
from topicd.limits import FRAME_OVERHEAD, MIB
from topicd.model import GapReason
from topicd.shards.delivery.removing.deletion import forget_tags
from topicd.shards.delivery.topic.tail import Blob
from topicd.shards.delivery.writing.outlet import ControlEntry, Need
from topicd.shards.storage.ranges import Ranges

if TYPE_CHECKING:
    from topicd.shards.delivery.actor import Actor
    from topicd.shards.delivery.topic.topic import Topic

# An ephemeral topic lives in memory only; without a cap of its own it keeps this much.
EPHEMERAL_BYTES = 32 * MIB


class Piece(NamedTuple):
    """Live and dead records of one place, oldest first: a segment or a blob of the tail."""

    first: int
    last: int
    dead: Ranges | None
    sizes: Sizes


class Sizes:
    """Content bytes of neighbouring records, from the offsets of their frames."""

    def offset(self, seq: int) -> int:
        raise NotImplementedError

    def content(self, first: int, last: int) -> int:
        return self.offset(last + 1) - self.offset(first) - FRAME_OVERHEAD * (last - first + 1)


class Retention:
    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    def expire(self, topic: Topic) -> None:
        """TTL, judged by the clock now: a record is expired when now - ts > ttl."""
        ttl = topic.config.ttl_ms
        if not ttl or topic.earliest > topic.visible:
            return
        oldest_kept = self._actor.clock.now_ms() - ttl
        if self._actor.ts_of(topic, topic.earliest) >= oldest_kept:
            return
        floor = max(self._actor.reader.seq_before_ts(topic, oldest_kept) + 1, topic.earliest)
        self._remove_below(topic, min(floor, topic.visible + 1), GapReason.TTL)

    def sweep(self) -> None:
        """Once a second: what nobody reads gives its space back too. Only a look where nothing is due."""
        now = self._actor.clock.now_ms()
        for topic in self._actor.topics.by_name.values():
            ttl = topic.config.ttl_ms
            if ttl and topic.oldest_end_ms < now - ttl:
                self.expire(topic)

    def enforce(self, topic: Topic) -> None:
        """Caps, after records became visible or a cap was tightened. TTL first: what it takes is not the cap's."""
        self.expire(topic)
        config = topic.config
        cap_records, cap_bytes = config.cap_records, config.cap_bytes
        if config.discard == "reject":
            cap_records = cap_bytes = 0
        if topic.ephemeral:
            cap_bytes = min(cap_bytes or EPHEMERAL_BYTES, EPHEMERAL_BYTES)
        if cap_records and topic.count > cap_records:
            self._remove_oldest(topic, records=topic.count - cap_records, content=0)
        if cap_bytes and topic.bytes > cap_bytes:
            self._remove_oldest(topic, records=0, content=topic.bytes - cap_bytes)

    def live_within(self, topic: Topic, first: int, last: int) -> tuple[int, int]:
        """(records, content bytes) that are live in first..last."""
        records = content = 0
        for a, b, sizes in self._live_runs(topic, first, last):
            records += b - a + 1
            content += sizes.content(a, b)
        return records, content

    def _live_runs(self, topic: Topic, first: int, last: int) -> Iterator[tuple[int, int, Sizes]]:
        for piece in self.pieces(topic, first, last):
            self._actor.show_life()
            low, high = max(first, piece.first), min(last, piece.last)
            for a, b in [(low, high)] if piece.dead is None else piece.dead.missing(low, high):
                yield a, b, piece.sizes

    def first_live(self, topic: Topic, seq: int) -> int:
        """The first live seq at or behind seq; one behind the newest if there is none."""
        for piece in self.pieces(topic, seq, topic.visible):
            low = max(seq, piece.first)
            missing = [(low, piece.last)] if piece.dead is None else piece.dead.missing(low, piece.last)
            if missing:
                return missing[0][0]
        return topic.visible + 1

    def pieces(self, topic: Topic, first: int, last: int) -> Iterator[Piece]:
        """Where the records from first to last are, oldest first."""
        if first > last:
            return
        start = max(0, bisect_left(topic.segments, first, key=lambda info: info.last_seq))
        for info in topic.segments[start:]:
            if info.first_seq > last:
                return
            dead = topic.marks.get(info.first_seq)
            yield Piece(info.first_seq, info.last_seq, dead, self._actor.segment_sizes(topic, info))
        dead = topic.tail_dead if len(topic.tail_dead) else None
        for blob in topic.tail.from_seq(max(first, topic.stored + 1)):
            # The first records of a blob are in a segment when a checkpoint failed half way.
            low = max(blob.first_seq, topic.stored + 1)
            if low > last:
                return
            yield Piece(low, blob.last_seq, dead, _BlobSizes(blob))

    # ---- removal ----

    def _remove_oldest(self, topic: Topic, *, records: int, content: int) -> None:
        """Remove from the front until so many live records or bytes are gone."""
        floor = topic.earliest
        for piece in self.pieces(topic, topic.earliest, topic.visible):
            low = max(piece.first, topic.earliest)
            for a, b in [(low, piece.last)] if piece.dead is None else piece.dead.missing(low, piece.last):
                if records > 0:
                    taken = min(records, b - a + 1)
                    records -= taken
                    floor = a + taken
                elif content > 0:
                    floor, freed = _until_freed(piece.sizes, a, b, content)
                    content -= freed
                if records <= 0 and content <= 0:
                    self._remove_below(topic, floor, GapReason.CAP)
                    return
        self._remove_below(topic, floor, GapReason.CAP)

    def _remove_below(self, topic: Topic, floor: int, reason: GapReason) -> None:
        if floor <= topic.earliest:
            return
        records = content = behind = 0
        for a, b, sizes in self._live_runs(topic, topic.earliest, floor - 1):
            records += b - a + 1
            content += sizes.content(a, b)
            behind = b + 1
        topic.count -= records
        topic.bytes -= content
        if records:
            # Not the floor itself: what was deleted just below it is no loss.
            topic.note_loss(behind, reason.value, records)
            self._actor.evicted_total += records
            self._log_floor(topic)
        topic.earliest = self.first_live(topic, floor)
        self.give_back(topic)

    def give_back(self, topic: Topic) -> None:
        """What nobody can read any more: memory of an ephemeral topic at once, segments of others in time."""
        if not topic.ephemeral:
            self._actor.note_reclaimable(topic)
            return
        blobs = len(topic.tail)
        topic.tail.drop_through(topic.earliest - 1)
        topic.stored = max(topic.stored, topic.earliest - 1)
        if len(topic.tail) < blobs:
            forget_tags(topic, topic.stored)
            topic.tail_dead = Ranges(topic.tail_dead.within(topic.earliest, topic.head))

    def _log_floor(self, topic: Topic) -> None:
        """Not waited for: caps and TTL give the same floor again at recovery; the frame keeps its reason."""
        if topic.ephemeral:
            return
        body = {"evict_floor": topic.evict_floor, "losses": [list(loss) for loss in topic.losses]}
        now = self._actor.clock.now_ms()
        frame = control_frame(FrameType.EVICT_WATERMARK, topic.id, topic.evict_floor, now, body)
        self._actor.submit_control(topic, frame, ControlEntry(Need.PLACED))


class _BlobSizes(Sizes):
    def __init__(self, blob: Blob) -> None:
        self._blob = blob

    def offset(self, seq: int) -> int:
        return self._blob.offset_of(seq)


class IndexSizes(Sizes):
    """The same from a segment's index; entries are looked up, not loaded."""

    def __init__(self, offset: Callable[[int], int]) -> None:
        self._offset = offset

    def offset(self, seq: int) -> int:
        return self._offset(seq)


def _until_freed(sizes: Sizes, first: int, last: int, content: int) -> tuple[int, int]:
    """(floor, freed): the fewest records from first on whose content reaches the wanted bytes."""
    low, high = first, last
    while low < high:
        middle = (low + high) // 2
        if sizes.content(first, middle) >= content:
            high = middle
        else:
            low = middle + 1
    return low + 1, sizes.content(first, low)
