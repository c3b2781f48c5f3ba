"""Which records of a topic are live, where they are and how large, over segments and tail alike. Nothing is loaded but
index entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from topicd._native.interface import Buffer
from topicd.frames import core
from topicd.limits import FRAME_OVERHEAD
from topicd.shards.delivery.pulse import Pulse
from topicd.shards.delivery.reading.segments import Segments
from topicd.shards.delivery.topic.tail import Blob
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.storage.ranges import Ranges
from topicd.shards.storage.segment.info import SegmentInfo
from topicd.shards.storage.segment.reader import SegmentReader


class Sizes:
    """Content bytes of neighbouring records, from the offsets of their frames."""

    def offset(self, seq: int) -> int:
        raise NotImplementedError

    def content(self, first: int, last: int) -> int:
        return self.offset(last + 1) - self.offset(first) - FRAME_OVERHEAD * (last - first + 1)


class BlobSizes(Sizes):
    def __init__(self, blob: Blob) -> None:
        self._blob = blob

    def offset(self, seq: int) -> int:
        return self._blob.offset_of(seq)


class IndexSizes(Sizes):
    """From an index; entries are looked up, not loaded."""

    def __init__(self, offset: Callable[[int], int]) -> None:
        self._offset = offset

    def offset(self, seq: int) -> int:
        return self._offset(seq)


class SegmentSizes(Sizes):
    """From a segment's index; entries are looked up, not loaded, and only if anybody asks. The whole of a segment needs
    none of them."""

    def __init__(self, segments: Segments, topic: Topic, info: SegmentInfo) -> None:
        self._segments = segments
        self._topic = topic
        self._info = info
        self._reader: SegmentReader | None = None

    def offset(self, seq: int) -> int:
        if self._reader is None:
            self._reader = self._segments.reader(self._topic, self._info)
        return self._reader.offset(seq)

    def content(self, first: int, last: int) -> int:
        info = self._info
        if first == info.first_seq and last == info.last_seq:
            return info.data_bytes - FRAME_OVERHEAD * info.count
        return self.offset(last + 1) - self.offset(first) - FRAME_OVERHEAD * (last - first + 1)


class Stretch(NamedTuple):
    """Live and dead records of one place, oldest first: a segment or a blob of the tail."""

    first: int
    last: int
    dead: Ranges | None
    sizes: Sizes

    def live(self, low: int, high: int) -> list[tuple[int, int]]:
        return [(low, high)] if self.dead is None else self.dead.missing(low, high)


class LiveRecords:
    def __init__(self, segments: Segments, pulse: Pulse) -> None:
        self._segments = segments
        self._pulse = pulse

    def stretches(self, topic: Topic, first: int, last: int) -> Iterator[Stretch]:
        """Where the records from first to last are, oldest first."""
        if first > last:
            return
        contents, stored = topic.contents, topic.seqs.stored
        for info in contents.segments[first_reaching(contents.segments, first) :]:
            if info.first_seq > last:
                return
            dead = contents.marks.get(info.first_seq)
            yield Stretch(info.first_seq, info.last_seq, dead, self.sizes(topic, info))
        dead = contents.tail_dead if len(contents.tail_dead) else None
        for blob in contents.tail.from_seq(max(first, stored + 1)):
            # The first records of a blob are in a segment when a checkpoint failed half way.
            low = max(blob.first_seq, stored + 1)
            if low > last:
                return
            yield Stretch(low, blob.last_seq, dead, BlobSizes(blob))

    def sizes(self, topic: Topic, info: SegmentInfo) -> Sizes:
        return SegmentSizes(self._segments, topic, info)

    def runs(self, topic: Topic, first: int, last: int) -> Iterator[tuple[int, int, Sizes]]:
        """Neighbouring live records of first..last."""
        for stretch in self.stretches(topic, first, last):
            self._pulse.show()
            for a, b in stretch.live(max(first, stretch.first), min(last, stretch.last)):
                yield a, b, stretch.sizes

    def within(self, topic: Topic, first: int, last: int) -> tuple[int, int]:
        """(records, content bytes) that are live in first..last."""
        records = content = 0
        for a, b, sizes in self.runs(topic, first, last):
            records += b - a + 1
            content += sizes.content(a, b)
        return records, content

    def first_from(self, topic: Topic, seq: int) -> int:
        """The first live seq at or behind seq; one behind the newest if there is none."""
        visible, segments = topic.seqs.visible, topic.contents.segments
        if seq > topic.seqs.stored and (not segments or segments[-1].last_seq < seq):
            # Most of the time there is one blob, and what is dead of it ends before the next live one.
            found_at = (topic.contents.tail_dead.last_of(seq) or seq - 1) + 1
            if found_at <= visible and topic.contents.tail.blob_of(found_at) is not None:
                return found_at
        else:
            # Or one segment, with the same.
            at = first_reaching(segments, seq)
            dead = topic.contents.marks.get(segments[at].first_seq) if at < len(segments) else None
            if dead is not None and segments[at].first_seq <= seq:
                found_at = (dead.last_of(seq) or seq - 1) + 1
                if found_at <= segments[at].last_seq:
                    return found_at
        for stretch in self.stretches(topic, seq, visible):
            found = stretch.live(max(seq, stretch.first), stretch.last)
            if found:
                return found[0][0]
        return visible + 1

    # ---- times ----

    def ts_of(self, topic: Topic, seq: int) -> int:
        """When a stored record was written; the topic's newest time for one that is not there."""
        for info in topic.contents.segments:
            if seq <= info.last_seq:
                return self._segments.reader(topic, info).entry(max(seq, info.first_seq)).ts
        for blob in topic.contents.tail.from_seq(seq):
            return blob.first_ts
        return topic.seqs.last_ts

    def seq_before(self, topic: Topic, ts: int) -> int:
        """The last seq in store whose record is older."""
        for info in topic.contents.segments:
            if info.last_ts >= ts:
                return max(self._segments.reader(topic, info).seq_at_ts(ts) - 1, 0)
        for blob in topic.contents.tail:
            if blob.last_ts >= ts:
                return _in_frames_before(blob.data, blob.start, blob.end, blob.first_seq, ts)
        return topic.seqs.visible


def _in_frames_before(data: Buffer, start: int, end: int, first_seq: int, ts: int) -> int:
    before = 0
    for seq, record_ts, *_ in core.decode_frames(data, start, end):
        if record_ts >= ts:
            break
        before = seq
    return max(before, first_seq - 1)


def first_reaching(segments: list[SegmentInfo], seq: int) -> int:
    """Where in the list the first segment is that ends at or behind seq; its length, if none does."""
    low, high = 0, len(segments)
    while low < high:
        middle = (low + high) // 2
        if segments[middle].last_seq < seq:
            low = middle + 1
        else:
            high = middle
    return low
