"""Records of this shard's topics as a batch of one of them. Promise: exactly those that were asked for, in order and as
good as a reader gets them; or an error, and nothing is stored.

What is asked for is bounded in bytes and in places to look at, for it is found and copied at one go.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from topicd._native.interface import Buffer
from topicd.errors import BatchTooLarge, Conflict, InvalidRequest
from topicd.frames import continue_batch, core
from topicd.ipc.protocol.wire import COPIED
from topicd.limits import FETCH_BYTES_MAX, MAX_COPY_BYTES, MAX_COPY_RANGES, MAX_SEQ
from topicd.model import is_internal
from topicd.shards.delivery.reading.reading import NO_FILTER

if TYPE_CHECKING:
    from topicd.shards.delivery.actor import Actor


class Range(NamedTuple):
    """So many neighbouring records behind from_seq."""

    topic_id: int
    from_seq: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here


def ranges_of(body: Buffer) -> list[Range]:
    """What a copy asks for, as it was sent."""
    size = len(body)
    if not size or size % COPIED.size:
        raise InvalidRequest(f"a copy names ranges of {COPIED.size} bytes each, not {size} bytes")
    if size // COPIED.size > MAX_COPY_RANGES:
        raise BatchTooLarge(f"a copy has at most {MAX_COPY_RANGES} ranges, this one has {size // COPIED.size}")
    return [Range(*fields) for fields in COPIED.iter_unpack(body)]


class Copied:
    """Where the records lie; valid as long as the turn lasts."""

    def __init__(self, actor: Actor, body: Buffer, count: int) -> None:
        ranges = ranges_of(body)
        found = sum(wanted.count for wanted in ranges)
        if found != count:
            raise InvalidRequest(f"the write says {count} records and its ranges hold {found}")
        self._actor = actor
        self.size = 0
        self._pieces = [self._find(wanted) for wanted in ranges]
        # Each range ended a batch; now only the last one does.
        self._last_frames = [_last_frame(piece[-1]) for piece in self._pieces[:-1]]

    def _find(self, wanted: Range) -> list[Buffer]:
        topic = self._actor.topics.by_id.get(wanted.topic_id)
        at, end = wanted.from_seq, wanted.from_seq + wanted.count
        if not at < end <= MAX_SEQ:
            raise InvalidRequest(f"no range of records: {wanted.count} behind seq {at}")
        parts: list[Buffer] = []
        while at < end:
            answer = None
            if topic is not None and topic.live:
                answer = self._actor.reader.fetch(topic, at, end - at, FETCH_BYTES_MAX, NO_FILTER)
            if answer is None or not answer.count or answer.tombstone or answer.next_from - at != answer.count:
                raise Conflict(
                    f"topic {wanted.topic_id} of this shard has not all records from {wanted.from_seq + 1} to {end}",
                    topic_id=wanted.topic_id,
                    from_seq=wanted.from_seq,
                )
            self.size += answer.bytes
            if self.size > MAX_COPY_BYTES:
                raise BatchTooLarge(f"a copy has at most {MAX_COPY_BYTES} bytes with framing")
            parts += answer.parts
            at = answer.next_from
        if topic is not None and is_internal(topic.name) and end <= topic.stored:
            # A stage is read once, and what is made of it needs as much memory as it has.
            info = topic.segments[bisect_right(topic.segments, end, key=lambda one: one.first_seq) - 1]
            self._actor.segment_reader(topic, info).forget(end)
        return parts

    def put(self, frames: bytearray) -> None:
        """Append them, as one batch."""
        for n, piece in enumerate(self._pieces):
            for part in piece:
                frames += part
            if n < len(self._last_frames):
                continue_batch(frames, len(frames) - self._last_frames[n])


def _last_frame(frames: Buffer) -> int:
    """How many bytes before the end it begins."""
    return len(frames) - memoryview(core.frame_offsets(frames, 0, len(frames))).cast("I")[-1]
