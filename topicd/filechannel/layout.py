"""Every byte and every name of a file channel's directory, drawn in docs/filechannel.md. All integers are big-endian.

lock               the writer's pid; locked while it runs
shared             what processes tell each other while they run (page.py)
segment.N          64 bytes of header, then messages
segment.N.z        the same messages compressed; segment.N.z.ing: one that is being written
offset.NAME        where a receiver goes on (offsets.py)
dropped            up to where messages were dropped because the channel was full
cut.OFFSET         bytes that a repair took off the end although messages followed
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from topicd._native.channel import core
from topicd.errors import InvalidRequest
from topicd.limits import MIB

LOCK, SHARED, DROPPED = "lock", "shared", "dropped"

MESSAGE_HEAD = 8
MAX_MESSAGE = 64 * MIB
HEADER_BYTES = 64
METHOD_ZSTD = 2  # 0 and 1 are snappy and gzip elsewhere

PLAIN = struct.Struct(
    ">"
    "I"  # segment id
    "Q"  # begin offset
)
PACKED = struct.Struct(
    ">"
    "I"  # segment id
    "Q"  # begin offset
    "Q"  # end offset
    "B"  # compression method
)
# The rest of the 64 bytes, in both kinds.
TAIL_AT = 32
TAIL = struct.Struct(
    ">"
    "4s"  # magic
    "B"  # version
    "B"  # flags: 1 written with a sync before each send returned
    "8s"  # channel id
)
CHECKSUM_AT = 60
CHECKSUM = struct.Struct(">I")
MAGIC = b"TFCS"
VERSION = 1
FLAG_SYNCED = 1

_SEGMENT = re.compile(r"segment\.(0|[1-9][0-9]{0,9})(\.z|\.z\.ing)?")
_OFFSET = re.compile(r"offset\.([A-Za-z0-9][A-Za-z0-9._-]{0,99})")
MAX_SEGMENT_ID = 2**32 - 1


class Span(NamedTuple):
    """Offsets from begin up to, not including, end."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Header:
    segment_id: int
    begin: int
    end: int | None  # None: plain, so the file says
    synced: bool
    channel_id: bytes

    def pack(self) -> bytes:
        if self.end is None:
            front = PLAIN.pack(self.segment_id, self.begin)
        else:
            front = PACKED.pack(self.segment_id, self.begin, self.end, METHOD_ZSTD)
        tail = TAIL.pack(MAGIC, VERSION, FLAG_SYNCED if self.synced else 0, self.channel_id)
        body = (front.ljust(TAIL_AT, b"\0") + tail).ljust(CHECKSUM_AT, b"\0")
        return body + CHECKSUM.pack(core.crc32(body, 0))


def unpack_header(raw: bytes, *, packed: bool) -> Header | None:
    """None: these bytes are no header of that kind."""
    if len(raw) < HEADER_BYTES or CHECKSUM.unpack_from(raw, CHECKSUM_AT)[0] != core.crc32(raw[:CHECKSUM_AT], 0):
        return None
    magic, version, flags, channel_id = TAIL.unpack_from(raw, TAIL_AT)
    if magic != MAGIC or version != VERSION:
        return None
    end: int | None = None
    if packed:
        segment_id, begin, end, method = PACKED.unpack_from(raw)
        if method != METHOD_ZSTD or end < begin:
            return None
    else:
        segment_id, begin = PLAIN.unpack_from(raw)
    return Header(segment_id, begin, end, bool(flags & FLAG_SYNCED), channel_id)


# ---- names ----


class SegmentName(NamedTuple):
    segment_id: int
    suffix: str  # "", ".z" or ".z.ing"


PACKED_SUFFIX, PACKING_SUFFIX = ".z", ".z.ing"


def segment_path(directory: Path, segment_id: int, suffix: str = "") -> Path:
    return directory / f"segment.{segment_id}{suffix}"


def parse_segment(name: str) -> SegmentName | None:
    found = _SEGMENT.fullmatch(name)
    if found is None or int(found[1]) > MAX_SEGMENT_ID:
        return None
    return SegmentName(int(found[1]), found[2] or "")


def offset_path(directory: Path, receiver: str) -> Path:
    name = f"offset.{receiver}"
    if not isinstance(receiver, str) or parse_offset(name) is None:
        raise InvalidRequest(
            f"receiver name {receiver!r} is not 1 to 100 of A-Z a-z 0-9 . _ - starting with a letter or digit, "
            "and not ending in .tmp",
            receiver=receiver,
        )
    return directory / name


def parse_offset(name: str) -> str | None:
    found = _OFFSET.fullmatch(name)
    return None if found is None or name.endswith(".tmp") else found[1]
