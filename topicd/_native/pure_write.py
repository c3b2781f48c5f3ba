"""Batches on their way in: what a client lays out (encode), what a shard accepts and fills in (twin)."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NoReturn

from topicd._native.interface import Buffer, Values
from topicd._native.pure_frame import (
    APPEND,
    FLAG_DURABLE,
    FLAG_META,
    FLAG_MORE,
    FLAG_NODE,
    FLAG_TAG,
    FLAGS_KNOWN,
    HEADER,
    HOPS_AT,
    LEN_FIELD,
    MIN_FRAME_LEN,
    U16,
    U64,
    BadFrame,
    Frame,
    checksum,
    open_buffer,
    open_span,
    pack_all,
    parse,
    refuse,
    split_body,
    trusted,
    u64,
)
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
    MAX_STAMP,
    MAX_TAG,
)

MAX_META_DEPTH = 16

_STAMP = struct.Struct("<BQQQ")  # flags, topic_id, seq, ts: the part of a header that a shard fills in
_STAMP_AT = struct.calcsize("<IB")
_TS_AT = struct.calcsize("<IBBQQ")
_PAIR = struct.Struct("<ii")  # where a value of a column begins and ends

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
            refuse("invalid_request", f"record {record}: meta ends inside its msgpack map")
        if kind == "invalid":
            refuse("invalid_request", f"record {record}: meta holds byte 0xc1, which is not msgpack")
        if not still_open:
            if kind != "map":
                refuse("invalid_request", f"record {record}: meta is not a msgpack map")
            if count > MAX_META_KEYS:
                refuse(
                    "record_too_large",
                    f"record {record}: meta has {count} keys, at most {MAX_META_KEYS} are allowed",
                )
        else:
            still_open[-1] -= 1
        if kind != "scalar":
            if len(still_open) == MAX_META_DEPTH:
                refuse("invalid_request", f"record {record}: meta is nested deeper than {MAX_META_DEPTH}")
            still_open.append(2 * count if kind == "map" else count)
        while len(still_open) > 1 and not still_open[-1]:
            still_open.pop()
        if not still_open[0] and len(still_open) == 1:
            break
    if at != len(meta):
        refuse("invalid_request", f"record {record}: meta has {len(meta) - at} bytes behind its msgpack map")


# ---- limits of one record, the same for both directions ----


def _check_part(record: int, part: str, size: int, limit: int) -> None:
    if size > limit:
        refuse("record_too_large", f"record {record}: {part} has {size} bytes, at most {limit} are allowed")


def _check_record(record: int, node: int, tag: int, meta: bytes | None, payload: int) -> None:
    meta_len = len(meta or b"")
    _check_part(record, "node", node, MAX_NODE)
    _check_part(record, "tag", tag, MAX_TAG)
    _check_part(record, "meta", meta_len, MAX_META)
    _check_part(record, "data with meta", payload + meta_len, MAX_DATA_AND_META)
    if meta is not None:
        _check_map(record, meta)


def _check_copy(record: int, node: int, tag: int, meta_len: int, payload: int) -> None:
    """What a router has made of a record that was accepted before: its stamp may come on top."""
    _check_part(record, "node", node, MAX_NODE)
    _check_part(record, "tag", tag, MAX_TAG)
    _check_part(record, "meta", meta_len, MAX_META + MAX_STAMP)
    _check_part(record, "data with meta", payload + meta_len, MAX_DATA_AND_META + MAX_STAMP)


def _refuse_records(found: str) -> NoReturn:
    refuse("batch_too_large", f"the batch has {found} records, at most {MAX_BATCH_RECORDS} are allowed")


def _check_batch(content: int) -> None:
    if content > MAX_BATCH_BYTES:
        refuse("batch_too_large", f"the batch has {content} bytes, at most {MAX_BATCH_BYTES} are allowed")


# ---- encode ----


def _column(
    values: Sequence[bytes | None] | bytes | None, what: str, broadcast: bool, records: int
) -> Sequence[bytes | None]:
    if values is None or (broadcast and isinstance(values, bytes)):
        return (values,) * records
    column = tuple(values)
    if len(column) != records:
        refuse("invalid_request", f"{what}s has {len(column)} values for {records} records")
    return column  # type: ignore[return-value]


def _check_value(record: int, what: str, value: bytes | None) -> int:
    if value is None:
        return 0
    if not isinstance(value, bytes):
        raise TypeError(f"record {record}: {what} must be bytes or None, not {type(value).__name__}")
    if not value:
        refuse("invalid_request", f"record {record}: empty {what}")
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
    rows = zip(datas, all_tags, all_nodes, all_metas, strict=True)
    return _lay_out(records, (_row(record, *row) for record, row in enumerate(rows)))


Row = tuple[bytes | None, bytes | None, bytes | None, Buffer]  # node, tag, meta, data


def _row(record: int, data: Buffer, tag: bytes | None, node: bytes | None, meta: bytes | None) -> Row:
    _check_value(record, "node", node)
    _check_value(record, "tag", tag)
    _check_value(record, "meta", meta)
    return node, tag, meta, data if isinstance(data, bytes) else open_buffer(data)


def _lay_out(records: int, rows: Iterable[Row]) -> bytearray:
    if not records:
        refuse("invalid_request", "the batch is empty")
    if records > MAX_BATCH_RECORDS:
        _refuse_records(str(records))
    out = bytearray()
    last = records - 1
    for record, (node, tag, meta, payload) in enumerate(rows):
        node_len, tag_len, meta_len = len(node or b""), len(tag or b""), len(meta or b"")
        _check_record(record, node_len, tag_len, meta, len(payload))
        flags = (FLAG_TAG if tag else 0) | (FLAG_NODE if node else 0) | (FLAG_META if meta else 0)
        data_len = len(payload) + (2 + meta_len if meta else 0)
        frame_len = MIN_FRAME_LEN + node_len + tag_len + data_len
        out += HEADER.pack(
            frame_len,
            APPEND,
            flags | (FLAG_MORE if record < last else 0),
            0,
            0,
            0,
            node_len,
            tag_len,
            data_len,
        )
        out += (node or b"") + (tag or b"")
        if meta:
            out += U16.pack(meta_len) + meta
        out += payload
        out += bytes(FRAME_CHECKSUM)
    _check_batch(len(out) - records * FRAME_OVERHEAD)
    return out


# ---- encode from Arrow columns ----


class _Arrow:
    """One column: absent, one value for all, or values by offsets."""

    def __init__(self, value: Values | bytes | None, name: str, broadcast: bool, rows: int) -> None:
        self.name = name
        self.all = value if broadcast and isinstance(value, bytes) else None
        self.offsets: memoryview | None = None
        if value is None or self.all is not None:
            return
        if not isinstance(value, tuple) or len(value) != 4:
            raise TypeError(f"{name} must be (valid, offsets, bytes, first)")
        self.valid = None if value[0] is None else open_buffer(value[0])
        self.offsets = open_buffer(value[1])
        self.bytes = open_buffer(value[2])
        self.first = u64(value[3], "first")
        end = self.first + rows
        short = self.valid is not None and len(self.valid) * 8 < end
        if self.first > 0xFFFFFFFF or len(self.offsets) // 4 <= end or short:
            refuse("invalid_request", f"{name} has buffers too short for {rows} rows from row {self.first} on")

    def get(self, record: int) -> bytes | None:
        if self.offsets is None:
            return self.all
        row = self.first + record
        if self.valid is not None and not self.valid[row // 8] >> row % 8 & 1:
            return None
        start, end = _PAIR.unpack_from(self.offsets, 4 * row)
        if start < 0 or end < start or end > len(self.bytes):
            where = f"{start} to {end} of {len(self.bytes)} bytes"
            refuse("invalid_request", f"record {record}: {self.name} lies at {where}")
        return bytes(self.bytes[start:end])


def encode_columns(
    count: int, datas: Values, tags: Values | bytes | None, nodes: Values | bytes | None, metas: Values | None, /
) -> bytearray:
    u64(count, "count")
    if count > MAX_BATCH_RECORDS:
        _refuse_records(str(count))
    data = _Arrow(datas, "data", False, count)
    tag = _Arrow(tags, "tag", True, count)
    node = _Arrow(nodes, "node", True, count)
    meta = _Arrow(metas, "meta", False, count)

    def rows() -> Iterator[Row]:
        for record in range(count):
            labels = (node.get(record) or None, tag.get(record) or None, meta.get(record) or None)
            payload = data.get(record)
            if payload is None:
                refuse("invalid_request", f"record {record}: data is null")
            yield (*labels, payload)

    return _lay_out(count, rows())


# ---- stamp ----


def _check_flag(record: int, part: str, flag: int, length: int) -> None:
    if bool(flag) != bool(length):
        state = "set" if flag else "clear"
        refuse(
            "invalid_request",
            f"record {record}: the {part} flag is {state} but the {part} has {length} bytes",
        )


def _check_append(record: int, view: memoryview, frame: Frame, last: bool, copied: bool) -> None:
    pos, size, kind, flags, _, _, _, node, tag, data_len = frame
    if kind != APPEND:
        refuse("invalid_request", f"record {record}: frame type {kind}, only {APPEND} (append) is allowed")
    if flags & ~FLAGS_KNOWN:
        refuse("invalid_request", f"record {record}: flags {flags}, only bits of {FLAGS_KNOWN} are known")
    if view[pos + HOPS_AT] and not copied:
        refuse("invalid_request", f"record {record}: {view[pos + HOPS_AT]} hops, only routers count them")
    _check_flag(record, "node", flags & FLAG_NODE, node)
    _check_flag(record, "tag", flags & FLAG_TAG, tag)
    body = split_body(view, frame)
    if body is None:
        refuse("invalid_request", f"record {record}: data of {data_len} bytes is too short for its meta")
    meta_at, payload_at = body
    meta = None
    if meta_at is not None:
        meta = bytes(view[meta_at:payload_at])
        _check_flag(record, "meta", flags & FLAG_META, len(meta))
    payload = pos + size - FRAME_CHECKSUM - payload_at
    if copied:
        _check_copy(record, node, tag, len(meta or b""), payload)
    else:
        _check_record(record, node, tag, meta, payload)
    if flags & FLAG_MORE and last:
        refuse("invalid_request", f"record {record}: the more flag is set on the last record")
    if not flags & FLAG_MORE and not last:
        refuse("invalid_request", f"record {record}: the more flag is clear but records follow")


def _validate_batch(view: memoryview, start: int, end: int, copied: bool) -> list[tuple[int, int, int]]:
    """(offset, size, flags) of each frame."""
    if start == end:
        refuse("invalid_request", "the batch is empty")
    if end - start > MAX_BATCH_BYTES + MAX_BATCH_RECORDS * FRAME_OVERHEAD:
        refuse("batch_too_large", f"a batch of {end - start} bytes with framing exceeds any that is allowed")
    frames: list[tuple[int, int, int]] = []
    pos = start
    while pos < end:
        record = len(frames)
        if record == MAX_BATCH_RECORDS:
            _refuse_records(f"more than {MAX_BATCH_RECORDS}")
        try:
            frame = parse(view, pos, end)
        except BadFrame as bad:
            raise ValueError("invalid_request", f"record {record}: {bad.text}") from None
        size, flags = frame[1], frame[3]
        last = pos + size == end
        # A record of nothing but data needs no closer look; most are, and the closer look is slow.
        if (
            frame[2] != APPEND
            or flags & ~FLAG_DURABLE != (0 if last else FLAG_MORE)
            or frame[9] != size - FRAME_OVERHEAD
            or frame[9] > MAX_DATA_AND_META
            or view[pos + HOPS_AT]
        ):
            _check_append(record, view, frame, last, copied)
        frames.append((pos, size, flags))
        pos += size
    _check_batch(end - start - len(frames) * FRAME_OVERHEAD)
    return frames


def _checked(
    batch: Buffer, start: int, end: int, topic_id: int, first_seq: int, ts: int, copied: bool
) -> tuple[memoryview, list[tuple[int, int, int]]]:
    view = open_span(batch, start, end, writable=True)
    u64(topic_id, "topic_id")
    u64(first_seq, "first_seq")
    u64(ts, "ts")
    frames = _validate_batch(view, start, end, copied)
    if first_seq < 1 or first_seq + len(frames) - 1 > MAX_SEQ:
        refuse("invalid_request", f"seqs from {first_seq} for {len(frames)} records leave 1 to {MAX_SEQ}")
    if ts > MAX_SEQ:
        refuse("invalid_request", f"ts {ts} is beyond {MAX_SEQ}")
    return view, frames


def stamp_frames(
    batch: Buffer,
    start: int,
    end: int,
    topic_id: int,
    first_seq: int,
    ts: int,
    durable: bool,
    copied: bool = False,
    /,
) -> bytes:
    view, frames = _checked(batch, start, end, topic_id, first_seq, ts, copied)
    durable_flag = FLAG_DURABLE if durable else 0
    for seq, (pos, size, flags) in enumerate(frames, first_seq):
        stamped = flags & ~FLAG_DURABLE | durable_flag
        _STAMP.pack_into(view, pos + _STAMP_AT, stamped, topic_id, seq, ts)
        U64.pack_into(view, pos + size - FRAME_CHECKSUM, checksum(view, pos, size))
    return pack_all("I", [pos - start for pos, _, _ in frames])


# ---- copies ----


def stamp_copies(batch: Buffer, start: int, end: int, topic_id: int, first_seq: int, ts: int, /) -> bytes:
    view, frames = _checked(batch, start, end, topic_id, first_seq, ts, True)
    for seq, (pos, size, flags) in enumerate(frames, first_seq):
        own: int = U64.unpack_from(view, pos + _TS_AT)[0]
        if ts < own <= MAX_SEQ:
            ts = own
        _STAMP.pack_into(view, pos + _STAMP_AT, flags & ~(FLAG_DURABLE | FLAG_MORE), topic_id, seq, ts)
        U64.pack_into(view, pos + size - FRAME_CHECKSUM, checksum(view, pos, size))
    return pack_all("I", [pos - start for pos, _, _ in frames])


def copy_frames(buf: Buffer, start: int, end: int, most_hops: int, keep_node: bool, keep_tag: bool, /) -> bytearray:
    view = open_span(buf, start, end)
    u64(most_hops, "most_hops")
    out, last = bytearray(), None
    for pos, size, kind, flags, topic_id, seq, ts, node, tag, data_len in trusted(view, start, end):
        hops = view[pos + HOPS_AT]
        if kind != APPEND or hops >= most_hops:
            continue
        node_kept, tag_kept = node if keep_node else 0, tag if keep_tag else 0
        named = flags & FLAG_META | (FLAG_NODE if node_kept else 0) | (FLAG_TAG if tag_kept else 0) | FLAG_MORE
        length = size - LEN_FIELD - (node - node_kept) - (tag - tag_kept)
        last = len(out)
        out += HEADER.pack(length, kind, named, topic_id, seq, ts, node_kept, tag_kept, data_len)
        out[last + HOPS_AT] = hops + 1
        at = pos + FRAME_HEADER
        out += view[at : at + node_kept]
        out += view[at + node : at + node + tag_kept]
        out += view[at + node + tag : pos + size - FRAME_CHECKSUM]
        out += bytes(FRAME_CHECKSUM)
    if last is not None:
        out[last + 5] &= ~FLAG_MORE
    return out
