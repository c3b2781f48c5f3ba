"""How many channels a user is in, over all shards. Promise: max_channels_per_user is kept by one place for each user,
the home shard of the name; a join asks it for a slot before anything is saved and gives the slot back when it is
over, whatever came of it; members that are there when the limit is lowered stay.

The home shard remembers slots only while joins are under way; who is a member of what is told by the shards that know,
when it is asked. So nothing has to be restored, and a slot that nobody gave back ends by itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from topicd.errors import ChannelLimit
from topicd.limits import INTERNAL
from topicd.placement import delivery_shard
from topicd.shards.delivery.channels.registry import Registry
from topicd.shards.delivery.place import Place

HELD_S = 60.0  # a slot whose join nobody told the end of

# To another shard: (its number, action, user, handler) -> its answer.
AskShard = Callable[[int, str, str, str], Awaitable[dict[str, Any]]]
TellShard = Callable[[int, str, str, str], None]  # the same, and nobody waits


class Slots:
    def __init__(self, place: Place, registry: Registry, ask: AskShard, tell: TellShard) -> None:
        self._place = place
        self._registry = registry
        self._ask = ask
        self._tell = tell
        self._held: dict[str, dict[str, float]] = {}  # of users whose home this is: handler -> until when

    def home_of(self, user: str) -> int:
        return delivery_shard(f"{INTERNAL}user.{user}", self._place.delivery_shards)

    # ---- for joins of this shard ----

    async def reserve(self, user: str, handler: str) -> None:
        """Raises ChannelLimit, or what keeps the home shard from answering."""
        if not self._place.settings.max_channels_per_user:
            return
        home = self.home_of(user)
        if home == self._place.index:
            await self.take(user, handler)
        else:
            await self._ask(home, "reserve", user, handler)

    def release(self, user: str, handler: str) -> None:
        if not self._place.settings.max_channels_per_user:
            return
        home = self.home_of(user)
        if home == self._place.index:
            self.give_back(user, handler)
        else:
            self._tell(home, "release", user, handler)

    # ---- at the home of the user ----

    async def take(self, user: str, handler: str) -> None:
        limit, now = self._place.settings.max_channels_per_user, self._place.clock.monotonic()
        held = self._held.setdefault(user, {})
        for name in [name for name, until in held.items() if until < now]:
            del held[name]
        # Held before the others are asked: of two joins at the same time each sees the other.
        held[handler] = now + HELD_S
        try:
            channels = await self._settled(user)
        except BaseException:
            self.give_back(user, handler)
            raise
        others = {*channels, *self._held.get(user, ())} - {handler}
        if len(others) >= limit:
            self.give_back(user, handler)
            raise ChannelLimit(
                f"{user!r} is in {len(others)} channels, max_channels_per_user is {limit}", user=user, limit=limit
            )

    async def _settled(self, user: str) -> set[str]:
        """The user's channels; asked again if a join has ended meanwhile: its shard may have answered before."""
        while True:
            before = set(self._held.get(user, ()))
            channels = await self.channels_of(user)
            if before <= set(self._held.get(user, ())):
                return channels

    def give_back(self, user: str, handler: str) -> None:
        held = self._held.get(user)
        if held is not None:
            held.pop(handler, None)
            if not held:
                del self._held[user]

    async def channels_of(self, user: str) -> set[str]:
        """In all shards."""
        found = set(self._registry.by_user.get(user, ()))
        for shard in range(self._place.delivery_shards):
            if shard != self._place.index:
                found.update((await self._ask(shard, "channels", user, ""))["channels"])
        return found
