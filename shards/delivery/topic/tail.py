"""The newest records of a topic, in memory: the very frames that went to the WAL, until a checkpoint has them.

Promise: blobs are in seq order. Frames of small batches are gathered in one open blob, so that a million single
appends are not a million objects. Not shared: the shard's own thread only; checkpoint threads read frames that nobody
changes any more.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence

from topicd._native.interface import Buffer
from topicd.limits import FRAME_OVERHEAD, KIB

_ARENA_BYTES = 256 * KIB
_SMALL = 16 * KIB  # a batch below this is copied into the open blob
_FIRST_ARENA = 4 * KIB


class Blob:
    """Neighbouring append frames data[start:end] of one topic. Frames that are in it never change."""

    __slots__ = ("data", "end", "first_seq", "first_ts", "last_ts", "offsets", "start")

    def __init__(
        self, data: Buffer, start: int, end: int, first_seq: int, offsets: Sequence[int], first_ts: int, last_ts: int
    ) -> None:
        self.data = data
        self.start = start
        self.end = end
        self.first_seq = first_seq
        self.offsets = offsets  # of each frame, relative to start
        self.first_ts = first_ts
        self.last_ts = last_ts

    @property
    def count(self) -> int:
        return len(self.offsets)

    @property
    def last_seq(self) -> int:
        return self.first_seq + len(self.offsets) - 1

    def offset_of(self, seq: int) -> int:
        """Where the frame of seq begins; seq may be one behind the last."""
        index = seq - self.first_seq
        return self.start + self.offsets[index] if index < len(self.offsets) else self.end

    def view(self) -> memoryview:
        return memoryview(self.data)[self.start : self.end]

    def content_of(self, first: int, last: int) -> int:
        """Of some of its records, as content_bytes."""
        return self.offset_of(last + 1) - self.offset_of(first) - FRAME_OVERHEAD * (last - first + 1)

    def content_bytes(self) -> int:
        """What counts against caps: everything but the fixed overhead of frames."""
        return self.end - self.start - FRAME_OVERHEAD * len(self.offsets)


class Tail:
    def __init__(self) -> None:
        self._blobs: list[Blob] = []
        self._firsts: list[int] = []
        self._open: Blob | None = None
        self._arena: bytearray = bytearray()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._blobs)

    def __iter__(self) -> Iterator[Blob]:
        return iter(self._blobs)

    def append(self, blob: Blob) -> None:
        """Take the next records. Small ones are copied to the open blob, large ones stay where they are."""
        size = blob.end - blob.start
        self.bytes += size
        if size >= _SMALL:
            self._open = None
            self._add(blob)
            return
        into = self._open
        if into is None or into.end + size > len(self._arena) or into.last_seq + 1 != blob.first_seq:
            into = self._open_arena(blob, size)
        base = into.end
        self._arena[base : base + size] = (
            blob.data if size == len(blob.data) else memoryview(blob.data)[blob.start : blob.end]
        )
        offsets: array[int] = into.offsets  # type: ignore[assignment]
        if len(blob.offsets) == 1:
            offsets.append(base)
        else:
            offsets.extend([base + offset for offset in blob.offsets])
        into.end = base + size
        into.last_ts = blob.last_ts

    def close_open(self) -> None:
        """What was taken so far is complete; the next records go to another blob."""
        self._open = None

    def last(self) -> Blob | None:
        return self._blobs[-1] if self._blobs else None

    def first(self) -> Blob | None:
        return self._blobs[0] if self._blobs else None

    def blob_of(self, seq: int) -> Blob | None:
        """The one that holds it."""
        index = bisect_right(self._firsts, seq) - 1
        if index < 0:
            return None
        blob = self._blobs[index]
        return blob if seq <= blob.last_seq else None

    def from_seq(self, seq: int) -> Iterator[Blob]:
        """Blobs from the one that holds seq (or the first behind it) on."""
        index = max(0, bisect_right(self._firsts, seq) - 1)
        if index < len(self._blobs) and self._blobs[index].last_seq < seq:
            index += 1
        for i in range(index, len(self._blobs)):
            yield self._blobs[i]

    def drop_through(self, seq: int) -> None:
        """Forget blobs that end at or before seq."""
        index = 0
        while index < len(self._blobs) and self._blobs[index].last_seq <= seq:
            blob = self._blobs[index]
            self.bytes -= blob.end - blob.start
            if blob is self._open:
                self._open = None
            index += 1
        del self._blobs[:index]
        del self._firsts[:index]

    def _open_arena(self, blob: Blob, size: int) -> Blob:
        # Grows with use: ten thousand quiet topics do not hold ten thousand arenas.
        grown = min(_ARENA_BYTES, 4 * len(self._arena)) if self._open is not None else 0
        self._arena = bytearray(max(_FIRST_ARENA, grown, size))
        self._open = Blob(self._arena, 0, 0, blob.first_seq, array("I"), blob.first_ts, blob.last_ts)
        self._add(self._open)
        return self._open

    def _add(self, blob: Blob) -> None:
        self._blobs.append(blob)
        self._firsts.append(blob.first_seq)
