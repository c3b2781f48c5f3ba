"""The pure-Python twin of the C core: the reference in differential tests, the fallback without a compiler.

Promise: same results and same ValueError(code, message) as the C core. Three things it cannot give: a
store-load fence (store_fence and fence_load only store and load, so whoever sleeps must poll with a timeout),
ordering on machines weaker than x86-64, and a check that the memory itself (not the offset) is aligned.
"""

from __future__ import annotations

import xxhash

from topicd._native.interface import Buffer
from topicd._native.pure_frame import U64_MAX, open_buffer, open_span, refuse, u64
from topicd._native.pure_read import (
    columns,
    decode_frames,
    frame_offsets,
    frame_tags,
    index_entries,
    payloads,
    scan_frames,
    select_frames,
)
from topicd._native.pure_runs import run_answers, take_run
from topicd._native.pure_write import copy_frames, encode_batch, encode_columns, stamp_copies, stamp_frames

__all__ = [
    "columns",
    "copy_frames",
    "decode_frames",
    "encode_batch",
    "encode_columns",
    "fence_load",
    "frame_offsets",
    "frame_tags",
    "index_entries",
    "load",
    "name",
    "payloads",
    "ring_write",
    "run_answers",
    "scan_frames",
    "select_frames",
    "stamp_copies",
    "stamp_frames",
    "store",
    "store_fence",
    "take_run",
    "xxh3_64",
]

name = "pure"


def _word(memory: Buffer, offset: int, writable: bool) -> memoryview:
    view = open_buffer(memory, writable)
    u64(offset, "offset")
    if len(view) < 8 or offset > len(view) - 8 or offset % 8:
        refuse("invalid_request", f"no aligned word at offset {offset} of {len(view)} bytes")
    # One element of a cast view is one 8-byte access; struct.pack_into would show readers a zero in between.
    return view[offset : offset + 8].cast("Q")


def load(memory: Buffer, offset: int, /) -> int:
    value: int = _word(memory, offset, False)[0]
    return value


def store(memory: Buffer, offset: int, value: int, /) -> None:
    word = _word(memory, offset, True)
    word[0] = u64(value, "value")


def store_fence(memory: Buffer, offset: int, value: int, /) -> None:
    store(memory, offset, value)


def fence_load(memory: Buffer, offset: int, /) -> int:
    return load(memory, offset)


def ring_write(memory: Buffer, body_at: int, capacity: int, head: int, data: Buffer, start: int, end: int, /) -> int:
    ring = open_buffer(memory, writable=True)
    u64(body_at, "body_at")
    u64(capacity, "capacity")
    u64(head, "head")
    source = open_span(data, start, end)
    size = end - start
    if capacity == 0 or body_at + capacity > len(ring):
        refuse(
            "invalid_request",
            f"a ring of {capacity} bytes at {body_at} is outside a memory of {len(ring)} bytes",
        )
    if size > capacity:
        refuse("invalid_request", f"{size} bytes exceed a ring of {capacity}")
    if head + size > U64_MAX:
        refuse("invalid_request", f"head {head} would overflow")
    at = body_at + head % capacity
    first = min(size, body_at + capacity - at)
    ring[at : at + first] = source[start : start + first]
    ring[body_at : body_at + size - first] = source[start + first : end]
    return head + size


def xxh3_64(data: Buffer, seed: int = 0, /) -> int:
    return xxhash.xxh3_64_intdigest(open_buffer(data), u64(seed, "seed"))
