"""What changes a channel. Promise: persist, then apply: the state as it will be is saved before anybody sees it, and a
save that fails leaves the channel as it was, for those who ask and on the disk. Of a persistent channel, a join, a
leave, a change of a list, of the configuration or of the type is one save each; nothing else is one.

A new log is made before the metadata names it, and the old one goes after; so whatever a crash leaves, the metadata
names a log that is whole (docs/adr/0016).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from topicd.channel import FIFO, TYPES, ChannelState
from topicd.errors import ChannelNotFound, Conflict, InvalidRequest, TopicdError
from topicd.shards.delivery.channels import acl
from topicd.shards.delivery.channels.channel import Channel
from topicd.shards.delivery.channels.files import ChannelFiles
from topicd.shards.delivery.channels.logs import Logs
from topicd.shards.delivery.channels.members import is_member, with_member, without_member
from topicd.shards.delivery.channels.registry import Registry
from topicd.shards.delivery.channels.slots import Slots
from topicd.shards.delivery.place import Place
from topicd.shards.delivery.reading.reading import Reader


class Joined:
    """How a join went."""

    def __init__(self, state: ChannelState, *, created: bool, joined: bool) -> None:
        self.state = state
        self.created = created
        self.joined = joined


class Mutations:
    def __init__(
        self, place: Place, registry: Registry, files: ChannelFiles, logs: Logs, slots: Slots, reader: Reader
    ) -> None:
        self._place = place
        self._registry = registry
        self._files = files
        self._logs = logs
        self._slots = slots
        self._reader = reader

    @asynccontextmanager
    async def _turn(self, handler: str) -> AsyncIterator[tuple[Channel, ChannelState]]:
        """The turn of one change of a channel that is there."""
        channel, _ = self._registry.get(handler)
        try:
            async with channel.turn():
                if channel.state is None:
                    raise ChannelNotFound(f"channel {handler!r} is gone", channel=handler)
                yield channel, channel.state
        finally:
            self._registry.discard(channel)

    # ---- members ----

    async def join(self, handler: str, user: str) -> Joined:
        """Whoever comes first makes the channel, and owns it."""
        channel = self._registry.obtain(handler)
        try:
            async with channel.turn():
                if channel.state is None:
                    return await self._create(channel, user)
                return await self._join(channel, channel.state, user)
        finally:
            self._registry.discard(channel)

    async def _create(self, channel: Channel, user: str) -> Joined:
        channel = self._registry.obtain(channel.handler)
        await self._slots.reserve(user, channel.handler)
        try:
            state = ChannelState(channel.handler, owner=user, members=(user,))
            name, channel.topic = await self._logs.create(channel.handler, state.config)
            state = replace(state, log=name)
            self._registry.apply(channel, state)
        finally:
            self._slots.release(user, channel.handler)
        return Joined(state, created=True, joined=True)

    async def _join(self, channel: Channel, state: ChannelState, user: str) -> Joined:
        if is_member(state.members, user):
            return Joined(state, created=False, joined=False)
        acl.may_join(state, user)
        await self._slots.reserve(user, channel.handler)
        try:
            wanted = replace(state, members=with_member(state.members, user), owner=state.owner or user)
            await self._save(channel, wanted)
        finally:
            # Whether it is a member now or not is what this shard knows.
            self._slots.release(user, channel.handler)
        channel.tell("joined", user=user)
        if wanted.owner != state.owner:
            channel.tell("owner", user=wanted.owner)
        return Joined(wanted, created=False, joined=True)

    async def leave(self, handler: str, user: str) -> ChannelState | None:
        """The first of those that stay owns it when its owner leaves. A channel that nobody is in goes, unless it is
        persistent; a queue goes with its owner. None: it is gone."""
        async with self._turn(handler) as (channel, state):
            acl.check_member(state, user)
            members = without_member(state.members, user)
            if (state.fifo and user == state.owner) or not (members or state.config.persist):
                await self._delete(channel, state, "deleted")
                return None
            owner = state.owner
            if user == owner:
                owner = members[0] if members else None
            wanted = replace(state, members=members, owner=owner)
            await self._save(channel, wanted)
            channel.end_watches("left", user)
            channel.tell("left", user=user)
            if owner != state.owner:
                channel.tell("owner", user=owner)
            return wanted

    # ---- lists and configuration ----

    async def set_acl(
        self, handler: str, user: str | None, name: str, mode: str, users: tuple[str, ...]
    ) -> ChannelState:
        """user: who asks; None: an operator."""
        async with self._turn(handler) as (channel, state):
            _check_owner(state, user)
            before = getattr(state.acl, name)
            chosen = {"set": set(users), "allow": {*before, *users}, "remove": set(before) - set(users)}[mode]
            wanted = replace(state, acl=state.acl.with_list(name, tuple(chosen)))
            await self._save(channel, wanted)
            channel.tell("acl", list=name)
            for connected in channel.connected():
                if not acl.is_listed(wanted, wanted.acl.read, connected):
                    channel.end_watches("forbidden", connected)
            return wanted

    async def set_config(self, handler: str, user: str | None, fields: dict[str, Any]) -> ChannelState:
        async with self._turn(handler) as (channel, state):
            _check_owner(state, user)
            wanted = replace(state, config=state.config.updated(fields))
            if wanted.config.persist and not self._place.settings.channel_auth:
                raise Conflict("no channel is persistent while channel_auth is off: nobody knows who its members are")
            if state.fifo and not wanted.config.persist:
                raise Conflict(f"channel {handler!r} is a queue, which is always persistent", channel=handler)
            if not (wanted.config.persist or wanted.members):
                # Nobody is in it, and nothing keeps it any more.
                await self._delete(channel, state, "deleted")
                return wanted
            if wanted.config.persist != state.config.persist:
                wanted = await self._change_log(channel, wanted)
            else:
                await self._save(channel, wanted)
                await self._configure_log(channel, state, wanted)
            channel.tell("config")
            return wanted

    async def _change_log(self, channel: Channel, wanted: ChannelState) -> ChannelState:
        """It becomes persistent, or is so no more: with an empty log either way."""
        old = channel.log()
        name, new = await self._logs.create(channel.handler, wanted.config)
        wanted = replace(wanted, log=name)
        try:
            if wanted.config.persist:
                channel.saved = await self._files.save(wanted, None)
            else:
                await self._files.delete(channel.saved)
                channel.saved = None
        except TopicdError:
            self._logs.drop(new)
            raise
        self._registry.apply(channel, wanted)
        channel.topic = new
        channel.move_watchers(new)
        self._logs.drop(old)
        return wanted

    async def _configure_log(self, channel: Channel, before: ChannelState, wanted: ChannelState) -> None:
        """The file is the truth by now: if the log does not follow, it says again what was before."""
        try:
            await self._logs.configure(channel.log(), wanted.config, fifo=wanted.fifo)
        except TopicdError:
            await self._save(channel, before)
            raise

    # ---- type ----

    async def set_type(self, handler: str, user: str | None, kind: str) -> ChannelState:
        """From pubsub to fifo, once and for good: what was published before is no element of the queue. The log
        first, then the cursor, then the metadata: before the last of them nothing has changed for anybody."""
        async with self._turn(handler) as (channel, state):
            _check_owner(state, user)
            if kind not in TYPES:
                raise InvalidRequest(f"the type of a channel is one of {', '.join(TYPES)}, not {kind!r:.100}")
            if kind == state.type:
                return state
            if state.fifo:
                raise Conflict(f"channel {handler!r} is a queue and stays one", channel=handler)
            if not state.config.persist:
                raise Conflict(f"channel {handler!r} is not persistent: a queue has to be", channel=handler)
            topic = channel.log()
            channel.switching = True
            try:
                await self._logs.configure(topic, state.config, fifo=True)
                queue = self._files.queue(state, channel.saved, self._reader, 1)
                await queue.clear(topic.seqs.head)
                wanted = replace(state, type=FIFO)
                await self._save(channel, wanted)
                channel.queue = queue
            finally:
                channel.switching = False
            channel.end_watches("type")
            return wanted

    # ---- the end ----

    async def delete(self, handler: str, user: str | None) -> None:
        async with self._turn(handler) as (channel, state):
            _check_owner(state, user)
            await self._delete(channel, state, "deleted")

    async def _delete(self, channel: Channel, state: ChannelState, why: str) -> None:
        """Its metadata first: from then on there is no such channel, and what is left of it is swept at a start."""
        if channel.saved is not None:
            await self._files.delete(channel.saved)
            channel.saved = None
        topic, channel.topic, channel.queue = channel.topic, None, None
        self._registry.apply(channel, None)
        channel.end_watches(why)
        if topic is not None:
            self._logs.drop(topic)

    async def _save(self, channel: Channel, wanted: ChannelState) -> None:
        if wanted.config.persist:
            channel.saved = await self._files.save(wanted, channel.saved)
        self._registry.apply(channel, wanted)


def _check_owner(state: ChannelState, user: str | None) -> None:
    if user is not None:
        acl.check_owner(state, user)
