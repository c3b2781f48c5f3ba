"""Values of the chat store, as bytes and back. Promise: what was packed here is unpacked the same by every version that
knows its number; anything else is FormatError. Layouts: docs/formats.md.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import msgpack

from topicd.errors import FormatError
from topicd.shards.chat.keys import USER
from topicd.shards.chat.members import Member

PREVIEW = 80  # characters of a message that an inbox shows
BODY_MAX = 65_536
META_BLOB_MAX = 128
VERSION = 1
MESSAGE_HEAD = 2  # bytes of a packed message before its fields: how many there are, and the version


class Kind(IntEnum):
    DM = 0
    GROUP = 1
    CHANNEL = 2  # only admins send


class Message(NamedTuple):
    """As it is stored and as it travels. Names and blob may be empty; the chat's name of a DM is that of the peer."""

    msg_id: bytes
    chat: bytes
    sender: bytes
    stamp: int
    kind: int
    body: str
    peer: bytes  # of a DM: the other user
    blob: bytes  # of a DM: what the sender wants the other to know, at most META_BLOB_MAX bytes
    chat_name: str
    sender_name: str

    def pack(self) -> bytes:
        return _packed([VERSION, *self])

    @classmethod
    def unpack(cls, raw: bytes) -> Message:
        return cls(*_unpacked(raw, len(cls._fields)))


class ChatMeta(NamedTuple):
    """What is known of a chat as a whole. The inbox rows of its members follow from it."""

    last_ts: int  # stamp of its newest message, 0: there was none
    last_seq: int  # messages that came here
    last_msg_id: bytes
    members: bytes  # ids of those who are active, sorted, joined; of a DM both users
    last_msg_ts: int  # milliseconds of that message
    last_announced_ms: int  # when a message last came here
    identity: bytes  # blob of the newest DM that had one
    identity_at: bytes  # stamp and id of that message
    membership_hash: bytes
    kind: int
    last_sender: bytes
    preview: str

    def pack(self) -> bytes:
        return _packed([VERSION, *self])

    @classmethod
    def unpack(cls, raw: bytes) -> ChatMeta:
        return cls(*_unpacked(raw, len(cls._fields)))

    @property
    def exists(self) -> bool:
        """Somebody is in it, or something was said."""
        return bool(self.members) or self.last_seq > 0

    @property
    def users(self) -> list[bytes]:
        return [self.members[at : at + USER] for at in range(0, len(self.members), USER)]

    def has(self, user: bytes) -> bool:
        at = self.members.find(user)
        while at >= 0 and at % USER:
            at = self.members.find(user, at + 1)
        return at >= 0


NO_CHAT = ChatMeta(0, 0, b"", b"", 0, 0, b"", b"", bytes(32), int(Kind.GROUP), b"", "")


class InboxEntry(NamedTuple):
    chat: bytes
    kind: int
    last_ts: int
    last_msg_id: bytes
    last_sender: bytes
    preview: str
    last_seq: int

    def pack(self) -> bytes:
        return _packed([VERSION, *self])

    @classmethod
    def unpack(cls, raw: bytes) -> InboxEntry:
        return cls(*_unpacked(raw, len(cls._fields)))


def shows_the_same(one: ChatMeta, other: ChatMeta) -> bool:
    """Is the inbox row of the two the same?"""
    if one.last_seq != other.last_seq or one.last_ts != other.last_ts or one.kind != other.kind:
        return False
    shown = one.last_msg_id, one.last_sender, one.preview
    return shown == (other.last_msg_id, other.last_sender, other.preview)


def inbox_entry(chat: bytes, meta: ChatMeta) -> InboxEntry:
    return InboxEntry(chat, meta.kind, meta.last_ts, meta.last_msg_id, meta.last_sender, meta.preview, meta.last_seq)


def pack_member(member: Member) -> bytes:
    return _packed([VERSION, member.role, member.added_at, member.removed_at or None])


def unpack_member(raw: bytes) -> Member:
    role, added_at, removed_at = _unpacked(raw, 3)
    return Member(role, added_at, removed_at or 0)


def _packed(fields: list[Any]) -> bytes:
    raw: bytes = msgpack.packb(fields)
    return raw


def _unpacked(raw: bytes, count: int) -> list[Any]:
    try:
        version, *fields = msgpack.unpackb(raw)
    except (ValueError, TypeError) as exc:
        raise FormatError(f"a row of the chat store cannot be read: {exc}") from None
    if version != VERSION or len(fields) != count:
        raise FormatError(f"a row of the chat store has version {version!r:.50} and {len(fields)} fields")
    return list(fields)
