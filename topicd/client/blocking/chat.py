"""The chat store as the blocking client sees it: `client.chat`. Layout of requests: topicd.client.core.chat."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from topicd.client.blocking.caller import Caller
from topicd.client.blocking.connection import Connection
from topicd.client.core import chat as requests
from topicd.client.core.chat import (
    CREDIT,
    LONG_S,
    ChatEvent,
    ChatMember,
    ChatMessage,
    InboxChange,
    InboxPage,
    Listening,
    MessagePage,
    Sent,
)
from topicd.client.core.requests import Request
from topicd.client.core.shardmap import CHAT
from topicd.clock import SystemClock
from topicd.errors import TopicdError
from topicd.ipc.protocol.chat import PAGE_MAX, ChatOp
from topicd.ipc.protocol.codec import answer_map, packed
from topicd.ipc.protocol.retry import FOREVER_S, Patience
from topicd.ipc.protocol.wire import ANSWER, message

T = TypeVar("T")


class Chat:
    """Made by `client.chat`. Chats and users are given by name, or as 64 and 40 hex digits; `@name` is the chat with
    that user."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def _ask(self, request: Request[T], wait: float = 0.0) -> T:
        """wait: how long an answer may take. What is refused is not tried again for so long."""

        def attempt(connection: Connection) -> T:
            if wait:
                connection.set_timeout(wait)
            return connection.ask(request)

        return self._caller.on_shard(lambda: CHAT, attempt)

    # ---- messages ----

    def send(
        self,
        chat: str,
        text: str,
        *,
        user: str,
        id: str | bytes | None = None,
        blob: bytes = b"",
        kind: str = "group",
    ) -> Sent:
        """Stores a message once. A chat that does not exist is made, of that kind, and `user` its admin."""
        return self._ask(requests.send(chat, text, user, id, blob, kind))

    def send_many(
        self, messages: Sequence[Any], *, user: str | None = None, kind: str = "group"
    ) -> list[Sent | TopicdError]:
        """Stores (chat, text), (chat, text, user) or (chat, text, user, id) each; what became of each, in order."""
        found: list[Sent | TopicdError] = []
        for request in requests.send_many(messages, user, kind):
            part = self._ask(request)
            found += part
        return found

    def read(
        self,
        chat: str,
        *,
        user: str | None = None,
        after: str = "",
        before: str = "",
        newest: bool = False,
        limit: int = 50,
    ) -> MessagePage:
        """A page of a chat in the order of time: behind a cursor, or the newest ones, or those before a cursor."""
        return self._ask(requests.read(chat, user, after, before, newest, limit))

    def messages(self, chat: str, *, user: str | None = None, after: str = "") -> Iterator[ChatMessage]:
        """All messages of a chat behind a cursor, in the order of time."""
        while True:
            page = self.read(chat, user=user, after=after, limit=PAGE_MAX)
            yield from page.messages
            after = page.next
            if not after:
                return

    def inbox(self, user: str, *, after: str = "", limit: int = 50) -> InboxPage:
        """A page of the user's chats, the one with the newest message first."""
        return self._ask(requests.inbox(user, after, limit))

    def mark(self, chat: str, seq: int, *, user: str) -> int:
        """The user has read up to seq; it never goes back. How far that is now."""
        return self._ask(requests.mark(chat, seq, user))

    def signal(self, chat: str, kind: str, *, user: str, data: bytes = b"") -> int:
        """Tells those who listen now, and nobody later; how many they were."""
        return self._ask(requests.signal(chat, kind, user, data))

    # ---- members and identities ----

    def members(self, chat: str, *, user: str | None = None) -> list[ChatMember]:
        """Who belongs to a chat."""
        return self._ask(requests.members(chat, user))

    def add(
        self, chat: str, member: str, *, role: str = "participant", user: str | None = None, kind: str = "group"
    ) -> None:
        """Adds a member; with `user` as that admin of the chat."""
        self._ask(requests.add(chat, member, role, user, kind))

    def remove(self, chat: str, member: str, *, user: str | None = None) -> bool:
        """Removes a member; with `user` as that admin of the chat, or as the member who leaves. False: it was none, and
        an addition of before that comes from another store does not make it one."""
        return self._ask(requests.remove(chat, member, user))

    def put_identity(self, user: str, blob: bytes) -> bool:
        """What others shall know of the user, at most 1,024 bytes; False: a later one is there."""
        return self._ask(requests.put_identity(user, blob))

    def identity(self, user: str) -> bytes | None:
        """What the user has put."""
        return self._ask(requests.identity(user))

    # ---- the store ----

    def info(self, chat: str, *, user: str | None = None) -> dict[str, Any]:
        """What is known of a chat as a whole."""
        return self._ask(requests.info(chat, user))

    def stats(self, *, rows: bool = True) -> dict[str, Any]:
        """Figures of the store; with the rows of each table, which are counted."""
        return self._ask(requests.stats(rows), LONG_S)

    def digest(self, *, fresh: bool = False, cutoff_ms: int = 0) -> dict[str, Any]:
        """Digests of messages, members and identities: two stores with the same digests hold the same."""
        return self._ask(requests.digest(fresh, cutoff_ms), LONG_S)

    def retain(
        self, *, older_than: timedelta | None = None, cutoff_ms: int | None = None, dry_run: bool = False
    ) -> dict[str, Any]:
        """Removes messages up to a time for good, or says what would go."""
        request = requests.retain(older_than, cutoff_ms, dry_run, SystemClock().now_ms())
        return self._ask(request, LONG_S)

    def verify(self) -> dict[str, Any]:
        """Whether the store is what its log makes, row by row."""
        return self._ask(requests.verify(), LONG_S)

    def rebuild(self, *, over_holes: bool = False) -> dict[str, Any]:
        """Makes the store anew from its log; with over_holes, of a store that is closed because entries of its log are
        missing, goes on without them."""
        return self._ask(requests.rebuild(over_holes), LONG_S)

    def sync(
        self,
        target: str,
        *,
        token: str | None = None,
        method: str = "negentropy",
        ca_file: str | os.PathLike[str] | None = None,
    ) -> dict[str, Any]:
        """Makes this store and another one equal. `ca_file`, a file of the daemon's machine, holds the certificates to
        trust instead of the system's."""
        return self._ask(requests.sync(target, token, method, ca_file), LONG_S)

    # ---- listening ----

    def watch(self, chat: str, *, user: str | None = None, after_seq: int | None = None) -> Iterator[ChatEvent]:
        """Messages of a chat in the order in which they come to the store, from behind a seq or from now on, and
        signals; across restarts of the daemon, without a hole."""
        return self._listen(Listening(chat, user, after_seq))

    def watch_inbox(self, user: str) -> Iterator[InboxChange]:
        """All rows of an inbox, then each that changes; after a break all of them again."""
        return self._listen(Listening(None, user, None))

    def _listen(self, listening: Listening) -> Iterator[Any]:
        patience = Patience(self._caller.tempo, self._caller.timeout)
        while True:
            try:
                connection, subscription = self._subscribed(listening, patience.remaining())
                patience = Patience(self._caller.tempo, FOREVER_S)  # once it was open, it waits as long as that takes
                with contextlib.closing(connection):
                    yield from _events(connection, subscription, listening)
            except TopicdError as exc:
                patience.pause(exc)

    def _subscribed(self, listening: Listening, timeout: float) -> tuple[Connection, int]:
        connection = self._caller.dial(CHAT, timeout)
        try:
            request_id = connection.next_id()
            connection.send(message(ChatOp.SUBSCRIBE, request_id, packed(listening.request().to_wire())))
            connection.answer(request_id, ChatOp.SUBSCRIBE | ANSWER)
        except BaseException:
            connection.close()
            raise
        connection.set_timeout(None)
        return connection, request_id


def _events(connection: Connection, subscription: int, listening: Listening) -> Iterator[Any]:
    used = 0
    while True:
        arrived = connection.receive()
        if arrived.op != ChatOp.EVENTS:
            continue
        used += listening.take(answer_map(arrived.body()))
        while listening.events:
            yield listening.events.popleft()
        if used >= CREDIT // 2:
            connection.send(requests.credit(subscription, used))
            used = 0
