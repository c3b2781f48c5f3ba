"""Records of this shard's topics as a batch of one of them. Promise: exactly those that were asked for, in order and as
good as a reader gets them; or an error, and nothing is stored.

What is asked for is bounded in bytes and in places to look at, for it is found and copied at one go.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from topicd._native.interface import Buffer
from topicd.errors import BatchTooLarge, Conflict, InvalidRequest
from topicd.frames import continue_batch, core
from topicd.ipc.protocol.wire import COPIED
from topicd.limits import FETCH_BYTES_MAX, MAX_COPY_BYTES, MAX_COPY_RANGES, MAX_SEQ
from topicd.shards.delivery.reading.filters import NO_FILTER
from topicd.shards.delivery.reading.reading import Reader
from topicd.shards.delivery.reading.segments import Segments
from topicd.shards.delivery.topic.catalog import Catalog
from topicd.words import counted


class CopyRange(NamedTuple):
    """So many neighbouring records behind from_seq."""

    topic_id: int
    from_seq: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here


def ranges_of(body: Buffer) -> list[CopyRange]:
    """What a copy asks for, as it was sent."""
    size = len(body)
    if not size or size % COPIED.size:
        raise InvalidRequest(f"a copy names ranges of {COPIED.size} bytes each, not {size} bytes")
    if size // COPIED.size > MAX_COPY_RANGES:
        raise BatchTooLarge(f"a copy has at most {MAX_COPY_RANGES} ranges, this one has {size // COPIED.size}")
    return [CopyRange(*fields) for fields in COPIED.iter_unpack(body)]


class CopiedRanges:
    """Where the records lie; valid as long as the turn lasts."""

    def __init__(self, pieces: list[list[Buffer]]) -> None:
        self._pieces = pieces
        self.parts = [part for piece in pieces for part in piece]
        self.size = sum(map(len, self.parts))
        # Each range ended a batch; now only the last one does.
        self._last_frames = [_last_frame(piece[-1]) for piece in pieces[:-1]]

    def put(self, frames: bytearray) -> None:
        """Append them, as one batch."""
        for n, piece in enumerate(self._pieces):
            for part in piece:
                frames += part
            if n < len(self._last_frames):
                continue_batch(frames, len(frames) - self._last_frames[n])


class RangeFinder:
    def __init__(self, catalog: Catalog, reader: Reader, segments: Segments) -> None:
        self._catalog = catalog
        self._reader = reader
        self._segments = segments

    def find(self, body: Buffer, count: int) -> CopiedRanges:
        ranges = ranges_of(body)
        found = sum(wanted.count for wanted in ranges)
        if found != count:
            raise InvalidRequest(f"the write says {counted(count, 'record')} and its ranges hold {found}")
        pieces: list[list[Buffer]] = []
        room = MAX_COPY_BYTES
        for wanted in ranges:
            piece = self._piece(wanted, room)
            room -= sum(len(part) for part in piece)
            pieces.append(piece)
        return CopiedRanges(pieces)

    def _piece(self, wanted: CopyRange, room: int) -> list[Buffer]:
        topic = self._catalog.by_id.get(wanted.topic_id)
        at, end = wanted.from_seq, wanted.from_seq + wanted.count
        if not at < end <= MAX_SEQ:
            raise InvalidRequest(f"no range of records: {wanted.count} behind seq {at}")
        parts: list[Buffer] = []
        while at < end:
            answer = None
            if topic is not None and topic.live:
                answer = self._reader.fetch(topic, at, end - at, FETCH_BYTES_MAX, NO_FILTER)
            if answer is None or not answer.count or answer.tombstone or answer.next_from - at != answer.count:
                raise Conflict(
                    f"topic {wanted.topic_id} of this shard has not all records from {wanted.from_seq + 1} to {end}",
                    topic_id=wanted.topic_id,
                    from_seq=wanted.from_seq,
                )
            room -= answer.bytes
            if room < 0:
                raise BatchTooLarge(f"a copy has at most {MAX_COPY_BYTES} bytes with framing")
            parts += answer.parts
            at = answer.next_from
        if topic is not None and topic.policy.internal and end <= topic.seqs.stored:
            # A stage is read once, and what is made of it needs as much memory as it has.
            segments = topic.contents.segments
            info = segments[bisect_right(segments, end, key=lambda one: one.first_seq) - 1]
            self._segments.reader(topic, info).forget(end)
        return parts


def _last_frame(frames: Buffer) -> int:
    """How many bytes before the end it begins."""
    return len(frames) - memoryview(core.frame_offsets(frames, 0, len(frames))).cast("I")[-1]
