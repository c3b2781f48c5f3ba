"""Single-record appends that came one behind the other: stamped together, answered together (twin)."""

from __future__ import annotations

import struct

from topicd._native.interface import Buffer, TakenRun
from topicd._native.pure_frame import (
    APPEND,
    FLAG_DURABLE,
    FLAG_MORE,
    FLAG_NODE,
    FLAG_TAG,
    HEADER,
    LEN_FIELD,
    MIN_FRAME_LEN,
    PRODUCER,
    U64,
    U64_MAX,
    BadFrame,
    checksum,
    open_buffer,
    open_span,
    pack_all,
    parse,
    u64,
)
from topicd._native.pure_write import stamp_frames
from topicd.limits import FRAME_CHECKSUM, MAX_DATA_AND_META, MAX_NODE, MAX_SEQ, MAX_TAG

_MESSAGE = struct.Struct("<IBBIQQQI")  # message header and the fixed fields of an append
_ANSWER = struct.Struct("<IBBIQIQ")
_PRODUCER = struct.Struct("<QQQI")
_OP_APPEND, _OP_APPENDED = 0x20, 0xA0
_RUN_MAX = 512


def _is_plain(view: memoryview, start: int, end: int) -> bool:
    try:
        _, size, kind, flags, _, _, _, node, tag, data = parse(view, start, end)
    except BadFrame:
        return False
    return (
        size == end - start
        and kind == APPEND
        and not flags & ~(FLAG_TAG | FLAG_NODE | FLAG_DURABLE)
        and (tag <= MAX_TAG and node <= MAX_NODE and data <= MAX_DATA_AND_META)
        and bool(flags & FLAG_TAG) == bool(tag)
        and bool(flags & FLAG_NODE) == bool(node)
    )


def _producer_frame(topic_id: int, producer_id: int, batch_no: int, seq: int, ts: int) -> bytearray:
    size = MIN_FRAME_LEN + _PRODUCER.size
    frame = bytearray(HEADER.pack(size, PRODUCER, FLAG_MORE, topic_id, seq, ts, 0, 0, _PRODUCER.size))
    frame += _PRODUCER.pack(producer_id, batch_no, seq, 1) + bytes(FRAME_CHECKSUM)
    U64.pack_into(frame, len(frame) - FRAME_CHECKSUM, checksum(memoryview(frame), 0, len(frame)))
    return frame


def take_run(
    buf: Buffer,
    start: int,
    end: int,
    topic_id: int,
    producer_id: int,
    batch_no: int,
    first_seq: int,
    ts: int,
    durable: bool,
    most: int,
    max_bytes: int,
    /,
) -> TakenRun | None:
    view = open_span(buf, start, end)
    for value, what in (
        *((topic_id, "topic_id"), (producer_id, "producer_id"), (batch_no, "batch_no"), (first_seq, "first_seq")),
        *((ts, "ts"), (most, "most"), (max_bytes, "max_bytes")),
    ):
        u64(value, what)
    if not 1 <= first_seq <= MAX_SEQ - _RUN_MAX or ts > MAX_SEQ or batch_no > U64_MAX - _RUN_MAX:
        return None
    frames, wire = bytearray(), bytearray()
    offsets: list[int] = []
    ids: list[int] = []
    at = start
    while len(ids) < min(most, _RUN_MAX) and end - at >= _MESSAGE.size:
        index = len(ids)
        length, op, flags, request_id, topic, producer, number, count = _MESSAGE.unpack_from(view, at)
        following = at + LEN_FIELD + length
        if following > end or (op, flags, count) != (_OP_APPEND, 0, 1):
            break
        if (topic, producer, number) != (topic_id, producer_id, batch_no + index):
            break
        body = at + _MESSAGE.size
        if body > following or not _is_plain(view, body, following) or len(frames) + following - body > max_bytes:
            break
        frame = bytearray(view[body:following])
        stamp_frames(frame, 0, len(frame), topic_id, first_seq + index, ts, durable)
        offsets.append(len(frames))
        ids.append(request_id)
        frames += frame
        wire += _producer_frame(topic_id, producer_id, number, first_seq + index, ts) + frame
        at = following
    if not ids:
        return None
    return at - start, frames, pack_all("I", offsets), bytes(wire), pack_all("I", ids)


def run_answers(request_ids: Buffer, first_seq: int, head_seq: int, /) -> bytes:
    ids = open_buffer(request_ids)
    u64(first_seq, "first_seq")
    u64(head_seq, "head_seq")
    numbers = struct.unpack_from(f"<{len(ids) // 4}I", ids)
    length = _ANSWER.size - LEN_FIELD
    return b"".join(
        _ANSWER.pack(length, _OP_APPENDED, 0, number, (first_seq + index) & U64_MAX, 1, head_seq)
        for index, number in enumerate(numbers)
    )
