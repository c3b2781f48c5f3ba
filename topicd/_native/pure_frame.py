"""What the files of the pure twin share: argument checks, refusals, reading a frame without trusting it."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NoReturn

import xxhash

from topicd._native.interface import Buffer
from topicd.limits import FRAME_CHECKSUM, FRAME_HEADER, FRAME_OVERHEAD

# frame_len, type, flags, topic_id, seq, ts, node_len, (hops), tag_len, data_len: drawn in topicd.frames.
HEADER = struct.Struct("<IBBQQQBxHI")
HOPS_AT = 31
U16 = struct.Struct("<H")
U64 = struct.Struct("<Q")
LEN_FIELD = struct.calcsize("<I")
MIN_FRAME_LEN = FRAME_OVERHEAD - LEN_FIELD

APPEND, PRODUCER = 1, 14
LAST_TYPE = 63
FLAG_TAG, FLAG_NODE, FLAG_DURABLE, FLAG_MORE, FLAG_META, FLAGS_KNOWN = 1, 2, 4, 8, 16, 31
U32_MAX = 2**32 - 1
U64_MAX = 2**64 - 1

# (offset, size, type, flags, topic_id, seq, ts, node_len, tag_len, data_len); a plain tuple for speed.
Frame = tuple[int, int, int, int, int, int, int, int, int, int]


class BadFrame(Exception):
    """Why bytes are not a frame, before it is known whether that is the client's fault or the disk's."""

    def __init__(self, problem: str, text: str) -> None:
        super().__init__(text)
        self.problem = problem  # as in interface.Scan
        self.text = text


# ---- arguments and refusals ----


def refuse(code: str, message: str) -> NoReturn:
    raise ValueError(code, message)


def u64(value: int, what: str) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{what} must be an integer, not {type(value).__name__}")
    if not 0 <= value <= U64_MAX:
        refuse("invalid_request", f"{what} is outside 0 to {U64_MAX}")
    return value


def open_buffer(buffer: Buffer, writable: bool = False) -> memoryview:
    view = memoryview(buffer)
    if view.format != "B" or view.ndim != 1:
        view = view.cast("B")
    if writable and view.readonly:
        refuse("invalid_request", "the buffer is read-only")
    return view


def open_span(buffer: Buffer, start: int, end: int, writable: bool = False) -> memoryview:
    view = open_buffer(buffer, writable)
    u64(start, "start")
    u64(end, "end")
    if start > end or end > len(view):
        refuse("invalid_request", f"range {start} to {end} is outside a buffer of {len(view)} bytes")
    return view


# ---- frames ----


def checksum(view: memoryview, pos: int, size: int) -> int:
    return xxhash.xxh3_64_intdigest(view[pos + LEN_FIELD : pos + size - FRAME_CHECKSUM])


def parse(view: memoryview, pos: int, end: int) -> Frame:
    """The frame at pos, believing nothing; raises BadFrame unless every part lies before end."""
    left = end - pos
    if left < FRAME_HEADER:
        raise BadFrame("torn", f"{left} bytes remain, a frame has at least {FRAME_OVERHEAD}")
    frame_len, kind, flags, topic_id, seq, ts, node, tag, data = HEADER.unpack_from(view, pos)
    size = LEN_FIELD + frame_len
    if FRAME_OVERHEAD + node + tag + data == size <= left:
        return pos, size, kind, flags, topic_id, seq, ts, node, tag, data
    if size < FRAME_OVERHEAD:
        raise BadFrame("layout", f"frame_len is {frame_len}, at least {MIN_FRAME_LEN} is needed")
    if size > left:
        raise BadFrame("torn", f"a frame of {size} bytes overruns the {left} that remain")
    raise BadFrame("layout", f"node {node}, tag {tag} and data {data} bytes do not make a frame of {size}")


def trusted(view: memoryview, start: int, end: int) -> Iterator[Frame]:
    """Frames of any type; a bad one is the fault of what was stored."""
    pos = start
    while pos < end:
        try:
            frame = parse(view, pos, end)
        except BadFrame as bad:
            raise ValueError("format_error", f"frame at offset {pos}: {bad.text}") from None
        yield frame
        pos += frame[1]


def split_body(view: memoryview, frame: Frame) -> tuple[int | None, int] | None:
    """(where meta begins or None, where the payload begins); None if data is too short for its meta."""
    pos, _, _, flags, _, _, _, node, tag, data_len = frame
    data_at = pos + FRAME_HEADER + node + tag
    if not flags & FLAG_META:
        return None, data_at
    if data_len < 2:
        return None
    (meta_len,) = U16.unpack_from(view, data_at)
    if meta_len > data_len - 2:
        return None
    return data_at + 2, data_at + 2 + meta_len


def pack_all(code: str, values: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(values)}{code}", *values)
