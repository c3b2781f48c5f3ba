"""One live channel: its turns, and who is connected."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.unit.delivery.kit import make_topic
from topicd.errors import NotReady, Throttled
from topicd.shards.delivery.channels.channel import MAILBOX_MAX, WAITING_MAX, Channel, Watcher
from topicd.shards.delivery.channels.tallies import Tallies
from topicd.shards.delivery.topic.topic import Topic


class Witness(Watcher):
    def __init__(self, channel: Channel, user: str) -> None:
        self.user = user
        self._channel = channel
        self.heard: list[Any] = []

    def tell(self, event: dict[str, Any]) -> None:
        self.heard.append((event["kind"], event.get("user")))

    def move(self, topic: Topic) -> None:
        self.heard.append(topic.name)

    def end(self, event: dict[str, Any]) -> None:
        self.heard.append((event["kind"], "ends"))
        self._channel.detach(self)


def test_c22_changes_have_their_turns_in_order_and_only_so_many_wait() -> None:
    async def work() -> None:
        channel, done, go = Channel("lobby", Tallies()), [], asyncio.Event()

        async def change(number: int) -> None:
            async with channel.turn():
                await go.wait()
                done.append(number)

        tasks = [asyncio.ensure_future(change(number)) for number in range(WAITING_MAX)]
        await asyncio.sleep(0)
        with pytest.raises(Throttled):
            await asyncio.wait_for(change(-1), 5)  # else it waits for ever
        assert channel.busy
        go.set()
        await asyncio.gather(*tasks)
        assert done == list(range(WAITING_MAX))
        assert not channel.busy

    asyncio.run(work())


def test_c22_only_so_many_changes_of_all_channels_of_a_shard_wait() -> None:
    async def work() -> None:
        tallies = Tallies()
        tallies.waiting = MAILBOX_MAX - 1  # those of others
        channel, other = Channel("lobby", tallies), Channel("other", tallies)
        async with channel.turn():
            with pytest.raises(Throttled):
                async with other.turn():
                    raise AssertionError("one too many")
        async with other.turn():
            pass

    asyncio.run(work())


def test_presence_is_told_once_for_each_user() -> None:
    tallies = Tallies()
    channel = Channel("lobby", tallies)
    ann, bob, again = Witness(channel, "ann"), Witness(channel, "bob"), Witness(channel, "bob")
    for witness in (ann, bob, again):
        channel.attach(witness)
    assert (channel.connected(), tallies.connected) == (["ann", "bob"], 3)
    channel.detach(bob)
    channel.detach(bob)
    channel.detach(again)
    assert ann.heard == [("connected", "ann"), ("connected", "bob"), ("disconnected", "bob")]
    assert (channel.connected(), tallies.connected) == (["ann"], 1)


def test_watches_are_moved_and_ended() -> None:
    channel = Channel("lobby", Tallies())
    ann, bob = Witness(channel, "ann"), Witness(channel, "bob")
    channel.attach(ann)
    channel.attach(bob)
    channel.move_watchers(make_topic("new"))
    channel.end_watches("left", "bob")
    assert bob.heard[-2:] == ["new", ("left", "ends")]
    assert channel.connected() == ["ann"]
    channel.end_watches("deleted")
    assert channel.connected() == []


def test_a_log_that_is_not_there_takes_nothing() -> None:
    channel = Channel("lobby", Tallies())
    with pytest.raises(NotReady):
        channel.log()
    topic = channel.topic = make_topic()
    assert channel.log() is topic
    channel.switching = True
    with pytest.raises(NotReady):
        channel.log()
