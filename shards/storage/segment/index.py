"""`.idx`: where each record lies. Promise: entry of a seq = (seq - first) * 20; the entries tile the data.

Tiling: an entry starts where the one before ends, the first at 0. That holds for records that are gone
(rewritten away: no bytes) and for damaged ones (the first of a damaged stretch carries all its bytes). So a
range of seqs is always one range of bytes, and a half-written index is told from a whole one by itself.
"""

from __future__ import annotations

import struct
import sys
from array import array
from itertools import accumulate
from typing import NamedTuple

from topicd._native.interface import Buffer
from topicd.limits import FRAME_OVERHEAD

ENTRY = struct.Struct(
    "<"  # little-endian, unpadded
    "I"  # offset  of the frame in .data
    "I"  # length  of the whole frame
    "Q"  # ts      server commit ms
    "B"  # flags   of the frame, or one of the two below
    "3x"
)
ENTRY_BYTES = ENTRY.size
_OFFSET = struct.Struct("<I")  # the first field of an entry
FLAGS_AT = struct.calcsize("<IIQ")
# Instead of the frame's flags, never beside them:
GONE = 0x80  # deleted and rewritten away: length 0
DAMAGED = 0x40  # the bytes there are not the record's
_WORDS = ENTRY_BYTES // 4


class IndexEntry(NamedTuple):
    offset: int
    length: int
    ts: int
    flags: int


def entry_at(index: Buffer, number: int) -> IndexEntry:
    return IndexEntry._make(ENTRY.unpack_from(index, number * ENTRY_BYTES))


def offset_at(index: Buffer, number: int) -> int:
    """Where that record begins; where the last one ends, for the number behind it. Quicker than an entry."""
    if number * ENTRY_BYTES < len(index):
        offset: int = _OFFSET.unpack_from(index, number * ENTRY_BYTES)[0]
        return offset
    last = entry_at(index, number - 1)
    return last.offset + last.length


def entry_count(index: Buffer) -> int:
    return len(index) // ENTRY_BYTES


def index_end(index: Buffer) -> int:
    """Offset behind the last record."""
    count = entry_count(index)
    if count == 0:
        return 0
    last = entry_at(index, count - 1)
    return last.offset + last.length


def entries_within(index: Buffer, count: int, data_bytes: int) -> int:
    """How many of the first `count` entries end inside so many bytes of data."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        offset, length, _, _ = entry_at(index, middle)
        if offset + length <= data_bytes:
            low = middle + 1
        else:
            high = middle
    return low


def bytes_of(index: Buffer, first_seq: int, first: int, last: int) -> int:
    """Bytes of the records first..last."""
    if last < first:
        return 0
    start = ENTRY.unpack_from(index, (first - first_seq) * ENTRY_BYTES)[0]
    offset, length, _, _ = ENTRY.unpack_from(index, (last - first_seq) * ENTRY_BYTES)
    return int(offset + length - start)


def gone_entries(at: int, ts: int, count: int) -> bytes:
    return ENTRY.pack(at, 0, ts, GONE) * count


def damaged_entries(start: int, end: int, ts: int, count: int) -> bytes:
    """Entries of `count` records whose bytes, somewhere in start..end, cannot be believed."""
    return ENTRY.pack(start, end - start, ts, DAMAGED) + ENTRY.pack(end, 0, ts, DAMAGED) * (count - 1)


def flagged(index: Buffer, first_seq: int, flag: int) -> list[tuple[int, int]]:
    """Ranges of seqs whose entry is GONE or DAMAGED, whichever is asked for."""
    flags = bytes(index)[FLAGS_AT::ENTRY_BYTES]  # a copy with a stride is slow from anything but bytes
    found: list[tuple[int, int]] = []
    at = flags.find(flag)
    while at >= 0:
        seq = first_seq + at
        if found and found[-1][1] == seq - 1:
            found[-1] = (found[-1][0], seq)
        else:
            found.append((seq, seq))
        at = flags.find(flag, at + 1)
    return found


def tiled_entries(index: Buffer) -> int:
    """How many entries from the start tile the data; the rest was never written whole.

    The last one counted may still be torn inside (its ts or flags): derive it from the data again.
    """
    count = entry_count(index)
    words = array("I", bytes(memoryview(index)[: count * ENTRY_BYTES]))
    if sys.byteorder == "big":
        words.byteswap()
    offsets = words[0::_WORDS].tolist()
    lengths = words[1::_WORDS].tolist()
    expected = list(accumulate(lengths, initial=0))
    if count and min(lengths) >= FRAME_OVERHEAD and expected[:-1] == offsets:
        return count
    flags = bytes(memoryview(index)[FLAGS_AT : count * ENTRY_BYTES : ENTRY_BYTES])
    for number in range(count):
        empty_allowed = flags[number] in {GONE, DAMAGED}
        if offsets[number] != expected[number] or (lengths[number] < FRAME_OVERHEAD and not empty_allowed):
            return number
    return count
