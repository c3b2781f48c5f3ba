"""The chat store as the asyncio client sees it: `client.chat`. Layout of requests: topicd.client.core.chat."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from topicd.client.aio.caller import AioCaller
from topicd.client.aio.connection import AioConnection, open_connection
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
from topicd.errors import ConnectionLost, TopicdError
from topicd.ipc.protocol.chat import PAGE_MAX, ChatOp
from topicd.ipc.protocol.codec import answer_map, packed
from topicd.ipc.protocol.cutter import Cutter
from topicd.ipc.protocol.retry import FOREVER_S, Patience

T = TypeVar("T")


class AsyncChat:
    """Made by `client.chat`; see `topicd.client.blocking.chat.Chat`."""

    def __init__(self, caller: AioCaller) -> None:
        self._caller = caller

    async def _ask(self, request: Request[T], wait: float = 0.0) -> T:
        _flags, raw = await self._caller.exchange(lambda: CHAT, request.op, request.body, wait=wait, brief=True)
        return request.parse(answer_map(raw))

    # ---- messages ----

    async def send(
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
        return await self._ask(requests.send(chat, text, user, id, blob, kind))

    async def send_many(
        self, messages: Sequence[Any], *, user: str | None = None, kind: str = "group"
    ) -> list[Sent | TopicdError]:
        """Stores (chat, text), (chat, text, user) or (chat, text, user, id) each; what became of each, in order."""
        found: list[Sent | TopicdError] = []
        for request in requests.send_many(messages, user, kind):
            part = await self._ask(request)
            found += part
        return found

    async def read(
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
        return await self._ask(requests.read(chat, user, after, before, newest, limit))

    async def messages(self, chat: str, *, user: str | None = None, after: str = "") -> AsyncIterator[ChatMessage]:
        """All messages of a chat behind a cursor, in the order of time."""
        while True:
            page = await self.read(chat, user=user, after=after, limit=PAGE_MAX)
            for found in page.messages:
                yield found
            after = page.next
            if not after:
                return

    async def inbox(self, user: str, *, after: str = "", limit: int = 50) -> InboxPage:
        """A page of the user's chats, the one with the newest message first."""
        return await self._ask(requests.inbox(user, after, limit))

    async def mark(self, chat: str, seq: int, *, user: str) -> int:
        """The user has read up to seq; it never goes back. How far that is now."""
        return await self._ask(requests.mark(chat, seq, user))

    async def signal(self, chat: str, kind: str, *, user: str, data: bytes = b"") -> int:
        """Tells those who listen now, and nobody later; how many they were."""
        return await self._ask(requests.signal(chat, kind, user, data))

    # ---- members and identities ----

    async def members(self, chat: str, *, user: str | None = None) -> list[ChatMember]:
        """Who belongs to a chat."""
        return await self._ask(requests.members(chat, user))

    async def add(
        self, chat: str, member: str, *, role: str = "participant", user: str | None = None, kind: str = "group"
    ) -> None:
        """Adds a member; with `user` as that admin of the chat."""
        await self._ask(requests.add(chat, member, role, user, kind))

    async def remove(self, chat: str, member: str, *, user: str | None = None) -> bool:
        """Removes a member; with `user` as that admin of the chat, or as the member who leaves. False: it was none, and
        an addition of before that comes from another store does not make it one."""
        return await self._ask(requests.remove(chat, member, user))

    async def put_identity(self, user: str, blob: bytes) -> bool:
        """What others shall know of the user, at most 1,024 bytes; False: a later one is there."""
        return await self._ask(requests.put_identity(user, blob))

    async def identity(self, user: str) -> bytes | None:
        """What the user has put."""
        return await self._ask(requests.identity(user))

    # ---- the store ----

    async def info(self, chat: str, *, user: str | None = None) -> dict[str, Any]:
        """What is known of a chat as a whole."""
        return await self._ask(requests.info(chat, user))

    async def stats(self, *, rows: bool = True) -> dict[str, Any]:
        """Figures of the store; with the rows of each table, which are counted."""
        return await self._ask(requests.stats(rows), LONG_S)

    async def digest(self, *, fresh: bool = False, cutoff_ms: int = 0) -> dict[str, Any]:
        """Digests of messages, members and identities: two stores with the same digests hold the same."""
        return await self._ask(requests.digest(fresh, cutoff_ms), LONG_S)

    async def retain(
        self, *, older_than: timedelta | None = None, cutoff_ms: int | None = None, dry_run: bool = False
    ) -> dict[str, Any]:
        """Removes messages up to a time for good, or says what would go."""
        request = requests.retain(older_than, cutoff_ms, dry_run, SystemClock().now_ms())
        return await self._ask(request, LONG_S)

    async def verify(self) -> dict[str, Any]:
        """Whether the store is what its log makes, row by row."""
        return await self._ask(requests.verify(), LONG_S)

    async def rebuild(self, *, over_holes: bool = False) -> dict[str, Any]:
        """Makes the store anew from its log; with over_holes, of a store that is closed because entries of its log are
        missing, goes on without them."""
        return await self._ask(requests.rebuild(over_holes), LONG_S)

    async def sync(
        self,
        target: str,
        *,
        token: str | None = None,
        method: str = "negentropy",
        ca_file: str | os.PathLike[str] | None = None,
    ) -> dict[str, Any]:
        """Makes this store and another one equal. `ca_file`, a file of the daemon's machine, holds the certificates to
        trust instead of the system's."""
        return await self._ask(requests.sync(target, token, method, ca_file), LONG_S)

    # ---- listening ----

    def watch(self, chat: str, *, user: str | None = None, after_seq: int | None = None) -> AsyncIterator[ChatEvent]:
        """Messages of a chat in the order in which they come to the store, from behind a seq or from now on, and
        signals; across restarts of the daemon, without a hole."""
        return self._listen(Listening(chat, user, after_seq))

    def watch_inbox(self, user: str) -> AsyncIterator[InboxChange]:
        """All rows of an inbox, then each that changes; after a break all of them again."""
        return self._listen(Listening(None, user, None))

    async def _listen(self, listening: Listening) -> AsyncIterator[Any]:
        patience = Patience(self._caller.tempo, self._caller.timeout)
        while True:
            try:
                feed = _Feed(listening)
                await feed.open(self._caller, patience.remaining())
                patience = Patience(self._caller.tempo, FOREVER_S)  # once it was open, it waits as long as that takes
                try:
                    while True:
                        yield await feed.next()
                finally:
                    feed.close()
            except TopicdError as exc:
                await asyncio.sleep(patience.after(exc))


class _Feed:
    """One connection of somebody who listens."""

    def __init__(self, listening: Listening) -> None:
        self._listening = listening
        self._changed = asyncio.Event()
        self._why: TopicdError | None = None
        self._connection: AioConnection | None = None
        self._subscription = 0
        self._used = 0

    async def open(self, caller: AioCaller, timeout: float) -> None:
        connection = AioConnection(self._lost, lambda: None)
        connection.on_input = partial(self._input, connection)
        await open_connection(caller, CHAT, connection, timeout)
        self._connection = connection
        try:
            async with asyncio.timeout(timeout):
                await connection.call(ChatOp.SUBSCRIBE, packed(self._listening.request().to_wire()))
        except TimeoutError:
            self.close()
            raise ConnectionLost("the chat store did not answer in time") from None
        except TopicdError:
            self.close()
            raise

    def _input(self, connection: AioConnection, cutter: Cutter) -> None:
        while (arrived := cutter.take()) is not None:
            if arrived.op == ChatOp.EVENTS:
                self._subscription = arrived.request_id
                self._used += self._listening.take(answer_map(arrived.body()))
                self._changed.set()
            elif connection.expects(arrived.request_id):
                connection.answered(arrived)

    def _lost(self, connection: AioConnection, why: TopicdError) -> None:
        self._why = why
        self._changed.set()

    async def next(self) -> Any:
        while not self._listening.events:
            if self._why is not None:
                raise self._why
            if self._used >= CREDIT // 2 and self._connection is not None:
                self._connection.send(requests.credit(self._subscription, self._used))
                self._used = 0
            self._changed.clear()
            await self._changed.wait()
        return self._listening.events.popleft()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.abort(ConnectionLost("done"))
            self._connection = None
