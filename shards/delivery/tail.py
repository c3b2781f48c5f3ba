"""The newest records of a topic, in memory: the very blobs that went to the WAL, until a checkpoint has them.

Promise: blobs are in seq order without holes. Not shared: the actor's thread only.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from topicd._native.interface import Buffer
from topicd.limits import FRAME_OVERHEAD


class Blob:
    """Neighbouring append frames data[start:end] of one topic. Nobody changes them any more."""

    __slots__ = (
        "count",
        "data",
        "end",
        "first_seq",
        "first_ts",
        "last_ts",
        "offsets",
        "outlet",
        "ring_end",
        "start",
    )

    def __init__(
        self,
        data: Buffer,
        start: int,
        end: int,
        first_seq: int,
        offsets: memoryview,
        first_ts: int,
        last_ts: int,
        outlet: int,
        ring_end: int,
    ) -> None:
        self.data = data
        self.start = start
        self.end = end
        self.first_seq = first_seq
        self.count = len(offsets)
        self.offsets = offsets  # u32 of each frame, relative to start
        self.first_ts = first_ts
        self.last_ts = last_ts
        self.outlet = outlet  # which ring it went through
        self.ring_end = ring_end  # and where it ends there

    @property
    def last_seq(self) -> int:
        return self.first_seq + self.count - 1

    @property
    def content_bytes(self) -> int:
        """What counts against caps: everything but the fixed overhead of frames."""
        return self.end - self.start - FRAME_OVERHEAD * self.count

    def offset_of(self, seq: int) -> int:
        """Where the frame of seq begins; seq may be one behind the last."""
        index = seq - self.first_seq
        return self.start + self.offsets[index] if index < self.count else self.end

    def view(self) -> memoryview:
        return memoryview(self.data)[self.start : self.end]


class Tail:
    def __init__(self) -> None:
        self._blobs: list[Blob] = []
        self._firsts: list[int] = []
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._blobs)

    def __iter__(self) -> Iterator[Blob]:
        return iter(self._blobs)

    def append(self, blob: Blob) -> None:
        self._blobs.append(blob)
        self._firsts.append(blob.first_seq)
        self.bytes += blob.end - blob.start

    def first(self) -> Blob | None:
        return self._blobs[0] if self._blobs else None

    def from_seq(self, seq: int) -> Iterator[Blob]:
        """Blobs from the one that holds seq (or the first behind it) on."""
        index = max(0, bisect_right(self._firsts, seq) - 1)
        if index < len(self._blobs) and self._blobs[index].last_seq < seq:
            index += 1
        for i in range(index, len(self._blobs)):
            yield self._blobs[i]

    def up_to(self, limit_bytes: int) -> list[Blob]:
        """The oldest blobs, together at most limit_bytes but at least one."""
        taken: list[Blob] = []
        size = 0
        for blob in self._blobs:
            size += blob.end - blob.start
            if taken and size > limit_bytes:
                break
            taken.append(blob)
        return taken

    def drop_through(self, seq: int) -> None:
        """Forget blobs that end at or before seq."""
        index = 0
        while index < len(self._blobs) and self._blobs[index].last_seq <= seq:
            self.bytes -= self._blobs[index].end - self._blobs[index].start
            index += 1
        del self._blobs[:index]
        del self._firsts[:index]
