"""One live channel: what is durable about it, its log, and who is connected. Promise: its changes happen one at a time,
in the order in which they came, and no more than a fixed number wait. The shard's thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from topicd.channel import ChannelState
from topicd.errors import NotReady, Throttled
from topicd.shards.delivery.channels.fifo import Queue
from topicd.shards.delivery.channels.store import Saved
from topicd.shards.delivery.channels.tallies import Tallies
from topicd.shards.delivery.topic.topic import Topic

WAITING_MAX = 1_024  # changes of one channel
MAILBOX_MAX = 16_384  # of all channels of a shard


class Watcher:
    """A connection that watches a channel, on behalf of a user."""

    user: str

    def tell(self, event: dict[str, Any]) -> None:
        """Something happened in the channel."""
        raise NotImplementedError

    def move(self, topic: Topic) -> None:
        """The channel's messages come from another log from now on."""
        raise NotImplementedError

    def end(self, event: dict[str, Any]) -> None:
        """The last event: it watches no more."""
        raise NotImplementedError


class Channel:
    def __init__(self, handler: str, tallies: Tallies) -> None:
        self.handler = handler
        self._tallies = tallies
        self._turn = asyncio.Lock()
        self._waiting = 0
        self.state: ChannelState | None = None  # None: it is not there yet, or no more
        self.topic: Topic | None = None
        self.saved: Saved | None = None  # what its file holds; None: it has none
        self.queue: Queue | None = None  # of one that is a queue
        self.watchers: dict[str, set[Watcher]] = {}  # those that are connected, by user
        self.switching = False  # its log is about to mean something else: no message is taken meanwhile
        self.flush_due: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """The turn of one change, or of a pop."""
        if self._waiting >= WAITING_MAX or self._tallies.waiting >= MAILBOX_MAX:
            message = f"{self._waiting} changes of channel {self.handler!r} wait for their turn"
            raise Throttled(message, limit="channel changes", retry_after_ms=50)
        self._waiting += 1
        self._tallies.waiting += 1
        try:
            async with self._turn:
                yield
        finally:
            self._waiting -= 1
            self._tallies.waiting -= 1

    @property
    def busy(self) -> bool:
        return self._waiting > 0

    def log(self) -> Topic:
        """Where its messages go now."""
        if self.topic is None or not self.topic.live or self.switching:
            raise NotReady(f"the log of channel {self.handler!r} is being made", retry_after_ms=20)
        return self.topic

    # ---- who is connected ----

    def connected(self) -> list[str]:
        return sorted(self.watchers)

    def attach(self, watcher: Watcher) -> None:
        first = watcher.user not in self.watchers
        self.watchers.setdefault(watcher.user, set()).add(watcher)
        self._tallies.connected += 1
        if first:
            self.tell("connected", user=watcher.user)

    def detach(self, watcher: Watcher) -> None:
        those = self.watchers.get(watcher.user)
        if those is None or watcher not in those:
            return
        those.remove(watcher)
        self._tallies.connected -= 1
        if not those:
            del self.watchers[watcher.user]
            self.tell("disconnected", user=watcher.user)

    def tell(self, kind: str, **what: Any) -> None:
        """To all that are connected and want to hear of such things."""
        event = {"event": "channel", "kind": kind, **what}
        for watcher in [one for those in self.watchers.values() for one in those]:
            watcher.tell(event)

    def move_watchers(self, topic: Topic) -> None:
        for watcher in [one for those in self.watchers.values() for one in those]:
            watcher.move(topic)

    def end_watches(self, kind: str, user: str | None = None) -> None:
        """Of one user, or of all."""
        event = {"event": "channel", "kind": kind, "ends": True, **({"user": user} if user is not None else {})}
        those = self.watchers.values() if user is None else [self.watchers.get(user, set())]
        for watcher in [one for some in list(those) for one in some]:
            watcher.end(event)
