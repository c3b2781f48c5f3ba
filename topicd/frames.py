"""The frame codec as the rest of the code sees it. Promise: no other module knows a frame's bytes.

The same bytes travel on the wire, in rings, in the WAL and in segments (docs/formats.md):

    header | node | tag | data | xxh3_64 over everything behind frame_len

Record frames are made and read by `core` (native or pure); this module adds the control frames, whose data is
a msgpack map, and the producer frame, whose data is the fixed PRODUCER struct.
"""

from __future__ import annotations

import struct
from enum import IntEnum, IntFlag
from typing import Any, NamedTuple

import msgpack

from topicd._native import core
from topicd._native.interface import Buffer
from topicd.errors import ERRORS, FormatError, Internal, TopicdError
from topicd.limits import FRAME_CHECKSUM, FRAME_HEADER, FRAME_OVERHEAD, KIB

__all__ = [
    "HEADER",
    "HOPS_AT",
    "PRODUCER",
    "Direct",
    "FrameFlag",
    "FrameType",
    "Header",
    "codec_error",
    "continue_batch",
    "control_body",
    "control_frame",
    "copied_frame",
    "core",
    "direct_frame",
    "frame_checksum",
    "parse_direct",
    "parse_header",
    "parse_producer",
    "producer_frame",
    "ts_at",
    "without_data",
]


_packer = msgpack.Packer()
_PACKER_KEPT = 64 * KIB


class FrameType(IntEnum):
    """The codec takes 1 to 63, so a new type needs no change there."""

    APPEND = 1
    TOPIC_CREATE = 2
    TOPIC_DELETE = 3
    ROUTER_CREATE = 4
    ROUTER_DELETE = 5
    DELETE = 6
    EVICT_WATERMARK = 7
    CONFIG_UPDATE = 9
    LEASE = 10
    HEAD_WATERMARK = 11
    CURSOR = 12
    RESYNC = 13
    PRODUCER = 14
    DIRECT = 15
    COMMIT = 16
    FORGIVEN = 17
    ROUTED = 18  # how far a router has come with this topic, and what of its source was gone


class FrameFlag(IntFlag):
    TAG = 1
    NODE = 2
    DURABLE = 4
    MORE = 8  # another frame of the same batch follows
    META = 16  # data begins with u16 meta_len and a msgpack map


HEADER = struct.Struct(
    "<"  # little-endian, unpadded
    "I"  # frame_len  bytes after this field
    "B"  # type       FrameType
    "B"  # flags      FrameFlag
    "Q"  # topic_id
    "Q"  # seq
    "Q"  # ts         server commit ms, never below the previous record's
    "B"  # node_len
    "B"  # hops       how often routers have copied it on
    "H"  # tag_len
    "I"  # data_len   with meta, when flagged
)
LEN_FIELD = struct.calcsize("<I")
TYPE_AT = struct.calcsize("<I")
FLAGS_AT = struct.calcsize("<IB")
TOPIC_ID_AT = struct.calcsize("<IBB")
SEQ_AT = struct.calcsize("<IBBQ")
TS_AT = struct.calcsize("<IBBQQ")
NODE_LEN_AT = struct.calcsize("<IBBQQQ")
HOPS_AT = struct.calcsize("<IBBQQQB")
TAG_LEN_AT = struct.calcsize("<IBBQQQBB")
DATA_LEN_AT = struct.calcsize("<IBBQQQBBH")

CHECKSUM = struct.Struct("<Q")  # xxh3_64, seed 0
_NO_CHECKSUM = bytes(CHECKSUM.size)
_TS = struct.Struct("<Q")
_MORE = int(FrameFlag.MORE)

PRODUCER = struct.Struct(
    "<"  # little-endian, unpadded
    "Q"  # producer_id
    "Q"  # batch_no
    "Q"  # first_seq  of the batch that follows
    "I"  # count      records of it
)
DIRECT = struct.Struct(
    "<"  # little-endian, unpadded
    "Q"  # producer_id
    "Q"  # batch_no
    "Q"  # first_seq  of the batch, which is in a segment and not in the log
    "I"  # count      records of it
    "Q"  # last_xxh3  checksum of its last frame
)


class Direct(NamedTuple):
    """What the log says of a batch that went to its segment past it."""

    producer_id: int
    batch_no: int
    first_seq: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here
    last_xxh3: int

    @property
    def last_seq(self) -> int:
        return self.first_seq + self.count - 1


class Header(NamedTuple):
    frame_len: int
    type: int
    flags: int
    topic_id: int
    seq: int
    ts: int
    node_len: int
    hops: int
    tag_len: int
    data_len: int

    @property
    def size(self) -> int:
        """The whole frame, with its length field and checksum."""
        return LEN_FIELD + self.frame_len


def parse_header(buf: Buffer, offset: int) -> Header:
    """The header at offset, its lengths not yet compared with anything."""
    try:
        return Header._make(HEADER.unpack_from(buf, offset))
    except struct.error as exc:
        raise FormatError(f"no frame header at offset {offset}: {exc}", offset=offset) from None


# A producer frame between its length field and its checksum.
_PRODUCER_COVERED = struct.Struct("<" + HEADER.format[2:] + PRODUCER.format[1:])
_PRODUCER_LEN = (FRAME_OVERHEAD - LEN_FIELD + PRODUCER.size).to_bytes(LEN_FIELD, "little")
_PRODUCER_TYPE = int(FrameType.PRODUCER)
_PRODUCER_FLAGS = _MORE


def control_frame(
    type: FrameType,
    topic_id: int,
    seq: int,
    ts: int,
    body: dict[Any, Any] | bytes,
    *,
    durable: bool = False,
    more: bool = False,
) -> bytes:
    """A complete frame with its checksum; a dict is packed with msgpack, bytes are taken as they are."""
    data = body if isinstance(body, bytes) else _packed(body)
    flags = (FrameFlag.DURABLE if durable else 0) | (FrameFlag.MORE if more else 0)
    frame_len = FRAME_OVERHEAD - LEN_FIELD + len(data)
    head = HEADER.pack(frame_len, type, flags, topic_id, seq, ts, 0, 0, 0, len(data))
    covered = head[LEN_FIELD:] + data
    return head[:LEN_FIELD] + covered + CHECKSUM.pack(core.xxh3_64(covered))


def _packed(body: dict[Any, Any]) -> bytes:
    """As msgpack.packb, which makes a packer with a buffer of its own each time."""
    global _packer
    data: bytes = _packer.pack(body)
    if len(data) > _PACKER_KEPT:
        _packer = msgpack.Packer()  # its buffer never shrinks
    return data


def producer_frame(topic_id: int, first_seq: int, ts: int, producer_id: int, batch_no: int, count: int) -> bytes:
    """Who wrote the batch that follows. It opens that batch, so `more` is always set. Made often: one pack."""
    covered = _PRODUCER_COVERED.pack(
        *(_PRODUCER_TYPE, _PRODUCER_FLAGS, topic_id, first_seq, ts, 0, 0, 0, PRODUCER.size),
        *(producer_id, batch_no, first_seq, count),
    )
    return _PRODUCER_LEN + covered + CHECKSUM.pack(core.xxh3_64(covered))


def _data_of(buf: Buffer, start: int, end: int) -> memoryview:
    """The data of the one frame that fills [start, end), as a view into buf."""
    header = parse_header(buf, start)
    parts = FRAME_OVERHEAD + header.node_len + header.tag_len + header.data_len
    view = memoryview(buf).cast("B")
    if not (header.size == parts == end - start and end <= len(view)):
        raise FormatError(f"{start} to {end} is not one frame: {header}", offset=start)
    return view[start + FRAME_HEADER + header.node_len + header.tag_len : end - FRAME_CHECKSUM]


def control_body(buf: Buffer, start: int, end: int) -> Any:
    """What control_frame packed into the one frame that fills [start, end); trusts the checksum."""
    data = _data_of(buf, start, end)
    try:
        return msgpack.unpackb(data, strict_map_key=False)
    except (ValueError, RecursionError) as exc:  # msgpack derives all its own errors from ValueError
        raise FormatError(f"frame at offset {start}: its body is not msgpack ({exc})", offset=start) from None


def parse_producer(buf: Buffer, start: int, end: int) -> tuple[int, int, int, int]:
    """(producer_id, batch_no, first_seq, count) of the one producer frame that fills [start, end)."""
    data = _data_of(buf, start, end)
    if len(data) != PRODUCER.size:
        raise FormatError(
            f"producer frame at offset {start}: body of {len(data)} bytes, not {PRODUCER.size}", offset=start
        )
    producer_id, batch_no, first_seq, count = PRODUCER.unpack(data)
    return producer_id, batch_no, first_seq, count


def direct_frame(topic_id: int, ts: int, claim: Direct) -> bytes:
    return control_frame(FrameType.DIRECT, topic_id, claim.first_seq, ts, DIRECT.pack(*claim), durable=True)


def parse_direct(buf: Buffer, start: int, end: int) -> Direct:
    """What direct_frame packed into the one frame that fills [start, end)."""
    data = _data_of(buf, start, end)
    if len(data) != DIRECT.size:
        raise FormatError(f"direct frame at offset {start}: body of {len(data)} bytes, not {DIRECT.size}", offset=start)
    return Direct._make(DIRECT.unpack(data))


def frame_checksum(frames: Buffer) -> int:
    """Of the last frame, which ends where the frames end."""
    checksum: int = CHECKSUM.unpack_from(frames, len(frames) - CHECKSUM.size)[0]
    return checksum


def seq_at(frames: Buffer, offset: int) -> int:
    """Of the frame that begins at offset."""
    seq: int = _TS.unpack_from(frames, offset + SEQ_AT)[0]
    return seq


def ts_at(frames: Buffer, offset: int) -> int:
    """Of the frame that begins at offset."""
    ts: int = _TS.unpack_from(frames, offset + TS_AT)[0]
    return ts


def continue_batch(frames: bytearray, last_frame: int) -> None:
    """The last frame, which begins at last_frame, ends its batch no more: what follows belongs to it. Only for frames
    that are stamped later, for their checksum is not."""
    frames[last_frame + FLAGS_AT] |= _MORE


def copied_frame(node: bytes, tag: bytes, meta: bytes, data: bytes, hops: int, ts: int = 0, *, more: bool) -> bytes:
    """A record as a router has changed it, to be stamped. ts: the record's."""
    flags = (FrameFlag.NODE if node else 0) | (FrameFlag.TAG if tag else 0) | (FrameFlag.MORE if more else 0)
    if meta:
        flags |= FrameFlag.META
        data = len(meta).to_bytes(2, "little") + meta + data
    length = FRAME_OVERHEAD - LEN_FIELD + len(node) + len(tag) + len(data)
    head = HEADER.pack(length, FrameType.APPEND, flags, 0, 0, ts, len(node), hops, len(tag), len(data))
    return b"".join((head, node, tag, data, _NO_CHECKSUM))


def without_data(frames: Buffer) -> bytes:
    """The same records with data and meta cut off; data_len is 0 and the checksum is zero."""
    out = []
    for seq, ts, node, tag, _, _ in core.decode_frames(frames, 0, len(frames)):
        flags = (FrameFlag.NODE if node else 0) | (FrameFlag.TAG if tag else 0)
        names = (node or b"") + (tag or b"")
        length = FRAME_OVERHEAD - LEN_FIELD + len(names)
        head = HEADER.pack(length, FrameType.APPEND, flags, 0, seq, ts, len(node or b""), 0, len(tag or b""), 0)
        out.append(head + names + _NO_CHECKSUM)
    return b"".join(out)


def codec_error(exc: ValueError) -> TopicdError:
    """The error of the contract behind a ValueError(code, message) of the codec."""
    if len(exc.args) == 2 and exc.args[0] in ERRORS:
        code, message = exc.args
        return ERRORS[code](message)
    return Internal(f"unexpected codec failure: {exc}")
