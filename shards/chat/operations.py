"""Operations of the chat store as records of its log. Promise: a record holds everything that its outcome depends on
beside the store itself (times above all), so that applying the log again gives the same bytes. Layout: docs/formats.md.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import msgpack

from topicd.errors import FormatError
from topicd.shards.chat.rows import Message

VERSION = 1


class Send(NamedTuple):
    """By a user of this store: who may send is checked when it is applied."""

    message: tuple[Any, ...]  # fields of Message


class Ingest(NamedTuple):
    """From another store, which has let it in."""

    message: tuple[Any, ...]


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


class Entry(NamedTuple):
    """One record of the log."""

    at_ms: int  # when it was asked for
    operations: list[Operation]

    def pack(self) -> bytes:
        raw: bytes = msgpack.packb([VERSION, self.at_ms, [[CODES[type(op)], *op] for op in self.operations]])
        return raw

    @classmethod
    def unpack(cls, raw: bytes) -> Entry:
        try:
            version, at_ms, rows = msgpack.unpackb(raw, use_list=False)
            if version != VERSION:
                raise FormatError(f"the chat log holds an entry of version {version!r:.50}, known is {VERSION}")
            return cls(at_ms, [KINDS[code](*fields) for code, *fields in rows])
        except (ValueError, TypeError, KeyError) as exc:
            raise FormatError(f"an entry of the chat log cannot be read: {exc!r}") from None


def stamp_of(op: Operation) -> int:
    """The highest hybrid time in it: a clock must not fall behind it."""
    if isinstance(op, Send | Ingest):
        return Message(*op.message).stamp
    if isinstance(op, MergeMember):
        return max(op.added_at, op.removed_at)
    return op.stamp if isinstance(op, Add | Remove | PutIdentity) else 0
