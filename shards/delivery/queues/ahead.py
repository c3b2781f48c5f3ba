"""Records of jobs that are about to be handed out, read together: who takes jobs one by one, in order, costs one read
in many. Promise: what is here was checked when it was read; nothing is here of a queue whose records went otherwise
than by being done; all of it together has a bound.
"""

from __future__ import annotations

from collections import OrderedDict

from topicd._native.interface import Buffer
from topicd.frames import core, seq_at
from topicd.limits import KIB
from topicd.shards.delivery.reading.filters import NO_FILTER
from topicd.shards.delivery.reading.reading import ReadAnswer, Reader
from topicd.shards.delivery.topic.topic import Topic

QUEUES = 64  # so many have something here
RECORDS = 256
BYTES = 64 * KIB
FEW = 16  # who takes more at a time reads for himself


class _Records:
    """Neighbouring records of one queue."""

    __slots__ = ("data", "first", "offsets")

    def __init__(self, first: int, data: memoryview) -> None:
        self.first = first
        self.data = data
        # Where each begins, and where the last one ends.
        self.offsets = [*memoryview(core.frame_offsets(data, 0, len(data))).cast("I"), len(data)]

    @property
    def together(self) -> bool:
        """Do their seqs follow each other? Between them some may have been deleted, and their frames be gone."""
        return seq_at(self.data, self.offsets[-2]) == self.first + len(self.offsets) - 2

    def has(self, first: int, count: int) -> bool:
        return self.first <= first and first + count - self.first < len(self.offsets)

    def frame(self, seq: int) -> memoryview:
        at = seq - self.first
        return self.data[self.offsets[at] : self.offsets[at + 1]]

    def answer(self, first: int, count: int) -> ReadAnswer:
        start, end = self.offsets[first - self.first], self.offsets[first + count - self.first]
        return ReadAnswer(first + count - 1, [self.data[start:end]], count, end - start, count)


class ReadAhead:
    """Of all queues of the shard."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._held: OrderedDict[int, _Records] = OrderedDict()  # by topic, the latest used at the end
        self._next: dict[int, int] = {}  # by topic: behind the seqs that were taken last

    def fetch(self, topic: Topic, first: int, count: int, max_bytes: int) -> ReadAnswer:
        """These neighbouring records, as many as fit but at least one."""
        if first > topic.seqs.stored:
            return _of_tail(topic, first, count, max_bytes) or self._read_now(topic, first, count, max_bytes)
        if count > FEW:
            return self._read_now(topic, first, count, max_bytes)
        held = self._held.get(topic.id)
        in_order, self._next[topic.id] = self._next.get(topic.id) == first, first + count
        if held is None or not held.has(first, count):
            held = self._read(topic, first) if in_order else None
            if held is None or not held.has(first, count):
                return self._read_now(topic, first, count, max_bytes)
        found = held.answer(first, count)
        return found if found.bytes <= max_bytes or count == 1 else held.answer(first, 1)

    def one(self, topic: Topic, seq: int) -> Buffer | None:
        """The frame of this record, where that takes no looking; None: `fetch` knows every case."""
        if seq > topic.seqs.stored:
            found = _of_tail(topic, seq, 1, BYTES)
            return None if found is None else found.parts[0]
        held = self._held.get(topic.id)
        if held is None or self._next.get(topic.id) != seq or not held.has(seq, 1):
            return None
        self._next[topic.id] = seq + 1
        return held.frame(seq)

    def _read_now(self, topic: Topic, first: int, count: int, max_bytes: int) -> ReadAnswer:
        return self._reader.fetch(topic, first - 1, count, max_bytes, NO_FILTER)

    def _read(self, topic: Topic, first: int) -> _Records | None:
        """What follows, up to the next gap."""
        found = self._reader.fetch(topic, first - 1, RECORDS, BYTES, NO_FILTER)
        if not found.parts or seq_at(found.parts[0], 0) != first:
            return None
        records = _Records(first, memoryview(b"".join(found.parts) if len(found.parts) > 1 else found.parts[0]))
        if not records.together:
            records = _Records(first, memoryview(found.parts[0]))
        if not records.together:
            return None
        self._held[topic.id] = records
        self._held.move_to_end(topic.id)
        while len(self._held) > QUEUES:
            self.forget(next(iter(self._held)))
        return records

    def forget(self, topic_id: int) -> None:
        self._held.pop(topic_id, None)
        self._next.pop(topic_id, None)


def _of_tail(topic: Topic, first: int, count: int, max_bytes: int) -> ReadAnswer | None:
    """These records from memory, where they lie together; None: ask the reader, who knows every case."""
    contents, last = topic.contents, first + count - 1
    if topic.config.ttl_ms or contents.damaged or len(contents.lost) or len(topic.inflows.trimmed):
        return None
    blob = contents.tail.blob_of(first)
    if blob is None or last > blob.last_seq or last > topic.seqs.visible or first < topic.floors.earliest:
        return None
    if len(contents.tail_dead) and contents.tail_dead.touches(first, last):
        return None
    start, end = blob.offset_of(first), blob.offset_of(last + 1)
    if end - start > max_bytes:
        return None
    return ReadAnswer(last, [memoryview(blob.data)[start:end]], count, end - start, count)
