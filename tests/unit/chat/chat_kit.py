"""A chat store without its process: operations are applied as the log would have them."""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
from collections.abc import Callable, Coroutine
from typing import Any

from topicd.errors import TopicdError
from topicd.shards.chat import keys, members
from topicd.shards.chat.domains import BY_NAME, DOMAINS, incoming
from topicd.shards.chat.hlc import HybridClock
from topicd.shards.chat.members import Member
from topicd.shards.chat.operations import Add, Entry, Mark, Operation, PutIdentity, Remove, Send
from topicd.shards.chat.rows import Kind, Message
from topicd.shards.chat.store import MemoryStore, Store
from topicd.shards.chat.view import View

START_MS = 1_700_000_000_000


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that is a coroutine."""

    @functools.wraps(test)
    def run(**given: Any) -> None:
        asyncio.run(test(**given))

    return run


class Shop:
    """One store with its clock; `now_ms` is set by the test."""

    def __init__(self, store: Store | None = None, now_ms: int = START_MS) -> None:
        self.store = store or MemoryStore()
        self.view = View(self.store, topic_id=7)
        self.now_ms = now_ms
        self.clock = HybridClock(lambda: self.now_ms)
        self.log: list[tuple[int, bytes]] = []

    def do(self, *operations: Operation) -> list[Any]:
        """What each answers; raises the error of a single one."""
        raw = Entry(self.now_ms, list(operations)).pack()
        seq = self.view.applied + 1
        self.log.append((seq, raw))
        (outcomes,) = self.view.apply([(seq, Entry.unpack(raw))]).outcomes
        if len(outcomes) == 1 and isinstance(outcomes[0], TopicdError):
            raise outcomes[0]
        return outcomes

    def send(
        self,
        chat: str,
        text: str,
        user: str,
        *,
        stamp: int = 0,
        msg_id: bytes = b"",
        blob: bytes = b"",
        kind: int = Kind.GROUP,
    ) -> Any:
        sender = keys.user_id(user)
        if chat.startswith("@"):
            peer = keys.user_id(chat[1:])
            where, kind, name = keys.dm_id(sender, peer), Kind.DM, chat[1:]
        else:
            where, name, peer = keys.chat_id(chat), chat, b""
        made = Message(
            msg_id or os.urandom(32),
            where,
            sender,
            stamp or self.clock.stamp(),
            int(kind),
            text,
            peer,
            blob,
            name,
            user,
        )
        return self.do(Send(made))[0]

    def add(self, chat: str, user: str, role: int = 0, by: str = "") -> Member:
        who = keys.user_id(by) if by else b""
        op = Add(keys.chat_id(chat), keys.user_id(user), role, self.clock.stamp(), who, int(Kind.GROUP), chat, user)
        return self.do(op)[0]  # type: ignore[no-any-return]

    def remove(self, chat: str, user: str, by: str = "") -> bool:
        who = keys.user_id(by) if by else b""
        return self.do(Remove(keys.chat_id(chat), keys.user_id(user), self.clock.stamp(), who, chat, user))[0]  # type: ignore[no-any-return]

    def mark(self, chat: str, seq: int, user: str) -> int:
        return self.do(Mark(keys.user_id(user), keys.chat_id(chat), seq))[0]  # type: ignore[no-any-return]

    def identity(self, user: str, blob: bytes, stamp: int = 0) -> bool:
        return self.do(PutIdentity(keys.user_id(user), stamp or self.clock.stamp(), blob, user))[0]  # type: ignore[no-any-return]

    def rows(self, table: Any) -> list[tuple[bytes, bytes]]:
        return list(self.store.scan(table))

    def ids(self, cutoff_ms: int = 0) -> dict[str, set[bytes]]:
        return {domain: {record for record, _ in BY_NAME[domain].ids(self.store, cutoff_ms)} for domain in DOMAINS}

    def give(self, other: Shop, domain: str, ids: list[bytes]) -> None:
        """Records to another store, as sync carries them."""
        for record in BY_NAME[domain].batch(self.store, ids, 1 << 20).records:
            other.do(incoming(BY_NAME[domain], record, other.clock))


def numbered(count: int) -> list[str]:
    return [f"u{number}" for number in range(count)]


def member_of(shop: Shop, chat: str, user: str) -> Member | None:
    from topicd.shards.chat.membership import row_of

    return row_of(shop.store, keys.chat_id(chat), keys.user_id(user))


def everything(shop: Shop) -> dict[str, list[tuple[bytes, bytes]]]:
    from topicd.shards.chat.store import TABLES

    return {table.name: shop.rows(table) for table in TABLES}


def all_orders(items: list[Any]) -> Any:
    return itertools.permutations(items)


def record_id(chat: str, user: str, row: Member) -> bytes:
    return members.record_id(keys.chat_id(chat), keys.user_id(user), row)
