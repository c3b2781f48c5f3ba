"""Compression of sealed segments. Promise: at every moment a segment can be opened under one of its two names; a packed
file has its name only when all of it is on the disk; who has the plain file open reads on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from topicd.disk.fs import Fs
from topicd.filechannel.collector import Collector
from topicd.filechannel.layout import HEADER_BYTES, PACKING_SUFFIX, Header, segment_path
from topicd.filechannel.packed import BLOCK_BYTES, pack_blocks
from topicd.filechannel.segment import HeaderDamaged, SegmentReader, open_segment
from topicd.filechannel.survey import Segment

NEWEST_PLAIN = 1  # so many sealed segments stay plain, beside the one that is written: receivers are there most


def candidates(collector: Collector, keep: int = NEWEST_PLAIN) -> list[Segment]:
    sealed = collector.sealed
    return [segment for segment in sealed[: max(len(sealed) - keep, 0)] if not segment.packed]


def compress(
    fs: Fs, directory: Path, collector: Collector, segment: Segment, advance: Callable[[int], None] = lambda size: None
) -> bool:
    """False: it went meanwhile, or cannot be read whole and stays as it is."""
    try:
        reader = open_segment(fs, directory, segment.segment_id)
    except (FileNotFoundError, HeaderDamaged):
        return False
    packing = segment_path(directory, segment.segment_id, PACKING_SUFFIX)
    try:
        if reader.is_packed or reader.end() < segment.end:
            return False
        size = _write(fs, packing, reader, segment, advance)
        if collector.exchange(segment, packing, size):
            return True
    finally:
        reader.close()
        with suppress(OSError):
            fs.unlink(packing, missing_ok=True)
    return False


def _write(fs: Fs, packing: Path, reader: SegmentReader, segment: Segment, advance: Callable[[int], None]) -> int:
    header = Header(segment.segment_id, segment.begin, segment.end, segment.synced, reader.header.channel_id)
    file = fs.open(packing, write=True, create=True)
    try:
        file.truncate(0)
        file.pwrite([header.pack()], 0)
        position = HEADER_BYTES
        for block in pack_blocks(_blocks(reader, segment, advance)):
            file.pwrite([block], position)
            position += len(block)
        file.sync()
    finally:
        file.close()
    return position


def _blocks(reader: SegmentReader, segment: Segment, advance: Callable[[int], None]) -> Iterator[bytes]:
    offset = segment.begin
    while offset < segment.end:
        block = reader.read_exactly(offset, min(BLOCK_BYTES, segment.end - offset))
        yield block
        offset += len(block)
        advance(len(block))
