"""What two stores compare: messages, members, identities. Promise: each domain answers the same three questions (all
ids, the ids of a bucket, records up to a size) and takes records in; what a cutoff hides is in none of the answers.

A record travels as a list of plain values; ids are the keys of the domain's index, timestamps milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from topicd.errors import Conflict, FormatError, InvalidRequest, TopicdError
from topicd.shards.chat import hlc, identity, keys, members, messages
from topicd.shards.chat.hlc import HybridClock
from topicd.shards.chat.identity import Identity
from topicd.shards.chat.members import Member
from topicd.shards.chat.operations import Ingest, MergeMember, Operation, PutIdentity, checked, stamp_of
from topicd.shards.chat.rows import Message, unpack_member
from topicd.shards.chat.store import (
    DEFAULT,
    IDENTITY,
    MEMBERS,
    MESSAGES,
    SEEN_IDENTITY,
    SEEN_MEMBER,
    SEEN_MSG,
    Store,
    Table,
)

DOMAINS = ("messages", "members", "identities")


class Batch(NamedTuple):
    records: list[list[Any]]
    taken: int  # ids that were looked at
    has_more: bool


class Domain(NamedTuple):
    name: str
    seen: Table  # record id -> key in `rows`
    rows: Table
    pack: Callable[[Store, bytes, bytes], list[Any]]  # (store, key, value)
    operation: Callable[[list[Any]], Operation]
    record_id: Callable[[Operation], bytes]

    def ids(self, store: Store, cutoff_ms: int = 0) -> Iterator[tuple[bytes, int]]:
        """All of them with their milliseconds (0 but for messages)."""
        for record, value in store.scan(self.seen):
            ms = hlc.physical_ms(keys.stamp_of_seen(value)) if self.seen is SEEN_MSG else 0
            if self.seen is not SEEN_MSG or ms > cutoff_ms:
                yield record, ms

    def bucket(self, store: Store, bucket: int, cutoff_ms: int = 0) -> list[bytes]:
        prefix = bucket.to_bytes(2, "big")
        rows = store.scan(self.seen, prefix=prefix)
        if self.seen is not SEEN_MSG:
            return [record for record, _ in rows]
        return [record for record, value in rows if hlc.physical_ms(keys.stamp_of_seen(value)) > cutoff_ms]

    def places(self, store: Store, ids: Sequence[bytes]) -> list[bytes | None]:
        """Where the records of these ids lie: a row that merges with another one gets another id, and stays there."""
        return store.get_many(self.seen, ids)

    def batch(self, store: Store, ids: Sequence[bytes], max_bytes: int, cutoff_ms: int = 0) -> Batch:
        """Records of these ids, as many as fit, at least one; ids that are not there (any more) are passed over. Two
        lookups for all of them together."""
        return self.batch_at(store, self.places(store, ids), max_bytes, cutoff_ms)

    def batch_at(self, store: Store, places: Sequence[bytes | None], max_bytes: int, cutoff_ms: int = 0) -> Batch:
        kept = [(at, key) for at, key in enumerate(places) if key is not None and self._kept(key, cutoff_ms)]
        values = store.get_many(self.rows, [key for _, key in kept])
        records: list[list[Any]] = []
        size = 0
        for (at, key), value in zip(kept, values, strict=True):
            if value is None:
                continue
            if records and size + len(value) > max_bytes:
                return Batch(records, at, True)
            records.append(self.pack(store, key, value))
            size += len(value)
        return Batch(records, len(places), False)

    def _kept(self, key: bytes, cutoff_ms: int) -> bool:
        return self.seen is not SEEN_MSG or hlc.physical_ms(keys.stamp_of_seen(key)) > cutoff_ms


def incoming(domain: Domain, record: Any, clock: HybridClock) -> Operation:
    """The operation that takes a record in. Raises InvalidRequest for one that is none, Conflict for one whose time is
    too far ahead to be taken in yet."""
    try:
        op = checked(domain.operation(record))
    except (TypeError, ValueError, IndexError, FormatError):
        raise InvalidRequest(f"this is no record of {domain.name}: {record!r:.200}") from None
    stamp = stamp_of(op)
    if clock.too_far(stamp):
        raise Conflict(f"a record of {domain.name} is of {hlc.physical_ms(stamp)} ms, more than a day ahead")
    clock.saw(stamp)
    return op


# ---- messages ----


def _pack_message(store: Store, key: bytes, value: bytes) -> list[Any]:
    return list(Message.unpack(value))


def _ingest(record: list[Any]) -> Operation:
    return Ingest(messages.checked(Message(*record)))


def _message_id(op: Operation) -> bytes:
    if not isinstance(op, Ingest):
        raise TopicdError("no message")
    return op.message.msg_id


# ---- members ----


def name_of(store: Store, key: bytes) -> str:
    raw = store.get(DEFAULT, key)
    return raw.decode() if raw else ""


def _pack_member(store: Store, key: bytes, value: bytes) -> list[Any]:
    chat, user = key[: keys.CHAT], key[keys.CHAT :]
    names = name_of(store, keys.chat_name_key(chat)), name_of(store, keys.user_name_key(user))
    return [chat, user, *unpack_member(value), *names]


def _merge(record: list[Any]) -> Operation:
    op = MergeMember(*record)
    keys.sized("a chat id", op.chat, keys.CHAT)
    keys.sized("a user id", op.user, keys.USER)
    members.checked(Member(op.role, op.added_at, op.removed_at))
    return _with_names(op)


def _member_id(op: Operation) -> bytes:
    if not isinstance(op, MergeMember):
        raise TopicdError("no member")
    return members.record_id(op.chat, op.user, Member(op.role, op.added_at, op.removed_at))


# ---- identities ----


def _pack_identity(store: Store, key: bytes, value: bytes) -> list[Any]:
    found = Identity.from_value(value)
    return [key, found.stamp, found.blob, name_of(store, keys.user_name_key(key))]


def _put_identity(record: list[Any]) -> Operation:
    op = PutIdentity(*record)
    keys.sized("a user id", op.user, keys.USER)
    identity.checked_blob(op.blob)
    if isinstance(op.stamp, bool) or not isinstance(op.stamp, int) or not 0 < op.stamp <= hlc.MAX_STAMP:
        raise InvalidRequest(f"the time of an identity is a packed hybrid time, not {op.stamp!r:.50}")
    return _with_names(op)


def _identity_id(op: Operation) -> bytes:
    if not isinstance(op, PutIdentity):
        raise TopicdError("no identity")
    return identity.record_id(op.user, Identity(op.stamp, op.blob))


def _with_names(op: Operation) -> Operation:
    for field in ("chat_name", "user_name"):
        name = getattr(op, field, "")
        if not isinstance(name, str) or len(name) > keys.NAME_MAX:
            raise InvalidRequest(f"{field} is a text of at most {keys.NAME_MAX} characters")
    return op


BY_NAME: dict[str, Domain] = {
    "messages": Domain("messages", SEEN_MSG, MESSAGES, _pack_message, _ingest, _message_id),
    "members": Domain("members", SEEN_MEMBER, MEMBERS, _pack_member, _merge, _member_id),
    "identities": Domain("identities", SEEN_IDENTITY, IDENTITY, _pack_identity, _put_identity, _identity_id),
}
