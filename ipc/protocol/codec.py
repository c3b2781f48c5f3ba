"""Requests as bytes and answers as values. Promise: whatever bytes a server sends, the outcome is a value
or FormatError.

Layouts: topicd.ipc.protocol.wire. Nothing here touches a socket.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import msgpack

from topicd.errors import FormatError, InvalidRequest, TopicdError, from_wire
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import (
    ANSWER,
    APPEND,
    APPENDED,
    FETCHED,
    HEADER,
    MIN_LENGTH,
    PERFORMANCE,
    MessageFlag,
    performance_map,
)
from topicd.limits import IDEMPOTENCY_KEY_MAX, KIB
from topicd.model import Tombstone

APPEND_HEAD = struct.Struct(HEADER.format + APPEND.format[1:])
APPEND_REST = MIN_LENGTH + APPEND.size
ACK = struct.Struct(HEADER.format + APPENDED.format[1:])
ACK_LENGTH = MIN_LENGTH + APPENDED.size
PUSHED = struct.Struct(HEADER.format + FETCHED.format[1:])
PUSH_OP = int(Op.PUSH)
APPEND_OP = int(Op.APPEND)
ACK_OP = int(Op.APPEND) | ANSWER
ERROR_OP = int(Op.ERROR)
KEY_FLAG = int(MessageFlag.KEY)
COPY_FLAG = int(MessageFlag.COPY)
DEDUPED_FLAG = int(MessageFlag.DEDUPED)
CONFLICT_FLAG = int(MessageFlag.CONFLICT)
OPTIONS_FLAG = int(MessageFlag.OPTIONS)
OTHERS = 1 << 31  # on connections shared with pipelined appends, all other requests have ids from here on
# Above this, head and frames are sent as two pieces instead of being joined.
JOIN_UP_TO = 16 * KIB
_KEY_LEN = struct.Struct("<H")
_OPTIONS_LEN = struct.Struct("<I")


class Appended(NamedTuple):
    first_seq: int
    stored: int
    head_seq: int
    deduped: bool
    performance: dict[str, float] | None
    conflict: bool = False  # a job with this unique key is there already: first_seq is that job's


class Fetched(NamedTuple):
    """The frames are buffer[start:end]."""

    topic_id: int
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    records: int
    caught_up: bool
    tombstone: Tombstone | None
    performance: dict[str, float] | None
    buffer: bytes | bytearray
    start: int
    end: int


class Hello(NamedTuple):
    """Which shard answered (-1: none, the front door), and where all of them are."""

    shard: int
    shards: tuple[str, ...]
    limits: dict[str, Any]
    chat_port: int = 0  # of the chat store over TCP; 0: none
    chat: bool | None = None  # is there a chat store? None: not said


def append_head(
    request_id: int,
    topic_id: int,
    producer_id: int,
    number: int,
    count: int,
    frames_len: int,
    key: bytes = b"",
    flags: int = 0,
    options: bytes = b"",
) -> bytes:
    """Everything of an APPEND before its frames; `options` are those of jobs, packed."""
    if not (key or options):
        return APPEND_HEAD.pack(
            APPEND_REST + frames_len, APPEND_OP, flags, request_id, topic_id, producer_id, number, count
        )
    more = _beside(key, options)
    flags |= (KEY_FLAG if key else 0) | (OPTIONS_FLAG if options else 0)
    length = APPEND_REST + len(more) + frames_len
    return APPEND_HEAD.pack(length, APPEND_OP, flags, request_id, topic_id, producer_id, number, count) + more


def append_body(
    topic_id: int, producer_id: int, number: int, count: int, key: bytes = b"", options: bytes = b""
) -> bytes:
    """The body of an APPEND up to its frames; with a key its message has KEY_FLAG, with options OPTIONS_FLAG."""
    return APPEND.pack(topic_id, producer_id, number, count) + _beside(key, options)


def _beside(key: bytes, options: bytes) -> bytes:
    """What stands between the fixed fields and the frames."""
    found = _KEY_LEN.pack(len(key)) + key if key else b""
    return found + _OPTIONS_LEN.pack(len(options)) + options if options else found


def checked_key(key: str | bytes) -> bytes:
    raw = key.encode() if isinstance(key, str) else bytes(key)
    if not 1 <= len(raw) <= IDEMPOTENCY_KEY_MAX:
        raise InvalidRequest(f"an idempotency key has 1 to {IDEMPOTENCY_KEY_MAX} bytes, this one has {len(raw)}")
    return raw


def packed(body: dict[str, Any]) -> bytes:
    try:
        raw: bytes = msgpack.packb(body, use_bin_type=True)
    except (TypeError, ValueError, OverflowError) as exc:
        raise InvalidRequest(f"the request holds a value that cannot be sent: {exc}") from None
    return raw


def answer_map(raw: bytes | memoryview) -> dict[str, Any]:
    try:
        found = msgpack.unpackb(raw, strict_map_key=True)
    except (ValueError, TypeError, RecursionError) as exc:  # msgpack derives all its own errors from ValueError
        raise FormatError(f"the daemon's answer is malformed: {exc}") from None
    if not isinstance(found, dict):
        raise FormatError(f"the daemon's answer is no map but {found!r:.100}")
    return found


def error_of(raw: bytes | memoryview) -> TopicdError:
    return from_wire(answer_map(raw))


def number(body: dict[str, Any], field: str) -> int:
    value = body.get(field)
    if isinstance(value, bool) or not isinstance(value, int):
        raise FormatError(f"the daemon's answer has no number {field!r} but {value!r:.100}")
    return value


def parse_ack(flags: int, buffer: bytes | bytearray, start: int, end: int) -> Appended:
    size = end - start
    if size not in (APPENDED.size, APPENDED.size + PERFORMANCE.size):
        raise FormatError(f"the daemon's append answer has {size} bytes, not {APPENDED.size}")
    first_seq, count, head_seq = APPENDED.unpack_from(buffer, start)
    performance = None
    if size > APPENDED.size:
        performance = performance_map(memoryview(buffer)[start + APPENDED.size : end])
    deduped, conflict = bool(flags & DEDUPED_FLAG), bool(flags & CONFLICT_FLAG)
    return Appended(first_seq, count, head_seq, deduped, performance, conflict)


def parse_fetched(flags: int, buffer: bytes | bytearray, start: int, end: int) -> Fetched:
    if end - start < FETCHED.size:
        raise FormatError(f"the daemon's fetch answer has {end - start} bytes, at least {FETCHED.size} are needed")
    topic_id, next_from_seq, head_seq, earliest_seq, count, extra_len = FETCHED.unpack_from(buffer, start)
    frames_at = start + FETCHED.size + extra_len
    if frames_at > end:
        raise FormatError(f"the daemon's fetch answer claims {extra_len} bytes of extras and is shorter than that")
    tombstone, performance = None, None
    if extra_len:
        extra = answer_map(bytes(memoryview(buffer)[start + FETCHED.size : frames_at]))
        tombstone = _tombstone(extra.get("tombstone"))
        performance = _performance(extra.get("performance"))
    caught_up = bool(flags & MessageFlag.CAUGHT_UP)
    return Fetched(
        topic_id,
        next_from_seq,
        head_seq,
        earliest_seq,
        count,
        caught_up,
        tombstone,
        performance,
        buffer,
        frames_at,
        end,
    )


def _tombstone(body: Any) -> Tombstone | None:
    if body is None:
        return None
    try:
        return Tombstone.from_wire(body)
    except (KeyError, TypeError) as exc:
        raise FormatError(f"the daemon's tombstone is malformed: {exc!r}") from None


def _performance(body: Any) -> dict[str, float] | None:
    if body is None:
        return None
    if isinstance(body, dict):
        return {str(name): value for name, value in body.items() if isinstance(value, int | float)}
    if isinstance(body, bytes) and len(body) == PERFORMANCE.size:
        return performance_map(body)
    raise FormatError(f"the daemon's performance block is malformed: {body!r:.100}")


def parse_hello(body: dict[str, Any]) -> Hello:
    shards = body.get("shards")
    if not isinstance(shards, list | tuple) or not all(isinstance(path, str) for path in shards):
        raise FormatError(f"the daemon's hello names no shards but {shards!r:.100}")
    limits = body.get("limits")
    count = number(body, "delivery_shards")
    if count < 1 or len(shards) != count:
        raise FormatError(f"the daemon's hello claims {count} delivery shards and names {len(shards)}")
    shard, chat_port, chat = body.get("shard"), body.get("chat_port"), body.get("chat")
    return Hello(
        shard if isinstance(shard, int) else -1,
        tuple(shards),
        limits if isinstance(limits, dict) else {},
        chat_port if isinstance(chat_port, int) else 0,
        chat if isinstance(chat, bool) else None,
    )
