"""Channels for the blocking client. Promise: as in operations; what is published or pushed is stored once, whatever is
repeated on the way; a pop is never repeated."""

from __future__ import annotations

import builtins
import heapq
from collections.abc import Iterable, Iterator
from typing import Any

from topicd.client.blocking.caller import Caller
from topicd.client.blocking.watch import Watch
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


class Channels:
    """Made by `client.channels`. `user` says on whose behalf; a local client may name anybody, one with a token is the
    subject of its token. Without one: the user of this process."""

    def __init__(self, caller: Caller, serialize: Serializer) -> None:
        self._caller = caller
        self._serialize = serialize

    # ---- members ----

    def join(self, channel: str, *, user: str | None = None) -> Joined:
        """Becomes a member; whoever joins a channel that is not there makes it and owns it."""
        return self._caller.ask(requests.join(channel, user))

    def leave(self, channel: str, *, user: str | None = None) -> bool:
        """Is a member no more. Whether the channel is gone with it."""
        return self._caller.ask(requests.leave(channel, user))

    def members(self, channel: str, *, user: str | None = None) -> Members:
        """Who is a member, and who of them is connected."""
        pages, after = [], ""
        while True:
            page = self._caller.ask(requests.members_page(channel, user, after))
            pages.append(page.members)
            if page.next is None:
                return requests.joined_pages(pages)
            after = page.next

    # ---- messages ----

    def publish(self, channel: str, data: Any, *, user: str | None = None) -> int:
        """Sends a message to all members that are connected; its seq."""
        return self._caller.ask(requests.publish(channel, to_bytes(data, self._serialize), user))

    def watch(
        self,
        channel: str,
        start: int | str = "latest",
        *,
        user: str | None = None,
        events: bool = False,
        batch_bytes: int = MIB,
    ) -> ChannelWatch:
        """Messages as they come; with `events` also who joins and leaves, comes and goes. As long as it is open, the
        user is connected. `start` is latest, earliest or a seq (exclusive)."""
        wanted = requests.wanted_watch(channel, user, start, events)
        watch: Watch[Event] = Watch(self._caller, wanted, on_gap="yield", batch_bytes=batch_bytes)
        return ChannelWatch(watch.open(), channel)

    def history(
        self, channel: str, from_seq: int = 1, *, limit: int = CHANNEL_HISTORY_MAX, user: str | None = None
    ) -> builtins.list[ChannelMessage]:
        """Messages of a persistent channel from from_seq on (inclusive), at most 100."""
        return self._caller.ask(requests.history(channel, from_seq, limit, user))

    def seq(self, channel: str, *, user: str | None = None) -> tuple[int, int]:
        """The seqs of the first and the last message that is kept; (0, 0): there is none."""
        return self._caller.ask(requests.seq(channel, user))

    # ---- what a channel is ----

    def get(self, channel: str, *, user: str | None = None) -> ChannelInfo:
        """Owner, type, configuration and lists."""
        return self._caller.ask(requests.info(channel, user))

    def list(self, prefix: str = "", *, member: str | None = None) -> Iterator[ChannelRow]:
        """All channels whose handler begins with prefix, or those that `member` is in, by handler."""
        pages = [self._rows_of(shard, prefix, member) for shard in self._caller.shard_map.shards()]
        return heapq.merge(*pages, key=lambda row: row.channel)

    def _rows_of(self, shard: int, prefix: str, member: str | None) -> Iterator[ChannelRow]:
        after: str | None = ""
        while after is not None:
            page = self._caller.ask_shard(shard, requests.rows_page(prefix, after, member))
            yield from page.rows
            after = page.next

    def set_acl(
        self, channel: str, access: Access, users: Iterable[str], *, mode: Mode = "set", user: str | None = None
    ) -> ChannelInfo:
        """Who may join, publish or read; an empty list: everybody. `mode` allow adds to it, remove takes from it."""
        return self._caller.ask(requests.set_acl(channel, access, users, mode, user))

    def set_config(self, channel: str, *, user: str | None = None, **config: Any) -> ChannelInfo:
        """Changes the given fields of its configuration."""
        return self._caller.ask(requests.set_config(channel, config, user))

    def set_type(self, channel: str, type: str, *, user: str | None = None) -> ChannelInfo:
        """`fifo` makes a queue of a persistent channel, for good."""
        return self._caller.ask(requests.set_type(channel, type, user))

    def delete(self, channel: str, *, user: str | None = None) -> None:
        """Removes the channel with its history."""
        self._caller.ask(requests.delete(channel, user))

    # ---- queues ----

    def push(self, channel: str, data: Any, *, user: str | None = None) -> int:
        """Puts an element at the end of a queue; its seq."""
        return self._caller.ask(requests.push(channel, to_bytes(data, self._serialize), user))

    def pop(self, channel: str, *, user: str | None = None) -> ChannelMessage:
        """Takes the first element of a queue. At most once: when the connection breaks before the answer is there, the
        element may be gone, and the error says so."""
        return self._caller.ask_once(requests.pop(channel, user))

    def clear(self, channel: str, *, user: str | None = None) -> int:
        """Gives up everything in a queue; how many elements that were."""
        return self._caller.ask(requests.clear(channel, user))


class ChannelWatch:
    """Made by `client.channels.watch`: messages, events and gaps, across restarts of the daemon. Ends when the
    channel is deleted, or the user leaves it."""

    def __init__(self, watch: Watch[Event], channel: str) -> None:
        self._watch = watch
        self._channel = channel

    def __iter__(self) -> ChannelWatch:
        return self

    def __next__(self) -> ChannelItem:
        try:
            return item_of(self._channel, next(self._watch))
        except Noticed as noticed:
            return event_of(self._channel, noticed.notice)

    def poll(self, timeout: float = 0.0) -> ChannelItem | None:
        """The next one, or None if there is none within so many seconds or the watch is over."""
        try:
            found = self._watch.poll(timeout)
        except Noticed as noticed:
            return event_of(self._channel, noticed.notice)
        return None if found is None else item_of(self._channel, found)

    def close(self) -> None:
        """Ends it; the user is connected no more."""
        self._watch.close()

    def __enter__(self) -> ChannelWatch:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
