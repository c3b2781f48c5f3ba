"""Row C23: how many channels a user is in, kept by the home shard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.delivery.desk import Desk
from tests.unit.delivery.kit import make_place
from topicd.errors import ChannelLimit, NotReady, StorageFailed
from topicd.ipc.protocol.messages import Op
from topicd.shards.delivery.channels.registry import Registry
from topicd.shards.delivery.channels.slots import HELD_S, Slots
from topicd.shards.delivery.channels.tallies import Tallies


def two_shards(limit: int) -> list[Slots]:
    """That ask each other without a socket."""
    made: list[Slots] = []

    async def ask(shard: int, action: str, user: str, handler: str) -> dict[str, Any]:
        if action == "reserve":
            await made[shard].take(user, handler)
            return {}
        await asyncio.sleep(0)  # the others have their turns meanwhile
        return {"channels": sorted(made[shard]._registry.by_user.get(user, ()))}

    def tell(shard: int, action: str, user: str, handler: str) -> None:
        made[shard].give_back(user, handler)

    for index in range(2):
        place = make_place(index=index, shards=2, max_channels_per_user=limit)
        catalog: Any = None
        made.append(Slots(place, Registry(catalog, Tallies()), ask, tell))
    return made


def test_c23_members_of_all_shards_count_and_a_join_that_failed_does_not() -> None:
    async def work() -> None:
        first, second = two_shards(3)
        first._registry.by_user["ann"] = {"a"}
        second._registry.by_user["ann"] = {"b"}
        await first.reserve("ann", "c")
        with pytest.raises(ChannelLimit):
            await second.reserve("ann", "d")
        first.release("ann", "c")  # its save failed
        await second.reserve("ann", "d")
        await second.reserve("ann", "d")  # again: the same slot
        second._registry.by_user["ann"].add("d")
        second.release("ann", "d")
        with pytest.raises(ChannelLimit):
            await first.reserve("ann", "e")
        await first.reserve("bob", "e")

    asyncio.run(work())


def test_of_two_at_once_one_gets_the_last_slot() -> None:
    async def work() -> None:
        first, second = two_shards(1)
        found = await asyncio.gather(first.reserve("ann", "a"), second.reserve("ann", "b"), return_exceptions=True)
        assert sum(isinstance(one, ChannelLimit) for one in found) >= 1

    asyncio.run(work())


class Slow:
    """The home of a user, which asks one other shard; the answer is what was true when it was asked."""

    def __init__(self, limit: int) -> None:
        catalog: Any = None
        self.there: set[str] = set()  # in the other shard
        self.asked, self.go = asyncio.Event(), asyncio.Event()
        place = make_place(index=0, shards=2, max_channels_per_user=limit)
        self.home = Slots(place, Registry(catalog, Tallies()), self.ask, lambda *_: None)

    async def ask(self, *_: Any) -> dict[str, Any]:
        answer, go = {"channels": sorted(self.there)}, self.go
        self.asked.set()
        await go.wait()
        return answer


@pytest.mark.parametrize("well", [True, False])
def test_a_join_that_ends_while_the_shards_are_asked_counts_if_it_went_well(well: bool) -> None:
    async def work() -> None:
        slow = Slow(1)
        slow.go.set()
        await slow.home.take("ann", "a")
        slow.go = asyncio.Event()
        slow.asked.clear()
        second = asyncio.ensure_future(slow.home.take("ann", "b"))
        await slow.asked.wait()
        if well:
            slow.there.add("a")
        slow.home.give_back("ann", "a")
        slow.go.set()
        if well:
            with pytest.raises(ChannelLimit):
                await second
        else:
            await second

    asyncio.run(work())


def test_a_join_that_begins_while_the_shards_are_asked_sees_the_other() -> None:
    async def work() -> None:
        slow = Slow(1)
        slowly, first = slow.go, asyncio.ensure_future(slow.home.take("ann", "a"))
        await slow.asked.wait()
        slow.go = asyncio.Event()
        slow.go.set()
        with pytest.raises(ChannelLimit):
            await slow.home.take("ann", "b")
        slowly.set()
        await first

    asyncio.run(work())


def test_a_slot_that_was_refused_is_not_held() -> None:
    async def work() -> None:
        first, second = two_shards(1)
        await first.reserve("ann", "a")
        with pytest.raises(ChannelLimit):
            await second.reserve("ann", "b")
        first.release("ann", "a")
        await first.reserve("ann", "c")

    asyncio.run(work())


def test_a_slot_that_nobody_gave_back_ends_by_itself() -> None:
    async def work() -> None:
        slots = two_shards(1)
        home = slots[slots[0].home_of("ann")]
        await home.take("ann", "a")
        with pytest.raises(ChannelLimit):
            await home.take("ann", "b")
        home._place.clock.advance(int(HELD_S * 1000) + 1)  # type: ignore[attr-defined]
        await home.take("ann", "b")

    asyncio.run(work())


def test_a_home_that_is_away_gives_no_slot() -> None:
    async def away(*_: Any) -> dict[str, Any]:
        raise NotReady("away")

    async def work() -> None:
        catalog: Any = None
        place = make_place(index=0, shards=2, max_channels_per_user=1)
        slots = Slots(place, Registry(catalog, Tallies()), away, lambda *_: None)
        for user in ("ann", "bob", "eve", "mia"):
            with pytest.raises(NotReady):
                await slots.reserve(user, "a")
        assert slots._held == {}

    asyncio.run(work())


def test_c18_c23_the_limit_through_a_connection(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(max_channels_per_user=2)
    line = desk.serve().line()
    for channel in ("a", "b"):
        line.ask(Op.CHANNEL_JOIN, channel=channel, user="ann")
    with pytest.raises(ChannelLimit):
        line.ask(Op.CHANNEL_JOIN, channel="c", user="ann")
    line.ask(Op.CHANNEL_JOIN, channel="a", user="ann")  # it is a member
    line.ask(Op.CHANNEL_JOIN, channel="p", user="bob")
    line.ask(Op.CHANNEL_CONFIG, channel="p", config={"persist": True})
    line.ask(Op.CHANNEL_LEAVE, channel="b", user="ann")
    desk.fail_disk(lambda name, path: "channels" in str(path))
    with pytest.raises(StorageFailed):
        line.ask(Op.CHANNEL_JOIN, channel="p", user="ann")
    desk.mend_disk()
    line.ask(Op.CHANNEL_JOIN, channel="q", user="ann")  # in the room that the failed join gave back
