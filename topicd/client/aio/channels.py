"""Channels for the asyncio client: the same requests and promises as topicd.client.blocking.channels."""

from __future__ import annotations

import asyncio
import builtins
import heapq
from collections.abc import AsyncIterator, Iterable
from typing import Any

from topicd.client.aio.caller import AioCaller
from topicd.client.aio.opening import Opening
from topicd.client.aio.watch import AsyncWatch
from topicd.client.core import channels as requests
from topicd.client.core.channels import (
    Access,
    ChannelInfo,
    ChannelItem,
    ChannelMessage,
    ChannelRow,
    Joined,
    Members,
    Mode,
    event_of,
    item_of,
)
from topicd.client.core.encode import Serializer, to_bytes
from topicd.client.core.records import Event
from topicd.client.core.watching import Noticed
from topicd.limits import CHANNEL_HISTORY_MAX, MIB


class AsyncChannels:
    """Made by `client.channels`. `user` says on whose behalf; a local client may name anybody, one with a token is the
    subject of its token. Without one: the user of this process."""

    def __init__(self, caller: AioCaller, serialize: Serializer) -> None:
        self._caller = caller
        self._serialize = serialize

    # ---- members ----

    async def join(self, channel: str, *, user: str | None = None) -> Joined:
        """Becomes a member; whoever joins a channel that is not there makes it and owns it."""
        return await self._caller.ask(requests.join(channel, user))

    async def leave(self, channel: str, *, user: str | None = None) -> bool:
        """Is a member no more. Whether the channel is gone with it."""
        return await self._caller.ask(requests.leave(channel, user))

    async def members(self, channel: str, *, user: str | None = None) -> Members:
        """Who is a member, and who of them is connected."""
        pages, after = [], ""
        while True:
            page = await self._caller.ask(requests.members_page(channel, user, after))
            pages.append(page.members)
            if page.next is None:
                return requests.joined_pages(pages)
            after = page.next

    # ---- messages ----

    async def publish(self, channel: str, data: Any, *, user: str | None = None) -> int:
        """Sends a message to all members that are connected; its seq."""
        return await self._caller.ask(requests.publish(channel, to_bytes(data, self._serialize), user))

    def watch(
        self,
        channel: str,
        start: int | str = "latest",
        *,
        user: str | None = None,
        events: bool = False,
        batch_bytes: int = MIB,
    ) -> Opening[AsyncChannelWatch]:
        """Messages as they come; with `events` also who joins and leaves, comes and goes. As long as it is open, the
        user is connected. `start` is latest, earliest or a seq (exclusive)."""
        wanted = requests.wanted_watch(channel, user, start, events)
        watch: AsyncWatch[Event] = AsyncWatch(self._caller, wanted, on_gap="yield", batch_bytes=batch_bytes)

        async def opened() -> AsyncChannelWatch:
            return AsyncChannelWatch(await watch.open(), channel)

        return Opening(opened())

    async def history(
        self, channel: str, from_seq: int = 1, *, limit: int = CHANNEL_HISTORY_MAX, user: str | None = None
    ) -> builtins.list[ChannelMessage]:
        """Messages of a persistent channel from from_seq on (inclusive), at most 100."""
        return await self._caller.ask(requests.history(channel, from_seq, limit, user))

    async def seq(self, channel: str, *, user: str | None = None) -> tuple[int, int]:
        """The seqs of the first and the last message that is kept; (0, 0): there is none."""
        return await self._caller.ask(requests.seq(channel, user))

    # ---- what a channel is ----

    async def get(self, channel: str, *, user: str | None = None) -> ChannelInfo:
        """Owner, type, configuration and lists."""
        return await self._caller.ask(requests.info(channel, user))

    async def list(self, prefix: str = "", *, member: str | None = None) -> AsyncIterator[ChannelRow]:
        """All channels whose handler begins with prefix, or those that `member` is in, by handler."""
        shards = self._caller.shard_map.shards()
        pages = await asyncio.gather(*(self._rows_of(shard, prefix, member) for shard in shards))
        for row in heapq.merge(*pages, key=lambda row: row.channel):
            yield row

    async def _rows_of(self, shard: int, prefix: str, member: str | None) -> builtins.list[ChannelRow]:
        found: builtins.list[ChannelRow] = []
        after: str | None = ""
        while after is not None:
            page = await self._caller.ask_shard(shard, requests.rows_page(prefix, after, member))
            found += page.rows
            after = page.next
        return found

    async def set_acl(
        self, channel: str, access: Access, users: Iterable[str], *, mode: Mode = "set", user: str | None = None
    ) -> ChannelInfo:
        """Who may join, publish or read; an empty list: everybody. `mode` allow adds to it, remove takes from it."""
        return await self._caller.ask(requests.set_acl(channel, access, users, mode, user))

    async def set_config(self, channel: str, *, user: str | None = None, **config: Any) -> ChannelInfo:
        """Changes the given fields of its configuration."""
        return await self._caller.ask(requests.set_config(channel, config, user))

    async def set_type(self, channel: str, type: str, *, user: str | None = None) -> ChannelInfo:
        """`fifo` makes a queue of a persistent channel, for good."""
        return await self._caller.ask(requests.set_type(channel, type, user))

    async def delete(self, channel: str, *, user: str | None = None) -> None:
        """Removes the channel with its history."""
        await self._caller.ask(requests.delete(channel, user))

    # ---- queues ----

    async def push(self, channel: str, data: Any, *, user: str | None = None) -> int:
        """Puts an element at the end of a queue; its seq."""
        return await self._caller.ask(requests.push(channel, to_bytes(data, self._serialize), user))

    async def pop(self, channel: str, *, user: str | None = None) -> ChannelMessage:
        """Takes the first element of a queue. At most once: when the connection breaks before the answer is there, the
        element may be gone, and the error says so."""
        return await self._caller.ask_once(requests.pop(channel, user))

    async def clear(self, channel: str, *, user: str | None = None) -> int:
        """Gives up everything in a queue; how many elements that were."""
        return await self._caller.ask(requests.clear(channel, user))


class AsyncChannelWatch:
    """Made by `client.channels.watch`: messages, events and gaps, across restarts of the daemon. Ends when the
    channel is deleted, or the user leaves it."""

    def __init__(self, watch: AsyncWatch[Event], channel: str) -> None:
        self._watch = watch
        self._channel = channel

    def __aiter__(self) -> AsyncChannelWatch:
        return self

    async def __anext__(self) -> ChannelItem:
        try:
            return item_of(self._channel, await anext(self._watch))
        except Noticed as noticed:
            return event_of(self._channel, noticed.notice)

    async def poll(self, timeout: float = 0.0) -> ChannelItem | None:
        """The next one, or None if there is none within so many seconds or the watch is over."""
        try:
            found = await self._watch.poll(timeout)
        except Noticed as noticed:
            return event_of(self._channel, noticed.notice)
        return None if found is None else item_of(self._channel, found)

    async def close(self) -> None:
        """Ends it; the user is connected no more."""
        await self._watch.close()

    async def __aenter__(self) -> AsyncChannelWatch:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
