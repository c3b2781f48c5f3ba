"""Ids and keys of the chat store. Promise: all numbers are big-endian and all ids have a fixed width, so that the
order of bytes is the order of meaning, and an id of another length is refused wherever one comes in. Layouts:
docs/formats.md.

A name stands for an id: the id of a chat is the BLAKE3 of its name, that of a user the first 20 bytes of the BLAKE3 of
the subject; 64 or 40 hex digits are the id itself. Of a name and an id there is therefore never more than one pair.
"""

from __future__ import annotations

import re
import struct
from typing import NamedTuple

from blake3 import blake3

from topicd.errors import InvalidRequest

USER = 20
CHAT = MSG = RECORD = 32
MAX_U32 = 0xFFFF_FFFF
MAX_U64 = 0xFFFF_FFFF_FFFF_FFFF
NAME_MAX = 255  # characters

STAMP_SEQ = struct.Struct(
    ">"
    "Q"  # packed hybrid time
    "I"  # seq in the chat
)
_U64 = struct.Struct(">Q")
_U32 = struct.Struct(">I")
MESSAGE_KEY = CHAT + STAMP_SEQ.size
INBOX_KEY = USER + _U64.size + CHAT
MEMBER_KEY = CHAT + USER
PROGRESS_KEY = USER + CHAT
BUCKET = 2  # bytes of an id that say which of the 65,536 buckets it is in

_HEX_CHAT = re.compile(r"[0-9a-fA-F]{64}")
_HEX_USER = re.compile(r"[0-9a-fA-F]{40}")
_DM = b"topicd.chat.dm\0"


def sized(what: str, value: bytes, width: int) -> bytes:
    """The value, if it is as long as an id of that kind."""
    if not isinstance(value, bytes) or len(value) != width:
        found = f"{len(value)} bytes" if isinstance(value, bytes) else type(value).__name__
        raise InvalidRequest(f"{what} has {width} bytes, this one is {found}")
    return value


def checked_name(what: str, name: str) -> str:
    if not isinstance(name, str) or not 1 <= len(name) <= NAME_MAX or not name.isprintable():
        raise InvalidRequest(f"{what} is a text of 1 to {NAME_MAX} printable characters, not {name!r:.300}")
    return name


def chat_id(name: str) -> bytes:
    if _HEX_CHAT.fullmatch(checked_name("the name of a chat", name)):
        return bytes.fromhex(name)
    return blake3(name.encode()).digest()


def user_id(subject: str) -> bytes:
    if _HEX_USER.fullmatch(checked_name("the name of a user", subject)):
        return bytes.fromhex(subject)
    return blake3(subject.encode()).digest()[:USER]


def is_chat_name(name: str, chat: bytes) -> bool:
    """Is this the readable name of that chat?"""
    return _HEX_CHAT.fullmatch(name) is None and blake3(name.encode()).digest() == chat


def is_user_name(name: str, user: bytes) -> bool:
    return _HEX_USER.fullmatch(name) is None and blake3(name.encode()).digest()[:USER] == user


def dm_id(one: bytes, other: bytes) -> bytes:
    """The chat of two users, whoever asks; its members are implied by it."""
    low, high = sorted((sized("a user id", one, USER), sized("a user id", other, USER)))
    return blake3(_DM + low + high).digest()


# ---- keys ----


class MessageKey(NamedTuple):
    chat: bytes
    stamp: int
    seq: int


def message_key(chat: bytes, stamp: int, seq: int) -> bytes:
    return sized("a chat id", chat, CHAT) + STAMP_SEQ.pack(stamp, seq)


def parse_message_key(key: bytes) -> MessageKey:
    sized("a message key", key, MESSAGE_KEY)
    return MessageKey(key[:CHAT], *STAMP_SEQ.unpack_from(key, CHAT))


def after(key: bytes) -> bytes | None:
    """The first key behind a message key: the next seq, or the next stamp where seqs end. None: nothing is behind."""
    chat, stamp, seq = parse_message_key(key)
    if seq < MAX_U32:
        return message_key(chat, stamp, seq + 1)
    return message_key(chat, stamp + 1, 0) if stamp < MAX_U64 else None


def inbox_key(user: bytes, last: int, chat: bytes) -> bytes:
    return sized("a user id", user, USER) + _U64.pack(MAX_U64 - last) + sized("a chat id", chat, CHAT)


def inbox_tail(last: int, chat: bytes) -> bytes:
    """What follows the user: the same for all members of a chat."""
    return _U64.pack(MAX_U64 - last) + chat


def parse_inbox_key(key: bytes) -> tuple[bytes, int, bytes]:
    """(user, stamp of the last message, chat)."""
    sized("an inbox key", key, INBOX_KEY)
    return key[:USER], MAX_U64 - _U64.unpack_from(key, USER)[0], key[USER + _U64.size :]


def member_key(chat: bytes, user: bytes) -> bytes:
    return sized("a chat id", chat, CHAT) + sized("a user id", user, USER)


def progress_key(user: bytes, chat: bytes) -> bytes:
    return sized("a user id", user, USER) + sized("a chat id", chat, CHAT)


def u32(value: int) -> bytes:
    return _U32.pack(value)


def parse_u32(raw: bytes) -> int:
    return int(_U32.unpack(raw)[0])


def u64(value: int) -> bytes:
    return _U64.pack(value)


def parse_u64(raw: bytes) -> int:
    return int(_U64.unpack(raw)[0])


def bucket_of(record: bytes) -> int:
    return record[0] << 8 | record[1]


def stamp_of_seen(value: bytes) -> int:
    """The packed time in a row of seen_msg; one without a value is as old as can be."""
    return int(_U64.unpack_from(value, CHAT)[0]) if len(value) == MESSAGE_KEY else 0


# ---- rows of the default column family ----

APPLIED = b"applied"  # u64 topic id, u64 seq of the last operation that is in the store
CUTOFF = b"cutoff"  # u64 ms: messages up to it are gone
UNREADABLE = b"unreadable"  # how many entries of the log were passed over, the seq of the last one, and why
CLEANING = b"cleaning"  # where cleaning up behind the cutoff goes on; absent: it is done
_ARRIVAL = b"a"  # chat, u32 seq -> u64 stamp: messages in the order in which they came here
_CHAT_NAME = b"c"
_USER_NAME = b"u"


def arrival_key(chat: bytes, seq: int) -> bytes:
    return _ARRIVAL + chat + _U32.pack(seq)


def arrival_prefix(chat: bytes) -> bytes:
    return _ARRIVAL + chat


def chat_name_key(chat: bytes) -> bytes:
    return _CHAT_NAME + chat


def user_name_key(user: bytes) -> bytes:
    return _USER_NAME + user
