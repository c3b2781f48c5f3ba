"""The pure-Python twin of the C core: the reference in differential tests, the fallback without a compiler.

Promise: same results and same ValueError(code, message) as the C core. Three things it cannot give: a
store-load fence (store_fence and fence_load only store and load, so whoever sleeps must poll with a timeout),
ordering on machines weaker than x86-64, and a check that the memory itself (not the offset) is aligned.
"""
# ruff: noqa: PLR0917 (the C functions take no keywords)

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NoReturn

import xxhash

from topicd._native.interface import Buffer, Columns, Decoded, Run, Scan, Selection
from topicd.limits import (
    FRAME_CHECKSUM,
    FRAME_HEADER,
    FRAME_OVERHEAD,
    MAX_BATCH_BYTES,
    MAX_BATCH_RECORDS,
    MAX_DATA_AND_META,
    MAX_META,
    MAX_META_KEYS,
    MAX_NODE,
    MAX_SEQ,
    MAX_TAG,
)

name = "pure"

MAX_META_DEPTH = 16

# frame_len, type, flags, topic_id, seq, ts, node_len, tag_len, data_len: drawn in topicd.frames.
_HEADER = struct.Struct("<IBBQQQHHI")
_STAMP = struct.Struct("<BQQQ")  # flags, topic_id, seq, ts: the part of a header that a shard fills in
_STAMP_AT = struct.calcsize("<IB")
_LEN_FIELD = struct.calcsize("<I")
_MIN_FRAME_LEN = FRAME_OVERHEAD - _LEN_FIELD
_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_INDEX_ENTRY = struct.Struct("<IIQB3x")  # offset, size, ts, flags

_APPEND, _LAST_TYPE = 1, 14
_TAG, _NODE, _DURABLE, _MORE, _META, _KNOWN = 1, 2, 4, 8, 16, 31
_U32_MAX = 2**32 - 1
_U64_MAX = 2**64 - 1
_I32_MAX = 2**31 - 1

# A parsed frame: (offset, size, type, flags, topic_id, seq, ts, node_len, tag_len, data_len).
_Frame = tuple[int, int, int, int, int, int, int, int, int, int]


class _BadFrame(Exception):
    """Why a frame is not one, before it is known whether that is the client's fault or the disk's."""

    def __init__(self, problem: str, text: str) -> None:
        super().__init__(text)
        self.problem = problem
        self.text = text


# ---- arguments and refusals ----


def _refuse(code: str, message: str) -> NoReturn:
    raise ValueError(code, message)


def _u64(value: int, what: str) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{what} must be an integer, not {type(value).__name__}")
    if not 0 <= value <= _U64_MAX:
        _refuse("invalid_request", f"{what} is outside 0 to {_U64_MAX}")
    return value


def _open(buffer: Buffer, writable: bool = False) -> memoryview:
    view = memoryview(buffer).cast("B")
    if writable and view.readonly:
        _refuse("invalid_request", "the buffer is read-only")
    return view


def _span(buffer: Buffer, start: int, end: int, writable: bool = False) -> memoryview:
    view = _open(buffer, writable)
    _u64(start, "start")
    _u64(end, "end")
    if start > end or end > len(view):
        _refuse("invalid_request", f"range {start} to {end} is outside a buffer of {len(view)} bytes")
    return view


# ---- shared words ----


def _word(memory: Buffer, offset: int, writable: bool) -> memoryview:
    view = _open(memory, writable)
    _u64(offset, "offset")
    if len(view) < 8 or offset > len(view) - 8 or offset % 8:
        _refuse("invalid_request", f"no aligned word at offset {offset} of {len(view)} bytes")
    # One element of a cast view is one 8-byte access; struct.pack_into would show readers a zero in between.
    return view[offset : offset + 8].cast("Q")


def load(memory: Buffer, offset: int, /) -> int:
    value: int = _word(memory, offset, False)[0]
    return value


def store(memory: Buffer, offset: int, value: int, /) -> None:
    word = _word(memory, offset, True)
    word[0] = _u64(value, "value")


def store_fence(memory: Buffer, offset: int, value: int, /) -> None:
    store(memory, offset, value)


def fence_load(memory: Buffer, offset: int, /) -> int:
    return load(memory, offset)


def ring_write(
    memory: Buffer, body_at: int, capacity: int, head: int, data: Buffer, start: int, end: int, /
) -> int:
    ring = _open(memory, writable=True)
    _u64(body_at, "body_at")
    _u64(capacity, "capacity")
    _u64(head, "head")
    source = _span(data, start, end)
    size = end - start
    if capacity == 0 or body_at + capacity > len(ring):
        _refuse(
            "invalid_request",
            f"a ring of {capacity} bytes at {body_at} is outside a memory of {len(ring)} bytes",
        )
    if size > capacity:
        _refuse("invalid_request", f"{size} bytes exceed a ring of {capacity}")
    if head + size > _U64_MAX:
        _refuse("invalid_request", f"head {head} would overflow")
    at = body_at + head % capacity
    first = min(size, body_at + capacity - at)
    ring[at : at + first] = source[start : start + first]
    ring[body_at : body_at + size - first] = source[start + first : end]
    return head + size


# ---- checksums ----


def xxh3_64(data: Buffer, seed: int = 0, /) -> int:
    return xxhash.xxh3_64_intdigest(_open(data), _u64(seed, "seed"))


def _checksum(view: memoryview, pos: int, size: int) -> int:
    return xxhash.xxh3_64_intdigest(view[pos + _LEN_FIELD : pos + size - FRAME_CHECKSUM])


# ---- frames ----


def _parse(view: memoryview, pos: int, end: int) -> _Frame:
    """The header at pos, believing nothing; raises _BadFrame unless every part lies before end."""
    left = end - pos
    if left < FRAME_HEADER:
        raise _BadFrame("torn", f"{left} bytes remain, a frame has at least {FRAME_OVERHEAD}")
    frame_len, kind, flags, topic_id, seq, ts, node, tag, data = _HEADER.unpack_from(view, pos)
    size = _LEN_FIELD + frame_len
    if size < FRAME_OVERHEAD:
        raise _BadFrame("layout", f"frame_len is {frame_len}, at least {_MIN_FRAME_LEN} is needed")
    if size > left:
        raise _BadFrame("torn", f"a frame of {size} bytes overruns the {left} that remain")
    if FRAME_OVERHEAD + node + tag + data != size:
        raise _BadFrame(
            "layout", f"node {node}, tag {tag} and data {data} bytes do not make a frame of {size}"
        )
    return pos, size, kind, flags, topic_id, seq, ts, node, tag, data


def _trusted(view: memoryview, start: int, end: int) -> Iterator[_Frame]:
    pos = start
    while pos < end:
        try:
            frame = _parse(view, pos, end)
        except _BadFrame as bad:
            raise ValueError("format_error", f"frame at offset {pos}: {bad.text}") from None
        yield frame
        pos += frame[1]


def _appends(view: memoryview, start: int, end: int) -> Iterator[_Frame]:
    return (frame for frame in _trusted(view, start, end) if frame[2] == _APPEND)


def _body(view: memoryview, data_at: int, data_len: int, flags: int) -> tuple[int | None, int] | None:
    """(where meta begins or None, where the payload begins); None if data is too short for its meta."""
    if not flags & _META:
        return None, data_at
    if data_len < 2:
        return None
    (meta_len,) = _U16.unpack_from(view, data_at)
    if meta_len > data_len - 2:
        return None
    return data_at + 2, data_at + 2 + meta_len


def _trusted_body(view: memoryview, frame: _Frame) -> tuple[int | None, int, int]:
    """(where meta begins or None, where the payload begins, where it ends)."""
    pos, size, _, flags, _, _, _, node, tag, data_len = frame
    body = _body(view, pos + FRAME_HEADER + node + tag, data_len, flags)
    if body is None:
        _refuse("format_error", f"frame at offset {pos}: data of {data_len} bytes is too short for its meta")
    return *body, pos + size - FRAME_CHECKSUM


# ---- meta: exactly one msgpack map ----

# Heads with a fixed number of bytes behind them, and heads with a length field: (its width, bytes beside it).
_FIXED = {0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8}
_FIXED |= {0xCC + i: 1 << i for i in range(4)} | {0xD0 + i: 1 << i for i in range(4)}
_FIXED |= {0xD4 + i: 1 + (1 << i) for i in range(5)}
_SIZED = {0xC4 + i: (1 << i, 0) for i in range(3)}  # bin
_SIZED |= {0xC7 + i: (1 << i, 1) for i in range(3)}  # ext
_SIZED |= {0xD9 + i: (1 << i, 0) for i in range(3)}  # str
_ARRAYS, _MAPS = {0xDC: 2, 0xDD: 4}, {0xDE: 2, 0xDF: 4}


class _Cut(Exception):
    """The bytes end inside an item."""


def _count(meta: bytes, at: int, width: int) -> int:
    if at + width > len(meta):
        raise _Cut
    return int.from_bytes(meta[at : at + width], "big")


def _item(meta: bytes, at: int) -> tuple[int, str, int]:
    """(offset behind the head and, for scalars, the value; kind; entries of a container)."""
    if at >= len(meta):
        raise _Cut
    head = meta[at]
    at += 1
    if head <= 0x7F or head >= 0xE0:
        return at, "scalar", 0
    if head <= 0x9F:
        return at, "map" if head <= 0x8F else "array", head & 0x0F
    for kind, heads in (("map", _MAPS), ("array", _ARRAYS)):
        if head in heads:
            return at + heads[head], kind, _count(meta, at, heads[head])
    if head <= 0xBF:
        at += head & 0x1F
    elif head in _FIXED:
        at += _FIXED[head]
    elif head in _SIZED:
        width, beside = _SIZED[head]
        at += width + beside + _count(meta, at, width)
    else:
        return at, "invalid", 0
    if at > len(meta):
        raise _Cut
    return at, "scalar", 0


def _check_map(record: int, meta: bytes) -> None:
    at = 0
    still_open: list[int] = []  # items to come at each depth
    while True:
        try:
            at, kind, count = _item(meta, at)
        except _Cut:
            _refuse("invalid_request", f"record {record}: meta ends inside its msgpack map")
        if kind == "invalid":
            _refuse("invalid_request", f"record {record}: meta holds byte 0xc1, which is not msgpack")
        if not still_open:
            if kind != "map":
                _refuse("invalid_request", f"record {record}: meta is not a msgpack map")
            if count > MAX_META_KEYS:
                _refuse(
                    "record_too_large",
                    f"record {record}: meta has {count} keys, at most {MAX_META_KEYS} are allowed",
                )
        else:
            still_open[-1] -= 1
        if kind != "scalar":
            if len(still_open) == MAX_META_DEPTH:
                _refuse("invalid_request", f"record {record}: meta is nested deeper than {MAX_META_DEPTH}")
            still_open.append(2 * count if kind == "map" else count)
        while len(still_open) > 1 and not still_open[-1]:
            still_open.pop()
        if not still_open[0] and len(still_open) == 1:
            break
    if at != len(meta):
        _refuse("invalid_request", f"record {record}: meta has {len(meta) - at} bytes behind its msgpack map")


# ---- limits of one record, the same for both directions ----


def _check_part(record: int, part: str, size: int, limit: int) -> None:
    if size > limit:
        _refuse("record_too_large", f"record {record}: {part} has {size} bytes, at most {limit} are allowed")


def _check_record(record: int, node: int, tag: int, meta: bytes | None, payload: int) -> None:
    meta_len = len(meta or b"")
    _check_part(record, "node", node, MAX_NODE)
    _check_part(record, "tag", tag, MAX_TAG)
    _check_part(record, "meta", meta_len, MAX_META)
    _check_part(record, "data with meta", payload + meta_len, MAX_DATA_AND_META)
    if meta is not None:
        _check_map(record, meta)


def _refuse_records(found: str) -> NoReturn:
    _refuse("batch_too_large", f"the batch has {found} records, at most {MAX_BATCH_RECORDS} are allowed")


def _check_batch(content: int) -> None:
    if content > MAX_BATCH_BYTES:
        _refuse("batch_too_large", f"the batch has {content} bytes, at most {MAX_BATCH_BYTES} are allowed")


# ---- encode ----


def _column(
    values: Sequence[bytes | None] | bytes | None, what: str, broadcast: bool, records: int
) -> Sequence[bytes | None]:
    if values is None or (broadcast and isinstance(values, bytes)):
        return (values,) * records
    column = tuple(values)
    if len(column) != records:
        _refuse("invalid_request", f"{what}s has {len(column)} values for {records} records")
    return column  # type: ignore[return-value]


def _check_value(record: int, what: str, value: bytes | None) -> int:
    if value is None:
        return 0
    if not isinstance(value, bytes):
        raise TypeError(f"record {record}: {what} must be bytes or None, not {type(value).__name__}")
    if not value:
        _refuse("invalid_request", f"record {record}: empty {what}")
    return len(value)


def encode_batch(
    datas: Sequence[Buffer],
    tags: Sequence[bytes | None] | bytes | None,
    nodes: Sequence[bytes | None] | bytes | None,
    metas: Sequence[bytes | None] | None,
    /,
) -> bytearray:
    datas = tuple(datas)
    records = len(datas)
    all_tags = _column(tags, "tag", True, records)
    all_nodes = _column(nodes, "node", True, records)
    all_metas = _column(metas, "meta", False, records)
    if not records:
        _refuse("invalid_request", "the batch is empty")
    if records > MAX_BATCH_RECORDS:
        _refuse_records(str(records))
    out = bytearray()
    last = records - 1
    for record, (data, tag, node, meta) in enumerate(zip(datas, all_tags, all_nodes, all_metas, strict=True)):
        node_len = _check_value(record, "node", node)
        tag_len = _check_value(record, "tag", tag)
        meta_len = _check_value(record, "meta", meta)
        payload = data if isinstance(data, bytes) else _open(data)
        _check_record(record, node_len, tag_len, meta, len(payload))
        flags = (_TAG if tag else 0) | (_NODE if node else 0) | (_META if meta else 0)
        data_len = len(payload) + (2 + meta_len if meta else 0)
        frame_len = _MIN_FRAME_LEN + node_len + tag_len + data_len
        out += _HEADER.pack(
            frame_len, _APPEND, flags | (_MORE if record < last else 0), 0, 0, 0, node_len, tag_len, data_len
        )
        out += (node or b"") + (tag or b"")
        if meta:
            out += _U16.pack(meta_len) + meta
        out += payload
        out += bytes(FRAME_CHECKSUM)
    _check_batch(len(out) - records * FRAME_OVERHEAD)
    return out


# ---- stamp ----


def _check_flag(record: int, part: str, flag: int, length: int) -> None:
    if bool(flag) != bool(length):
        state = "set" if flag else "clear"
        _refuse(
            "invalid_request",
            f"record {record}: the {part} flag is {state} but the {part} has {length} bytes",
        )


def _check_append(record: int, view: memoryview, frame: _Frame, last: bool) -> None:
    pos, size, kind, flags, _, _, _, node, tag, data_len = frame
    if kind != _APPEND:
        _refuse("invalid_request", f"record {record}: frame type {kind}, only {_APPEND} (append) is allowed")
    if flags & ~_KNOWN:
        _refuse("invalid_request", f"record {record}: flags {flags}, only bits of {_KNOWN} are known")
    _check_flag(record, "node", flags & _NODE, node)
    _check_flag(record, "tag", flags & _TAG, tag)
    body = _body(view, pos + FRAME_HEADER + node + tag, data_len, flags)
    if body is None:
        _refuse("invalid_request", f"record {record}: data of {data_len} bytes is too short for its meta")
    meta_at, payload_at = body
    meta = None
    if meta_at is not None:
        meta = bytes(view[meta_at:payload_at])
        _check_flag(record, "meta", flags & _META, len(meta))
    _check_record(record, node, tag, meta, pos + size - FRAME_CHECKSUM - payload_at)
    if flags & _MORE and last:
        _refuse("invalid_request", f"record {record}: the more flag is set on the last record")
    if not flags & _MORE and not last:
        _refuse("invalid_request", f"record {record}: the more flag is clear but records follow")


def _validate_batch(view: memoryview, start: int, end: int) -> list[tuple[int, int, int]]:
    """(offset, size, flags) of each frame."""
    if start == end:
        _refuse("invalid_request", "the batch is empty")
    if end - start > MAX_BATCH_BYTES + MAX_BATCH_RECORDS * FRAME_OVERHEAD:
        _refuse("batch_too_large", f"a batch of {end - start} bytes with framing exceeds any that is allowed")
    frames: list[tuple[int, int, int]] = []
    pos = start
    while pos < end:
        record = len(frames)
        if record == MAX_BATCH_RECORDS:
            _refuse_records(f"more than {MAX_BATCH_RECORDS}")
        try:
            frame = _parse(view, pos, end)
        except _BadFrame as bad:
            raise ValueError("invalid_request", f"record {record}: {bad.text}") from None
        _check_append(record, view, frame, pos + frame[1] == end)
        frames.append((pos, frame[1], frame[3]))
        pos += frame[1]
    _check_batch(end - start - len(frames) * FRAME_OVERHEAD)
    return frames


def stamp_frames(
    batch: Buffer, start: int, end: int, topic_id: int, first_seq: int, ts: int, durable: bool, /
) -> bytes:
    view = _span(batch, start, end, writable=True)
    _u64(topic_id, "topic_id")
    _u64(first_seq, "first_seq")
    _u64(ts, "ts")
    frames = _validate_batch(view, start, end)
    if first_seq < 1 or first_seq + len(frames) - 1 > MAX_SEQ:
        _refuse("invalid_request", f"seqs from {first_seq} for {len(frames)} records leave 1 to {MAX_SEQ}")
    if ts > MAX_SEQ:
        _refuse("invalid_request", f"ts {ts} is beyond {MAX_SEQ}")
    for seq, (pos, size, flags) in enumerate(frames, first_seq):
        stamped = flags & ~_DURABLE | (_DURABLE if durable else 0)
        _STAMP.pack_into(view, pos + _STAMP_AT, stamped, topic_id, seq, ts)
        _U64.pack_into(view, pos + size - FRAME_CHECKSUM, _checksum(view, pos, size))
    return _pack("I", [pos - start for pos, _, _ in frames])


# ---- scan ----


def _run(frame: _Frame) -> Run:
    pos, _, kind, _, topic_id, seq, ts, *_ = frame
    return Run(pos, pos, kind, topic_id, seq, 0, ts, ts, pos, 0)


def _extends(run: Run, frame: _Frame) -> bool:
    return (
        run.type == frame[2] == _APPEND and run.topic_id == frame[4] and run.first_seq + run.count == frame[5]
    )


def _extended(run: Run, frame: _Frame) -> Run:
    end, count = frame[0] + frame[1], run.count + 1
    if frame[3] & _MORE:
        return run._replace(end=end, count=count, last_ts=frame[6])
    return run._replace(end=end, count=count, last_ts=frame[6], whole_end=end, whole_count=count)


def _check_stored(view: memoryview, pos: int, end: int) -> _Frame:
    frame = _parse(view, pos, end)
    size, kind = frame[1], frame[2]
    if not _APPEND <= kind <= _LAST_TYPE:
        raise _BadFrame("layout", f"unknown type {kind}")
    if _U64.unpack_from(view, pos + size - FRAME_CHECKSUM)[0] != _checksum(view, pos, size):
        raise _BadFrame("checksum", "checksum mismatch")
    return frame


def scan_frames(buf: Buffer, start: int, end: int, /) -> Scan:
    view = _span(buf, start, end)
    runs: list[Run] = []
    pos = start
    while pos < end:
        try:
            frame = _check_stored(view, pos, end)
        except _BadFrame as bad:
            return Scan(runs, pos, bad.problem)
        if not runs or not _extends(runs[-1], frame):
            runs.append(_run(frame))
        runs[-1] = _extended(runs[-1], frame)
        pos += frame[1]
    return Scan(runs, pos, "")


# ---- trusted frames ----


def _pack(code: str, values: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(values)}{code}", *values)


def _check_offsets(start: int, end: int, base: int) -> None:
    if base + end - start > _U32_MAX:
        _refuse("invalid_request", f"{end - start} bytes at offset {base} are beyond u32 offsets")


def frame_offsets(buf: Buffer, start: int, end: int, /) -> bytes:
    view = _span(buf, start, end)
    _check_offsets(start, end, 0)
    return _pack("I", [frame[0] - start for frame in _trusted(view, start, end)])


def index_entries(buf: Buffer, start: int, end: int, base: int, /) -> bytes:
    view = _span(buf, start, end)
    _check_offsets(start, end, _u64(base, "base"))
    return b"".join(
        _INDEX_ENTRY.pack(base + frame[0] - start, frame[1], frame[6], frame[3])
        for frame in _appends(view, start, end)
    )


def _node_of(view: memoryview, frame: _Frame) -> bytes | None:
    at = frame[0] + FRAME_HEADER
    return bytes(view[at : at + frame[7]]) if frame[3] & _NODE else None


def _tag_of(view: memoryview, frame: _Frame) -> bytes | None:
    at = frame[0] + FRAME_HEADER + frame[7]
    return bytes(view[at : at + frame[8]]) if frame[3] & _TAG else None


def frame_tags(buf: Buffer, start: int, end: int, /) -> list[tuple[bytes, int]]:
    view = _span(buf, start, end)
    tagged = ((_tag_of(view, frame), frame[5]) for frame in _appends(view, start, end))
    return [(tag, seq) for tag, seq in tagged if tag is not None]


def decode_frames(buf: Buffer, start: int, end: int, /) -> list[Decoded]:
    view = _span(buf, start, end)
    records: list[Decoded] = []
    for frame in _appends(view, start, end):
        meta_at, payload_at, payload_end = _trusted_body(view, frame)
        meta = None if meta_at is None else bytes(view[meta_at:payload_at])
        node, tag = _node_of(view, frame), _tag_of(view, frame)
        records.append((frame[5], frame[6], node, tag, meta, bytes(view[payload_at:payload_end])))
    return records


def payloads(buf: Buffer, start: int, end: int, /) -> list[bytes]:
    view = _span(buf, start, end)
    bodies = (_trusted_body(view, frame) for frame in _appends(view, start, end))
    return [bytes(view[payload_at:payload_end]) for _, payload_at, payload_end in bodies]


def _is_dead(firsts: Sequence[int], lasts: Sequence[int], seq: int) -> bool:
    at = bisect_left(lasts, seq)
    return at < len(lasts) and firsts[at] <= seq


def _check_bytes(value: bytes | None, what: str) -> None:
    if value is not None and not isinstance(value, bytes):
        raise TypeError(f"{what} must be bytes or None, not {type(value).__name__}")


def _check_filter(
    after_seq: int,
    up_to_seq: int,
    limit: int,
    max_bytes: int,
    min_ts: int,
    tag_eq: bytes | None,
    tag_prefix: bytes | None,
    nodes: Sequence[bytes],
    dead: bytes,
) -> tuple[frozenset[bytes], Sequence[int], Sequence[int]]:
    """Nodes as a set, firsts and lasts of dead."""
    _u64(after_seq, "after_seq")
    _u64(up_to_seq, "up_to_seq")
    _u64(limit, "limit")
    _u64(max_bytes, "max_bytes")
    _u64(min_ts, "min_ts")
    _check_bytes(tag_eq, "tag_eq")
    _check_bytes(tag_prefix, "tag_prefix")
    if not all(isinstance(node, bytes) for node in nodes):
        raise TypeError("nodes must be bytes")
    pairs = _open(dead)
    if len(pairs) % 16:
        _refuse("invalid_request", f"dead has {len(pairs)} bytes, not a multiple of 16")
    words = struct.unpack(f"<{len(pairs) // 8}Q", pairs)
    return frozenset(nodes), words[::2], words[1::2]


def select_frames(
    buf: Buffer,
    start: int,
    end: int,
    after_seq: int,
    up_to_seq: int,
    limit: int,
    max_bytes: int,
    min_ts: int,
    tag_eq: bytes | None,
    tag_prefix: bytes | None,
    nodes: Sequence[bytes],
    dead: bytes,
    /,
) -> Selection:
    view = _span(buf, start, end)
    own, firsts, lasts = _check_filter(
        after_seq, up_to_seq, limit, max_bytes, min_ts, tag_eq, tag_prefix, nodes, dead
    )
    ranges: list[tuple[int, int]] = []
    count = size_sum = last_seq = examined = 0
    stopped = start

    def passes(frame: _Frame) -> bool:
        if frame[6] < min_ts:
            return False
        if tag_eq is not None or tag_prefix is not None:
            tag = _tag_of(view, frame)
            if (
                tag is None
                or tag != (tag if tag_eq is None else tag_eq)
                or not tag.startswith(tag_prefix or b"")
            ):
                return False
        if own and _node_of(view, frame) in own:
            return False
        return not (lasts and _is_dead(firsts, lasts, frame[5]))

    for frame in _trusted(view, start, end):
        pos, size, kind, _, _, seq, *_ = frame
        if kind == _APPEND and seq > after_seq:
            if seq > up_to_seq:
                break  # seqs ascend
            if passes(frame):
                if count and (count >= limit or size_sum + size > max_bytes):
                    break
                if ranges and ranges[-1][1] == pos:
                    ranges[-1] = (ranges[-1][0], pos + size)
                else:
                    ranges.append((pos, pos + size))
                count += 1
                size_sum += size
            last_seq = seq
            examined += 1
        stopped = pos + size
    return Selection(ranges, count, last_seq, examined, stopped)


def _validity(values: Sequence[bytes | None]) -> bytes:
    bits = bytearray((len(values) + 7) // 8)
    for row, value in enumerate(values):
        if value is not None:
            bits[row // 8] |= 1 << row % 8
    return bytes(bits)


def _packed(values: Sequence[bytes | None]) -> tuple[bytes, bytes]:
    """(int32 offsets, joined bytes)."""
    ends = list(accumulate((len(value or b"") for value in values), initial=0))
    if ends[-1] > _I32_MAX:
        _refuse("invalid_request", f"a column of {ends[-1]} bytes is beyond int32 offsets")
    return _pack("i", ends), b"".join(value or b"" for value in values)


def columns(buf: Buffer, start: int, end: int, /) -> Columns:
    records = decode_frames(buf, start, end)
    seqs, times, nodes, tags, metas, datas = zip(*records, strict=True) if records else ((),) * 6
    return Columns(
        len(records),
        _pack("Q", seqs),
        _pack("Q", times),
        *_packed(datas),
        *_packed(tags),
        _validity(tags),
        *_packed(nodes),
        _validity(nodes),
        *_packed(metas),
        _validity(metas),
    )
