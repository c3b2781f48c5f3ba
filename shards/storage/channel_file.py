"""The two files of a channel: metadata.bin in the common envelope, cursor.bin where it is a queue. Promise: what is
decoded is what was encoded, whole and of this version, or FormatError; the same channel is always the same bytes.

    metadata   [handler, owner or nil, type, [max_clients, max_payload_size, max_persist_messages, persist,
                message_flush_interval], [join, publish, read], members, log]          lists of users are sorted
    cursor     0  u64 next_seq   the element that is popped next
               8  u32 crc32      over bytes 0..8
              12  4s  zero
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import fields
from pathlib import Path
from typing import Any

from topicd.channel import (
    LISTS,
    TYPES,
    ChannelAcl,
    ChannelConfig,
    ChannelState,
    channel_hash,
    check_handler,
    check_user,
)
from topicd.disk import envelope
from topicd.disk.fs import Fs, read_all
from topicd.errors import FormatError, InvalidRequest
from topicd.limits import SMALL_FILE_MAX

MAGIC = b"TCHN"
VERSION = 1
CURSOR = struct.Struct(
    "<"  # little-endian, unpadded
    "Q"  # next_seq
    "I"  # crc32
    "4s"  # zero
)
_CONFIG = [f.name for f in fields(ChannelConfig)]
_ZERO = bytes(4)


def encode(path: Path, state: ChannelState) -> bytes:
    """The whole file; path is for the message of an error."""
    config = [getattr(state.config, name) for name in _CONFIG]
    lists = [list(getattr(state.acl, name)) for name in LISTS]
    body = [state.handler, state.owner, state.type, config, lists, list(state.members), state.log]
    return envelope.pack(path, MAGIC, VERSION, body)


def decode(path: Path, raw: bytes) -> ChannelState:
    body = envelope.unpack(path, MAGIC, VERSION, raw)
    try:
        state = _state(body)
    except (InvalidRequest, TypeError, ValueError) as exc:
        raise FormatError(f"{path}: not a channel: {exc}", path=str(path)) from None
    if channel_hash(state.handler) != path.parent.name:
        raise FormatError(f"{path}: channel {state.handler!r} does not belong into this directory", path=str(path))
    return state


def load(fs: Fs, path: Path) -> ChannelState:
    """FileNotFoundError without such a file; FormatError if it is not what `encode` made, or too large."""
    return decode(path, read_all(fs, path, SMALL_FILE_MAX))


def _state(body: Any) -> ChannelState:
    handler, owner, kind, config, lists, members, log = body
    if kind not in TYPES or not isinstance(log, str) or not isinstance(members, list):
        raise ValueError("a field is of the wrong kind")
    for users in (members, *lists):
        if [check_user(user) for user in users] != sorted(set(users)):
            raise ValueError("a list of users is not sorted")
    return ChannelState(
        handler=check_handler(handler),
        owner=None if owner is None else check_user(owner),
        type=kind,
        config=ChannelConfig().updated(dict(zip(_CONFIG, config, strict=True))),
        acl=ChannelAcl(**{name: tuple(users) for name, users in zip(LISTS, lists, strict=True)}),
        members=tuple(members),
        log=log,
    )


def encode_cursor(next_seq: int) -> bytes:
    raw = struct.pack("<Q", next_seq)
    return CURSOR.pack(next_seq, zlib.crc32(raw), _ZERO)


def decode_cursor(path: Path, raw: bytes) -> int:
    if len(raw) == CURSOR.size:
        next_seq, crc, zero = CURSOR.unpack(raw)
        if crc == zlib.crc32(raw[:8]) and zero == _ZERO and next_seq:
            return int(next_seq)
    raise FormatError(f"{path}: {len(raw)} bytes that are no cursor", path=str(path))
