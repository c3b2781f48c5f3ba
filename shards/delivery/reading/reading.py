"""Reads: from a cursor to raw frame ranges, over segments and tail alike. Promise: nothing deleted, expired,
excluded or damaged is ever handed out; what cap or TTL took is reported by one tombstone; next_from_seq is the
last seq examined.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import NamedTuple

from topicd._native.interface import Buffer
from topicd.errors import StorageCorrupt
from topicd.frames import FrameType, core, without_data
from topicd.ipc.protocol.selecting import select
from topicd.limits import FETCH_BYTES_MAX, FETCH_RECORDS_MAX, KIB
from topicd.model import GapReason, Tombstone
from topicd.shards.delivery.damage import DamageLog
from topicd.shards.delivery.place import Place
from topicd.shards.delivery.reading.elsewhere import NotNow, StillComing
from topicd.shards.delivery.reading.filters import ReadFilter
from topicd.shards.delivery.reading.live import LiveRecords
from topicd.shards.delivery.reading.segments import Segments
from topicd.shards.delivery.removing.retention import Retention
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.storage.ranges import Ranges
from topicd.shards.storage.segment.info import SegmentInfo

# A filter that matches nothing must not keep the shard from its other work.
_EXAMINE_BYTES = FETCH_BYTES_MAX
# Where few records pass, so many are looked at together.
_FILTERED = 1_024
_FILTERED_BYTES = 256 * KIB
_FEW_BYTES = 256 * KIB  # more of a segment are worth checking its index


@dataclass(slots=True)
class ReadAnswer:
    """What a read has found so far."""

    next_from: int
    parts: list[Buffer] = field(default_factory=list)
    count: int = 0
    bytes: int = 0
    examined: int = 0
    tombstone: Tombstone | None = None
    cold_segments: int = 0  # how many segments of the cold directory were read
    settled: int | None = None  # for a reader of whole commits: what lies above is not one yet


class _Neighbours(NamedTuple):
    """Neighbouring frames data[start:end] of seqs first..last; `dead` are deleted ones among them."""

    data: Buffer
    start: int
    end: int
    first: int
    last: int
    dead: Ranges | None
    frames: int  # fewer than last - first + 1 where a rewrite took dead ones away
    cold: int = 0  # first seq of the segment, if it lies in the cold directory


class _Stored(NamedTuple):
    """Whole frames from a segment up to seq `last`, checked, and how many they are."""

    data: Buffer
    last: int
    frames: int


class Reader:
    def __init__(
        self, place: Place, segments: Segments, live: LiveRecords, retention: Retention, damage: DamageLog
    ) -> None:
        self._clock = place.clock
        self._segments = segments
        self._live = live
        self._retention = retention
        self._damage = damage
        self.delivered = 0  # records that somebody outside was given

    def fetch(self, topic: Topic, from_seq: int, limit: int, max_bytes: int, chosen: ReadFilter) -> ReadAnswer:
        """Records with seq > from_seq, at most limit and max_bytes but at least one if there is one."""
        self._retention.expire(topic)
        answer = ReadAnswer(next_from=from_seq, tombstone=topic.floors.tombstone(from_seq, topic.seqs.visible))
        position = max(from_seq, topic.floors.earliest - 1)
        stop = self._undamaged_until(topic, position)
        if chosen.committed:
            answer.settled = topic.commits.settled(topic.seqs.visible)
            stop = min(stop, answer.settled)
        if len(topic.contents.lost):
            position, stop = self._report_lost(topic, answer, position, stop)
        if len(topic.inflows.trimmed):
            position, stop = self._report_trimmed(topic, answer, position, stop)
        limit = min(max(limit, 1), FETCH_RECORDS_MAX)
        max_bytes = min(max(max_bytes, 1), FETCH_BYTES_MAX)
        nodes = chosen.nodes if topic.config.dedupe_node else ()
        scanned = cold = 0
        while position < stop and answer.count < limit and answer.bytes < max_bytes and scanned < _EXAMINE_BYTES:
            room = max_bytes - answer.bytes
            plain = chosen.match is None and not nodes
            try:
                if plain:
                    chunk = self._neighbours(topic, position + 1, stop, limit - answer.count, room)
                else:
                    wanted = max(limit - answer.count, _FILTERED)
                    chunk = self._neighbours(topic, position + 1, stop, wanted, _FILTERED_BYTES)
            except StorageCorrupt as error:
                self._damage.met(topic.name, error)
                if not scanned:
                    raise
                break  # what was found before the damage is the answer; the next read meets it head-on
            except (StillComing, NotNow):
                if not scanned:
                    raise
                break  # the next read finds it, or waits for it
            if chunk is None:
                position = stop
                break
            if chunk.cold and chunk.cold != cold:
                cold = chunk.cold
                answer.cold_segments += 1
            scanned += chunk.end - chunk.start
            if chunk.dead is None and plain:
                if answer.count and chunk.end - chunk.start > room:
                    break
                self._take(answer, chunk.data, [(chunk.start, chunk.end)], chunk.frames)
                answer.examined += chunk.frames
                position = chunk.last
                continue
            position, full = self._take_selected(answer, chunk, position, stop, limit, max_bytes, chosen, nodes)
            if full:
                break
            position = chunk.last
        answer.next_from = max(position, from_seq)
        if chosen.metadata_only:
            answer.parts = [without_data(part) for part in answer.parts]
            answer.bytes = sum(len(part) for part in answer.parts)
        return answer

    def note_read(self, topic: Topic, records: int = 0) -> None:
        self.delivered += records
        topic.last_read_ms = self._clock.now_ms()

    def start_at(self, topic: Topic, ts: int) -> int:
        """The cursor from which the first live record with that time or later is read."""
        self._retention.expire(topic)
        return self._live.first_from(topic, max(self._live.seq_before(topic, ts) + 1, topic.floors.earliest)) - 1

    def newest(self, topic: Topic, from_seq: int, max_bytes: int) -> ReadAnswer | None:
        """What a follower at the head gets, without the questions that only older records raise. None: ask fetch()."""
        blob = topic.contents.tail.last()
        if blob is None or from_seq + 1 < max(blob.first_seq, topic.floors.earliest) or from_seq >= topic.seqs.visible:
            return None
        if topic.config.ttl_ms or topic.contents.damaged or len(topic.contents.lost) or len(topic.contents.tail_dead):
            return None
        if len(topic.inflows.trimmed):
            return None
        start, end = blob.offset_of(from_seq + 1), blob.end
        if end - start > max_bytes:
            return None
        count = topic.seqs.visible - from_seq
        return ReadAnswer(topic.seqs.visible, [memoryview(blob.data)[start:end]], count, end - start, count)

    # ---- neighbouring frames ----

    def _neighbours(self, topic: Topic, first: int, stop: int, max_records: int, max_bytes: int) -> _Neighbours | None:
        """The next neighbouring frames from `first` on, cut to the budget, at least one frame."""
        if first <= topic.seqs.stored:
            return self._in_segment(topic, first, stop, max_records, max_bytes)
        for blob in topic.contents.tail.from_seq(first):
            first = max(first, blob.first_seq)
            last = min(blob.last_seq, stop, first + max_records - 1)
            if first > last:
                return None
            start, end = blob.offset_of(first), blob.offset_of(last + 1)
            if end - start > max_bytes:
                index = first - blob.first_seq
                fitting = bisect_right(blob.offsets, start - blob.start + max_bytes, index, last - blob.first_seq + 1)
                last = max(first, blob.first_seq + fitting - 2)
                end = blob.offset_of(last + 1)
            dead = topic.contents.tail_dead if topic.contents.tail_dead.within(first, last) else None
            return _Neighbours(blob.data, start, end, first, last, dead, last - first + 1)
        return None

    def _in_segment(self, topic: Topic, first: int, stop: int, max_records: int, max_bytes: int) -> _Neighbours | None:
        segments, stored = topic.contents.segments, topic.seqs.stored
        index = bisect_right(segments, first, key=lambda info: info.first_seq) - 1
        if index < 0 or segments[index].last_seq < first:
            index += 1
        if index >= len(segments):
            return self._neighbours(topic, stored + 1, stop, max_records, max_bytes) if stored < stop else None
        info = segments[index]
        first = max(first, info.first_seq)
        wanted = min(max_records, stop - first + 1)
        found = self._few(topic, info, first, wanted, max_bytes) or self._many(topic, info, first, wanted, max_bytes)
        if found is None:
            return None
        data, last, count = found
        marks = topic.contents.marks.get(info.first_seq)
        dead = marks if marks is not None and marks.within(first, last) else None
        return _Neighbours(data, 0, len(data), first, last, dead, count, info.first_seq if info.lies.cold else 0)

    def _few(self, topic: Topic, info: SegmentInfo, first: int, wanted: int, max_bytes: int) -> _Stored | None:
        """Records whose frames prove that they are the ones asked for, and all of them: then it does not matter that
        nobody vouches for the index that led there. None: they must be looked at closely."""
        if info.dead or min(wanted * (info.data_bytes // info.count), max_bytes) > _FEW_BYTES:
            return None
        try:
            reader = self._segments.glance(topic, info)
            span = reader.locate(first - 1, wanted, max_bytes)
            if span is None or not span.start <= span.end <= info.data_bytes:
                return None
            data = reader.read_span(span)
        except StorageCorrupt:
            return None
        scan = core.scan_frames(data, 0, len(data))
        if scan.problem or len(scan.runs) != 1:
            return None
        run, count = scan.runs[0], span.last_seq - first + 1
        if (run.type, run.topic_id, run.first_seq, run.count) != (FrameType.APPEND, topic.id, first, count):
            return None
        return _Stored(data, span.last_seq, count)

    def _many(self, topic: Topic, info: SegmentInfo, first: int, wanted: int, max_bytes: int) -> _Stored | None:
        span = self._segments.reader(topic, info).locate(first - 1, wanted, max_bytes)
        if span is None:
            return None
        last = span.last_seq
        data, count = self._verified(topic, info, first, last)
        if data is None:
            # The records before the damage are good; the next read meets it head-on.
            last = first + count - 1
            data, count = self._verified(topic, info, first, last)
        return _Stored(data or b"", last, count)

    def _verified(self, topic: Topic, info: SegmentInfo, first: int, last: int) -> tuple[Buffer | None, int]:
        """The frames of first..last and how many there are; (None, n) if damage follows n good seqs.

        Stored bytes are checked each time they are handed out: a flipped bit is an error, never an answer.
        """
        reader = self._segments.reader(topic, info)
        try:
            data = reader.read(first, last)
            scan = core.scan_frames(data, 0, len(data))
            if scan.problem or any(run.topic_id != topic.id for run in scan.runs):
                reader.verify(first, last)
            return data, sum(run.count for run in scan.runs)
        except StorageCorrupt as exc:
            good = int(exc.detail.get("first_seq", first)) - first
            if good > 0:
                return None, good
            exc.detail["topic"] = topic.name
            raise

    @staticmethod
    def _undamaged_until(topic: Topic, position: int) -> int:
        stop = topic.seqs.visible
        for damaged in topic.contents.damaged:
            if damaged.last_seq <= position:
                continue
            if damaged.first_seq <= position + 1:
                raise StorageCorrupt(
                    f"topic {topic.name}: seqs {damaged.first_seq} to {damaged.last_seq} cannot be read "
                    f"({damaged.where}); read on from {damaged.last_seq}",
                    topic=topic.name,
                    segment=damaged.where,
                    first_seq=damaged.first_seq,
                    last_seq=damaged.last_seq,
                )
            stop = min(stop, damaged.first_seq - 1)
        return stop

    @staticmethod
    def _report_lost(topic: Topic, answer: ReadAnswer, position: int, stop: int) -> tuple[int, int]:
        """Seqs that power loss took: the answer ends before them, and the next one begins with the gap."""
        for first, last in topic.contents.lost.within(position + 1, stop):
            if first > position + 1 or answer.tombstone is not None:
                return position, first - 1
            reason = GapReason.POWER_LOSS.value
            about = min(topic.contents.missed_within(first, last), last - first + 1)
            gap = Tombstone(first, last, reason, about, topic.floors.earliest, topic.seqs.visible)
            answer.tombstone, position = gap, last
        return position, stop

    @staticmethod
    def _report_trimmed(topic: Topic, answer: ReadAnswer, position: int, stop: int) -> tuple[int, int]:
        """Seqs that stand for records which were gone before a router could copy them, in the same way."""
        for first, last in topic.inflows.trimmed.within(position + 1, stop):
            if first > position + 1 or answer.tombstone is not None:
                return position, first - 1
            reason = GapReason.SOURCE_TRIM.value
            gap = Tombstone(first, last, reason, last - first + 1, topic.floors.earliest, topic.seqs.visible)
            answer.tombstone, position = gap, last
        return position, stop

    # ---- choosing ----

    @staticmethod
    def _take(answer: ReadAnswer, data: Buffer, ranges: list[tuple[int, int]], count: int) -> None:
        whole = len(data)
        for start, end in ranges:
            answer.parts.append(data if (start, end) == (0, whole) else memoryview(data)[start:end])
            answer.bytes += end - start
        answer.count += count

    def _take_selected(
        self,
        answer: ReadAnswer,
        chunk: _Neighbours,
        position: int,
        stop: int,
        limit: int,
        max_bytes: int,
        chosen: ReadFilter,
        nodes: tuple[bytes, ...],
    ) -> tuple[int, bool]:
        """The last seq examined, and whether the next record that passes does not fit any more."""
        room = max_bytes - answer.bytes
        found = select(
            chunk.data,
            chunk.start,
            chunk.end,
            after_seq=position,
            up_to_seq=stop,
            limit=limit - answer.count,
            max_bytes=room,
            match=chosen.match,
            without_nodes=nodes,
            dead=chunk.dead.packed() if chunk.dead is not None else b"",
        )
        chosen_bytes = sum(end - start for start, end in found.ranges)
        if answer.count and chosen_bytes > room:
            return position, True
        self._take(answer, chunk.data, found.ranges, found.count)
        answer.examined += found.examined
        return max(position, found.last_seq), found.end < chunk.end
