"""Stored frames on their way out: the scan that believes nothing, and readers of what it passed (twin)."""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from topicd._native.interface import Buffer, Columns, Decoded, Run, Scan, Selection
from topicd._native.pure_frame import (
    APPEND,
    FLAG_MORE,
    FLAG_NODE,
    FLAG_TAG,
    LAST_TYPE,
    U32_MAX,
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
from topicd.limits import FRAME_CHECKSUM, FRAME_HEADER

_INDEX_ENTRY = struct.Struct("<IIQB3x")  # offset, size, ts, flags
_I32_MAX = 2**31 - 1


# ---- scan ----


class _OpenRun:
    """A Run that still grows."""

    __slots__ = ("count", "end", "first", "last_ts", "next_seq", "topic_id", "whole_count", "whole_end")

    def __init__(self, first: Frame) -> None:
        self.first = first
        self.topic_id = first[4]
        self.next_seq = first[5]
        self.count = self.whole_count = 0
        self.whole_end = first[0]

    def continues(self, frame: Frame) -> bool:
        return frame[5] == self.next_seq and frame[4] == self.topic_id and frame[2] == self.first[2] == APPEND

    def add(self, frame: Frame) -> None:
        self.end = frame[0] + frame[1]
        self.count += 1
        self.next_seq += 1
        self.last_ts = frame[6]
        if not frame[3] & FLAG_MORE:
            self.whole_end, self.whole_count = self.end, self.count

    def run(self) -> Run:
        start, _, kind, _, topic_id, seq, ts, *_ = self.first
        return Run(
            start,
            self.end,
            kind,
            topic_id,
            seq,
            self.count,
            ts,
            self.last_ts,
            self.whole_end,
            self.whole_count,
        )


def _check_stored(view: memoryview, pos: int, end: int) -> Frame:
    frame = parse(view, pos, end)
    size, kind = frame[1], frame[2]
    if not APPEND <= kind <= LAST_TYPE:
        raise BadFrame("layout", f"unknown type {kind}")
    if U64.unpack_from(view, pos + size - FRAME_CHECKSUM)[0] != checksum(view, pos, size):
        raise BadFrame("checksum", "checksum mismatch")
    return frame


def scan_frames(buf: Buffer, start: int, end: int, /) -> Scan:
    view = open_span(buf, start, end)
    runs: list[_OpenRun] = []
    pos, problem = start, ""
    while pos < end:
        try:
            frame = _check_stored(view, pos, end)
        except BadFrame as bad:
            problem = bad.problem
            break
        if not runs or not runs[-1].continues(frame):
            runs.append(_OpenRun(frame))
        runs[-1].add(frame)
        pos += frame[1]
    return Scan([run.run() for run in runs], pos, problem)


# ---- trusted frames ----


def _appends(view: memoryview, start: int, end: int) -> Iterator[Frame]:
    return (frame for frame in trusted(view, start, end) if frame[2] == APPEND)


def _check_offsets(start: int, end: int, base: int) -> None:
    if base + end - start > U32_MAX:
        refuse("invalid_request", f"{end - start} bytes at offset {base} are beyond u32 offsets")


def frame_offsets(buf: Buffer, start: int, end: int, /) -> bytes:
    view = open_span(buf, start, end)
    _check_offsets(start, end, 0)
    return pack_all("I", [frame[0] - start for frame in trusted(view, start, end)])


def index_entries(buf: Buffer, start: int, end: int, base: int, /) -> bytes:
    view = open_span(buf, start, end)
    _check_offsets(start, end, u64(base, "base"))
    shift, pack = base - start, _INDEX_ENTRY.pack
    return b"".join([pack(frame[0] + shift, frame[1], frame[6], frame[3]) for frame in _appends(view, start, end)])


def _node_of(view: memoryview, frame: Frame) -> bytes | None:
    at = frame[0] + FRAME_HEADER
    return bytes(view[at : at + frame[7]]) if frame[3] & FLAG_NODE else None


def _tag_of(view: memoryview, frame: Frame) -> bytes | None:
    at = frame[0] + FRAME_HEADER + frame[7]
    return bytes(view[at : at + frame[8]]) if frame[3] & FLAG_TAG else None


def frame_tags(buf: Buffer, start: int, end: int, /) -> list[tuple[bytes, int]]:
    view = open_span(buf, start, end)
    tagged = ((_tag_of(view, frame), frame[5]) for frame in _appends(view, start, end))
    return [(tag, seq) for tag, seq in tagged if tag is not None]


def _body(view: memoryview, frame: Frame) -> tuple[int | None, int, int]:
    """(where meta begins or None, where the payload begins, where it ends)."""
    body = split_body(view, frame)
    if body is None:
        refuse("format_error", f"frame at offset {frame[0]}: data of {frame[9]} bytes is too short for its meta")
    return *body, frame[0] + frame[1] - FRAME_CHECKSUM


def decode_frames(buf: Buffer, start: int, end: int, /) -> list[Decoded]:
    view = open_span(buf, start, end)
    records: list[Decoded] = []
    for frame in _appends(view, start, end):
        meta_at, payload_at, payload_end = _body(view, frame)
        meta = None if meta_at is None else bytes(view[meta_at:payload_at])
        node, tag = _node_of(view, frame), _tag_of(view, frame)
        records.append((frame[5], frame[6], node, tag, meta, bytes(view[payload_at:payload_end])))
    return records


def payloads(buf: Buffer, start: int, end: int, /) -> list[bytes]:
    view = open_span(buf, start, end)
    bodies = (_body(view, frame) for frame in _appends(view, start, end))
    return [bytes(view[payload_at:payload_end]) for _, payload_at, payload_end in bodies]


# ---- select ----


class _Filter:
    """The conditions of select_frames on a single frame."""

    def __init__(
        self,
        min_ts: int,
        tag_eq: bytes | None,
        tag_prefix: bytes | None,
        nodes: Sequence[bytes],
        dead: bytes,
    ) -> None:
        self.min_ts = u64(min_ts, "min_ts")
        self.tag_eq = _bytes_or_none(tag_eq, "tag_eq")
        self.tag_prefix = _bytes_or_none(tag_prefix, "tag_prefix")
        self.nodes = frozenset(nodes)
        if not all(isinstance(node, bytes) for node in nodes):
            raise TypeError("nodes must be bytes")
        pairs = open_buffer(dead)
        if len(pairs) % 16:
            refuse("invalid_request", f"dead has {len(pairs)} bytes, not a multiple of 16")
        words = struct.unpack(f"<{len(pairs) // 8}Q", pairs)
        self.dead_firsts, self.dead_lasts = words[::2], words[1::2]

    def passes(self, view: memoryview, frame: Frame) -> bool:
        return (
            frame[6] >= self.min_ts
            and self._tag_passes(view, frame)
            and not (self.nodes and _node_of(view, frame) in self.nodes)
            and not (self.dead_lasts and self._is_dead(frame[5]))
        )

    def _tag_passes(self, view: memoryview, frame: Frame) -> bool:
        if self.tag_eq is None and self.tag_prefix is None:
            return True
        tag = _tag_of(view, frame)
        if tag is None or (self.tag_eq is not None and tag != self.tag_eq):
            return False
        return tag.startswith(self.tag_prefix or b"")

    def _is_dead(self, seq: int) -> bool:
        at = bisect_left(self.dead_lasts, seq)
        return at < len(self.dead_lasts) and self.dead_firsts[at] <= seq


def _bytes_or_none(value: bytes | None, what: str) -> bytes | None:
    if value is not None and not isinstance(value, bytes):
        raise TypeError(f"{what} must be bytes or None, not {type(value).__name__}")
    return value


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
    view = open_span(buf, start, end)
    u64(after_seq, "after_seq")
    u64(up_to_seq, "up_to_seq")
    u64(limit, "limit")
    u64(max_bytes, "max_bytes")
    wanted = _Filter(min_ts, tag_eq, tag_prefix, nodes, dead)
    ranges: list[tuple[int, int]] = []
    count = chosen_bytes = last_seq = examined = 0
    stopped = start
    for frame in trusted(view, start, end):
        pos, size, kind, _, _, seq, *_ = frame
        if kind == APPEND and seq > after_seq:
            if seq > up_to_seq:
                break  # seqs ascend
            if wanted.passes(view, frame):
                if count and (count >= limit or chosen_bytes + size > max_bytes):
                    break
                joins = ranges and ranges[-1][1] == pos
                ranges.append((ranges.pop()[0] if joins else pos, pos + size))
                count += 1
                chosen_bytes += size
            last_seq = seq
            examined += 1
        stopped = pos + size
    return Selection(ranges, count, last_seq, examined, stopped)


# ---- columns ----


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
        refuse("invalid_request", f"a column of {ends[-1]} bytes is beyond int32 offsets")
    return pack_all("i", ends), b"".join(value or b"" for value in values)


def columns(buf: Buffer, start: int, end: int, /) -> Columns:
    records = decode_frames(buf, start, end)
    seqs, times, nodes, tags, metas, datas = zip(*records, strict=True) if records else ((),) * 6
    return Columns(
        len(records),
        pack_all("Q", seqs),
        pack_all("Q", times),
        *_packed(datas),
        *_packed(tags),
        _validity(tags),
        *_packed(nodes),
        _validity(nodes),
        *_packed(metas),
        _validity(metas),
    )
