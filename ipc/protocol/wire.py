"""Messages between clients and the daemon. Bytes: docs/protocol.md. Promise: one encoder and one decoder for each.

 0  u32 length      bytes after this field
  4  u8  op          Op (messages/declaring.py)
 5  u8  flags       MessageFlag
 6  u32 request id  chosen by the client, repeated in the answer
10  body            fixed layout for append, fetch, push, credit; a msgpack map for all others
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntFlag
from typing import Any, NamedTuple

import msgpack

from topicd.errors import InvalidRequest, TopicdError, UnsupportedVersion
from topicd.limits import MAX_CONTROL_MESSAGE, MAX_MESSAGE

PROTOCOL_VERSION = 2

HEADER = struct.Struct(
    "<"  # little-endian, unpadded
    "I"  # length
    "B"  # op
    "B"  # flags
    "I"  # request id
)
LENGTH_FIELD = 4
MIN_LENGTH = HEADER.size - LENGTH_FIELD


ANSWER = 0x80
# The ops that are more than a declared message (messages/ has all): greeting, status, and what runs once per record,
# where enum arithmetic costs more than the rest of the work.
OP_HELLO = 0x01
OP_PING = 0x02
OP_STATUS = 0x03
OP_APPEND = 0x20
OP_APPENDED = OP_APPEND | ANSWER
OP_FETCH = 0x21
OP_FETCHED = OP_FETCH | ANSWER
OP_CREDIT = 0x32
OP_CLAIM = 0x50
OP_CLAIMED = OP_CLAIM | ANSWER
OP_ACK = 0x51
OP_ACKED = OP_ACK | ANSWER
OP_DEBUG = 0x7E
OP_PUSH = 0xB8
OP_NOTICE = 0xB9
OP_JOBS = 0xBA
OP_ERROR = 0xFF
# Of all others a message is small.
BULK_OPS = frozenset(
    {
        *(OP_APPEND, OP_FETCHED, OP_PUSH, OP_CLAIMED, OP_JOBS),
        # And the answers to LIST, DELETE_TOPIC, SUBSCRIBE, ROUTER_LIST, ROUTERS_OF, ROUTERS_FORGET, QUEUE_PEEK,
        # CHANNEL_HISTORY, CHANNEL_POP, CHANNEL_LIST, CHANNEL_SLOTS.
        *(op | ANSWER for op in (0x13, 0x14, 0x30, 0x48, 0x4A, 0x4F, 0x57, 0x64, 0x6C, 0x6E, 0x6F)),
    }
)


class MessageFlag(IntFlag):
    PERFORMANCE = 1  # request: the answer shall carry the performance block
    DEDUPED = 2  # append answer: a retry; nothing was stored again
    TOMBSTONE = 4  # fetch answer, push: a tombstone map stands before the frames
    CONFLICT = 4  # append answer: a job with this unique key is there already; first_seq is that job
    CAUGHT_UP = 8  # fetch answer, push: nothing behind what was examined
    METADATA_ONLY = 16  # fetch: frames come with data and meta cut off (data_len 0, no checksum)
    JUDGE = 16  # append: are the records such as the topic's schema wants them? Nothing is stored
    FILTER = 32  # fetch: a filter map follows the fixed fields
    OPTIONS = 32  # append: u32 length and the options of jobs follow the fixed fields and the key
    KEY = 64  # append: u16 length and an idempotency key follow the fixed fields
    DONE = 64  # claim: LEASED rows of jobs to finish first follow the node; its answer: ENDED follows the fixed fields
    COPY = 128  # append: ranges of stored records follow the fixed fields, instead of frames


FLAG_PERFORMANCE = int(MessageFlag.PERFORMANCE)
FLAG_DEDUPED = int(MessageFlag.DEDUPED)
FLAG_TOMBSTONE = int(MessageFlag.TOMBSTONE)
FLAG_CAUGHT_UP = int(MessageFlag.CAUGHT_UP)
FLAG_KEY = int(MessageFlag.KEY)
FLAG_DONE = int(MessageFlag.DONE)
FLAG_JUDGE = int(MessageFlag.JUDGE)
FLAG_COPY = int(MessageFlag.COPY)
FLAG_OPTIONS = int(MessageFlag.OPTIONS)
FLAG_CONFLICT = int(MessageFlag.CONFLICT)

APPEND = struct.Struct(
    "<"
    "Q"  # topic_id
    "Q"  # producer_id   0: none
    "Q"  # batch_no      1, 2, 3 … per producer and topic
    "I"  # count         frames that follow
)
COPIED = struct.Struct(
    "<"
    "Q"  # topic_id      of the same shard
    "Q"  # from_seq      exclusive
    "I"  # count         records behind it: one batch, or the last ones of it
)
APPENDED = struct.Struct(
    "<"
    "Q"  # first_seq
    "I"  # count
    "Q"  # head_seq
)
FETCH = struct.Struct(
    "<"
    "Q"  # topic_id
    "Q"  # from_seq      exclusive
    "I"  # limit         records, 0: default
    "I"  # max_bytes     0: default
    "I"  # wait_ms       long poll
)
FETCHED = struct.Struct(
    "<"
    "Q"  # topic_id
    "Q"  # next_from_seq last seq examined
    "Q"  # head_seq
    "Q"  # earliest_seq
    "I"  # count         frames that follow
    "I"  # extra_len     bytes of the msgpack map before the frames: {tombstone?, performance?}
)
CREDIT = struct.Struct(
    "<"
    "I"  # subscription  request id of the SUBSCRIBE
    "I"  # bytes         that may be pushed beyond what was granted before
)
CLAIM = struct.Struct(
    "<"
    "Q"  # topic_id
    "I"  # max           jobs, 1 to 1000
    "I"  # lease_ms      0: the queue's
    "I"  # wait_ms       long poll, if there is no job
    "B"  # node_len      1 to 128; the worker's name follows
)
CLAIMED = struct.Struct(
    "<"
    "Q"  # topic_id
    "Q"  # ready         jobs that could be claimed after this
    "I"  # count         JOB rows that follow, then as many frames in the same order
)
JOB = struct.Struct(
    "<"
    "Q"  # seq
    "Q"  # lease         its number, which only grows
    "Q"  # deadline      ms
    "I"  # deliveries    1: the first time
)
ACK = struct.Struct(
    "<"
    "Q"  # topic_id
    "I"  # count         LEASED rows behind the node, at most 1000
    "B"  # node_len      0: any node, and every lease is given
)
LEASED = struct.Struct(
    "<"
    "Q"  # seq
    "Q"  # lease         0: not checked, the node is
)
ACKED = struct.Struct(
    "<"
    "Q"  # topic_id
    "Q"  # ready
    "Q"  # in_flight
    "I"  # acked
    "I"  # skipped       u64 seqs that follow
)
ENDED = struct.Struct(
    "<"
    "I"  # acked
    "I"  # skipped       u64 seqs that follow
)
PERFORMANCE = struct.Struct(
    "<"
    "f"  # server_total_ms
    "f"  # wal_append_ms
    "f"  # fsync_ms
    "I"  # records_scanned
    "f"  # throttle_wait_ms
)


# Of an array or a map in a body, more than any has. Arrays are allocated before their items come, at every level: a
# kilobyte of nested lies must not cost a gigabyte.
MAX_ITEMS = 1_024


class Message(NamedTuple):
    op: int
    flags: int
    request_id: int
    body: memoryview  # valid until the reader is fed again; copy to keep


def performance_map(raw: bytes | memoryview) -> dict[str, float]:
    names = ("server_total_ms", "wal_append_ms", "fsync_ms", "records_scanned", "throttle_wait_ms")
    return dict(zip(names, PERFORMANCE.unpack(raw), strict=True))


def header(op: int, flags: int, request_id: int, body_len: int) -> bytes:
    return HEADER.pack(MIN_LENGTH + body_len, op, flags, request_id)


def message(op: int, request_id: int, body: bytes, flags: int = 0) -> bytes:
    return HEADER.pack(MIN_LENGTH + len(body), op, flags, request_id) + body


def map_message(op: int, request_id: int, body: dict[str, Any], flags: int = 0) -> bytes:
    return message(op, request_id, msgpack.packb(body, use_bin_type=True), flags)


def error_message(request_id: int, error: TopicdError) -> bytes:
    return map_message(OP_ERROR, request_id, error.to_wire())


def check_version(version: Any) -> None:
    """What a HELLO says it speaks."""
    if type(version) is not int or version != PROTOCOL_VERSION:
        raise UnsupportedVersion(
            f"protocol version {version!r:.50} is not spoken here, {PROTOCOL_VERSION} is", supported=[PROTOCOL_VERSION]
        )


def unpack_map(body: bytes | memoryview) -> dict[str, Any]:
    """The msgpack map of a body; anything else is the sender's error."""
    try:
        found = msgpack.unpackb(
            body, raw=False, strict_map_key=True, max_array_len=MAX_ITEMS, max_map_len=MAX_ITEMS, max_ext_len=64
        )
    except Exception as exc:
        raise InvalidRequest(f"body is not a msgpack map: {exc}") from None
    if not isinstance(found, dict):
        raise InvalidRequest(f"body must be a msgpack map, not {type(found).__name__}")
    return found


class MessageReader:
    """Cuts a byte stream into messages, whatever the pieces it arrives in. Memory: at most one message and a piece."""

    def __init__(self, max_control: int = MAX_CONTROL_MESSAGE, max_bulk: int = MAX_MESSAGE) -> None:
        self._buffer = bytearray()
        self._max_control = max_control
        self._max_bulk = max_bulk

    @property
    def pending(self) -> int:
        return len(self._buffer)

    def feed(self, data: bytes | memoryview) -> Iterator[Message]:
        """Messages completed by data. Exhaust the iterator before feeding again. Raises InvalidRequest when the
        stream cannot be what it claims to be; the connection is of no use afterwards."""
        if self._buffer:
            self._buffer += data
            source: bytes | bytearray | memoryview = self._buffer
        else:
            source = data
        at = yield from self._cut(memoryview(source))
        if source is self._buffer:
            rest = bytes(memoryview(self._buffer)[at:])
            self._buffer = bytearray(rest)
        elif at < len(source):
            self._buffer += memoryview(source)[at:]

    def _cut(self, view: memoryview) -> Any:
        at, end = 0, len(view)
        while end - at >= HEADER.size:
            length, op, flags, request_id = HEADER.unpack_from(view, at)
            self.check_length(length, op)
            if end - at - LENGTH_FIELD < length:
                break
            yield Message(op, flags, request_id, view[at + HEADER.size : at + LENGTH_FIELD + length])
            at += LENGTH_FIELD + length
        return at

    def check_length(self, length: int, op: int) -> None:
        bulk = op in BULK_OPS
        allowed = self._max_bulk if bulk else self._max_control
        if not MIN_LENGTH <= length <= allowed:
            raise InvalidRequest(f"message length {length} for op 0x{op:02x} is outside {MIN_LENGTH} to {allowed}")
