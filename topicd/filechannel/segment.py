"""Reading one segment, plain or compressed, through a descriptor of its own. Promise: once open it can be read to its
end, whatever happens to its name.

The plain name is tried first: compression puts the packed file in place before it takes the plain one away, so who
finds neither has looked for a segment that was collected.
"""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path

from topicd._native.channel import core
from topicd.disk.fs import File, Fs
from topicd.filechannel.layout import (
    HEADER_BYTES,
    MAX_MESSAGE,
    MESSAGE_HEAD,
    PACKED_SUFFIX,
    Header,
    Span,
    segment_path,
    unpack_header,
)
from topicd.filechannel.packed import Block, PackedDamage, read_block, read_index


class HeaderDamaged(Exception):
    """The first 64 bytes are no header of that segment."""


class SegmentReader:
    """Not for several threads at once."""

    def __init__(self, file: File, header: Header, path: Path) -> None:
        self._file = file
        self.header = header
        self.path = path
        self.begin = header.begin
        self._end = header.end
        self._blocks: list[Block] | None = None
        self._block: tuple[Block, bytes] | None = None

    @property
    def is_packed(self) -> bool:
        return self._end is not None

    def end(self) -> int:
        """Behind the last byte that is in the file now: of the segment that is written it may be half a message."""
        if self._end is not None:
            return self._end
        return self.begin + max(self._file.size() - HEADER_BYTES, 0)

    def read(self, offset: int, size: int) -> bytes:
        """Up to size bytes; fewer at the end of the segment, and of a packed one at the end of a block."""
        if self._end is None:
            return self._file.pread(size, offset - self.begin + HEADER_BYTES)
        block, plain = self._block_at(offset)
        at = offset - block.begin
        return plain[at : at + size]

    def read_exactly(self, offset: int, size: int) -> bytes:
        """Less only if the segment has less."""
        parts = [self.read(offset, size)]
        got = len(parts[0])
        while got < size and offset + got < self.end():
            part = self.read(offset + got, size - got)
            if not part:
                break
            parts.append(part)
            got += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _block_at(self, offset: int) -> tuple[Block, bytes]:
        if self._block is not None and self._block[0].begin <= offset < self._block[0].begin + self._block[0].plain:
            return self._block
        if self._blocks is None:
            self._blocks = read_index(self._file, self.header)
        number = bisect_right(self._blocks, offset, key=lambda block: block.begin) - 1
        if number < 0 or offset >= self._blocks[number].begin + self._blocks[number].plain:
            raise PackedDamage(Span(offset, self.end()), "the compressed file ends early")
        block = self._blocks[number]
        self._block = block, read_block(self._file, block)
        return self._block

    def next_good(self, offset: int, limit: int) -> int:
        """Behind a message at offset that cannot be read: where the next good one begins, or limit."""
        data = self._readable(offset, limit)
        return offset + next_good(data, 0, len(data)) if data else limit

    def _readable(self, offset: int, limit: int) -> bytes:
        try:
            return self.read_exactly(offset, limit - offset)
        except PackedDamage:
            return b""

    def close(self) -> None:
        self._file.close()


def next_good(view: bytes | memoryview, at: int, end: int) -> int:
    """The length may be right where the payload is not; else every byte is tried."""
    if end - at >= MESSAGE_HEAD:
        behind = at + MESSAGE_HEAD + int.from_bytes(view[at : at + 4], "big")
        if behind < end and core.scan_messages(view, behind, end, MAX_MESSAGE)[0]:
            return behind
        if behind == end:
            return end
    return core.find_message(view, min(at + 1, end), end, MAX_MESSAGE)


def open_segment(fs: Fs, directory: Path, segment_id: int) -> SegmentReader:
    """FileNotFoundError if it was collected; HeaderDamaged if it is not what its name says."""
    path = segment_path(directory, segment_id)
    try:
        file = fs.open(path)
    except FileNotFoundError:
        path = segment_path(directory, segment_id, PACKED_SUFFIX)
        file = fs.open(path)
    header = unpack_header(file.pread(HEADER_BYTES, 0), packed=path.suffix == PACKED_SUFFIX)
    if header is None or header.segment_id != segment_id:
        file.close()
        raise HeaderDamaged(f"{path}: the header is damaged")
    return SegmentReader(file, header, path)
