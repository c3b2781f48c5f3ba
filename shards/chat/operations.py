"""Operations of the chat store as records of its log. Promise: a record holds everything that its outcome depends on
beside the store itself (times above all), so that applying the log again gives the same bytes. Layout: docs/formats.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import msgpack

from topicd.errors import FormatError
from topicd.shards.chat import hlc, keys
from topicd.shards.chat.rows import MESSAGE_HEAD, Message

VERSION = 1


class Send(NamedTuple):
    """By a user of this store: who may send is checked when it is applied."""

    message: Message
    row: bytes = b""  # the message as it is stored, where it is packed already


class Ingest(NamedTuple):
    """From another store, which has let it in."""

    message: Message


class Add(NamedTuple):
    chat: bytes
    user: bytes
    role: int
    stamp: int
    by: bytes  # empty: whoever runs the store
    kind: int
    chat_name: str
    user_name: str


class Remove(NamedTuple):
    chat: bytes
    user: bytes
    stamp: int
    by: bytes
    chat_name: str
    user_name: str


class MergeMember(NamedTuple):
    """A row of another store."""

    chat: bytes
    user: bytes
    role: int
    added_at: int
    removed_at: int
    chat_name: str
    user_name: str


class PutIdentity(NamedTuple):
    user: bytes
    stamp: int
    blob: bytes
    user_name: str


class Mark(NamedTuple):
    user: bytes
    chat: bytes
    seq: int


class Retain(NamedTuple):
    cutoff_ms: int


class Clean(NamedTuple):
    limit: int


Operation: TypeAlias = Send | Ingest | Add | Remove | MergeMember | PutIdentity | Mark | Retain | Clean
# The numbers are in the log: they never change.
KINDS: dict[int, type[Operation]] = {
    1: Send,
    2: Ingest,
    3: Add,
    4: Remove,
    5: MergeMember,
    6: PutIdentity,
    7: Mark,
    8: Retain,
    9: Clean,
}
CODES: dict[type[Operation], int] = {kind: code for code, kind in KINDS.items()}
# They look at many rows, and must find all that was done before them.
ALONE = (Retain, Clean)


_packer = msgpack.Packer(autoreset=False)
_SEND_HEAD = msgpack.packb([1, list(Message._fields)])[:3]  # a list of two, its code, and a list of as many fields


class Entry(NamedTuple):
    """One record of the log."""

    at_ms: int  # when it was asked for
    operations: list[Operation]

    def pack(self) -> bytes:
        _packer.reset()
        _packer.pack_array_header(3)
        _packer.pack(VERSION)
        _packer.pack(self.at_ms)
        _packer.pack_array_header(len(self.operations))
        parts = [_packer.bytes()]
        for op in self.operations:
            if isinstance(op, Send):
                parts.append(_SEND_HEAD + (op.row or op.message.pack())[MESSAGE_HEAD:])
            else:
                parts.append(msgpack.packb([CODES[type(op)], *op]))
        return b"".join(parts)

    @classmethod
    def unpack(cls, raw: bytes) -> Entry:
        """FormatError unless everything in it is of the kind and the width that applying it relies on."""
        try:
            version, at_ms, rows = msgpack.unpackb(raw, use_list=False)
            if version != VERSION:
                raise FormatError(f"it is of version {version!r:.50}, known is {VERSION}")
            if not _is_number(at_ms):
                raise FormatError(f"its time is {at_ms!r:.50}")
            return cls(at_ms, [checked(_made(code, fields)) for code, *fields in rows])
        except (ValueError, TypeError, KeyError, msgpack.UnpackException) as exc:
            raise FormatError(f"it is no entry of a chat log: {exc!r:.200}") from None


class Unreadable(NamedTuple):
    """An entry that this version cannot understand, or several that the log has no more: they change nothing but the
    note of them. Several stand at the seq of the last one."""

    why: str
    entries: int = 1


LogEntry: TypeAlias = Entry | Unreadable


def unpacked(raw: Any) -> LogEntry:
    """What a record of the log says. Whatever it is, there is an answer."""
    if not isinstance(raw, bytes):
        return Unreadable("it has no data")
    try:
        return Entry.unpack(raw)
    except FormatError as exc:
        return Unreadable(exc.message)


def _made(code: int, fields: list[Any]) -> Operation:
    kind: Any = KINDS[code]
    if kind is Send or kind is Ingest:
        (message,) = fields
        fields = [Message(*message)]
    made: Operation = kind(*fields)
    return made


def _is_number(value: Any, most: int = keys.MAX_U64) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def _is_id(width: int, *, optional: bool = False) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, bytes) and (len(value) == width or (optional and not value))


def _is_stamp(value: Any) -> bool:
    return _is_number(value, hlc.MAX_STAMP)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


# By the name of a field, in operations and in messages.
_RULES: dict[str, Callable[[Any], bool]] = {
    "msg_id": _is_id(keys.MSG),
    "chat": _is_id(keys.CHAT),
    "user": _is_id(keys.USER),
    "sender": _is_id(keys.USER),
    "by": _is_id(keys.USER, optional=True),
    "peer": _is_id(keys.USER, optional=True),
    "stamp": _is_stamp,
    "added_at": _is_stamp,
    "removed_at": _is_stamp,
    "kind": lambda value: _is_number(value, 2),
    "role": lambda value: _is_number(value, 1),
    "seq": lambda value: _is_number(value, keys.MAX_U32),
    "cutoff_ms": lambda value: _is_number(value, hlc.MAX_MS - 1),
    "limit": lambda value: _is_number(value, keys.MAX_U32),
    "blob": lambda value: isinstance(value, bytes),
    "body": _is_text,
    "chat_name": _is_text,
    "user_name": _is_text,
    "sender_name": _is_text,
}


def checked(op: Operation) -> Operation:
    """FormatError unless each field is of the kind and the width that applying it relies on."""
    fields: Any = op.message if isinstance(op, Send | Ingest) else op
    for name, value in zip(fields._fields, fields, strict=True):
        if not _RULES[name](value):
            raise FormatError(f"{name} of its {type(op).__name__} is {value!r:.100}")
    return op


def stamp_of(op: Operation) -> int:
    """The highest hybrid time in it: a clock must not fall behind it."""
    if isinstance(op, Send | Ingest):
        return op.message.stamp
    if isinstance(op, MergeMember):
        return max(op.added_at, op.removed_at)
    return op.stamp if isinstance(op, Add | Remove | PutIdentity) else 0
