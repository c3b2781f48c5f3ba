"""The channels of one shard: by handler, and by user. Promise: what is counted and indexed follows from the states that
were applied, and from nothing else.
"""

from __future__ import annotations

from topicd.channel import ChannelState, channel_hash, channel_topic
from topicd.errors import ChannelNotFound, StorageCorrupt
from topicd.shards.delivery.channels.channel import Channel
from topicd.shards.delivery.channels.tallies import Tallies
from topicd.shards.delivery.topic.catalog import Catalog


class Registry:
    def __init__(self, catalog: Catalog, tallies: Tallies) -> None:
        self._catalog = catalog
        self._tallies = tallies
        self._channels: dict[str, Channel] = {}  # also such as are about to be
        self.by_user: dict[str, set[str]] = {}  # handlers
        self.corrupt: dict[str, str] = {}  # by hash: why it could not be restored

    def __len__(self) -> int:
        return self._tallies.active

    def all(self) -> list[Channel]:
        return [channel for channel in self._channels.values() if channel.state is not None]

    def get(self, handler: str) -> tuple[Channel, ChannelState]:
        channel = self._channels.get(handler)
        if channel is None or channel.state is None:
            self._check(handler)
            raise ChannelNotFound(f"no channel {handler!r}", channel=handler)
        return channel, channel.state

    def obtain(self, handler: str) -> Channel:
        """The channel, or the place where it is about to be."""
        channel = self._channels.get(handler)
        if channel is None:
            self._check(handler)
            channel = self._channels[handler] = Channel(handler, self._tallies)
        return channel

    def _check(self, handler: str) -> None:
        self._catalog.check_owned(channel_topic(handler))
        problem = self.corrupt.get(channel_hash(handler)) if self.corrupt else None
        if problem is not None:
            raise StorageCorrupt(f"channel {handler!r} could not be restored: {problem}", channel=handler)

    def apply(self, channel: Channel, state: ChannelState | None) -> None:
        """The channel is so from now on; None: it is gone."""
        before = channel.state
        channel.state = state
        if before is None and state is not None:
            self._channels[channel.handler] = channel
        was, now = set(before.members if before else ()), set(state.members if state else ())
        if len(was) + len(now) and was != now:
            for user in was - now:
                self._forget_member(user, channel.handler)
            for user in now - was:
                self.by_user.setdefault(user, set()).add(channel.handler)
        self._tallies.active += (state is not None) - (before is not None)
        self._tallies.members += len(now) - len(was)
        if state is None:
            self.discard(channel)

    def _forget_member(self, user: str, handler: str) -> None:
        those = self.by_user[user]
        those.discard(handler)
        if not those:
            del self.by_user[user]

    def discard(self, channel: Channel) -> None:
        """It came to nothing, or is gone; whoever waits for its turn will make a new one."""
        if channel.state is None and self._channels.get(channel.handler) is channel and not channel.busy:
            del self._channels[channel.handler]

    def page(self, prefix: str, after: str, limit: int, user: str | None) -> tuple[list[ChannelState], str | None]:
        """In the order of their handlers."""
        names = self._channels if user is None else self.by_user.get(user, ())
        chosen = sorted(name for name in names if name.startswith(prefix) and name > after)
        found = [channel.state for channel in map(self._channels.get, chosen) if channel and channel.state]
        return found[:limit], (found[limit - 1].handler if len(found) > limit else None)
