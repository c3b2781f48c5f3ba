"""The log of a channel: what its configuration means, and how logs come and go."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.delivery.desk import Desk
from topicd.channel import ChannelConfig, ChannelState, channel_topic
from topicd.errors import TopicdError
from topicd.shards.delivery.channels.logs import LIVE_BYTES, Logs, topic_config


@pytest.mark.parametrize(
    ("config", "fifo", "expected"),
    [
        (ChannelConfig(), False, ("ephemeral", 1_000, LIVE_BYTES)),
        (ChannelConfig(max_payload_size=1_000_000), False, ("ephemeral", 1_000, 4_000_000)),
        (ChannelConfig(persist=True, max_persist_messages=7), False, ("fsync", 7, 0)),
        (ChannelConfig(persist=True, max_persist_messages=7, message_flush_interval=9), False, ("disk", 7, 0)),
        (ChannelConfig(persist=True, max_persist_messages=7), True, ("fsync", 0, 0)),
    ],
)
def test_c25_what_a_configuration_means(config: ChannelConfig, fifo: bool, expected: tuple[str, int, int]) -> None:
    made = topic_config(config, fifo=fifo)
    assert (made.durability, made.cap_records, made.cap_bytes) == expected


def test_a_log_is_made_configured_and_dropped(desk: Desk) -> None:
    logs = Logs(desk.loop, desk.parts.catalog)
    config = ChannelConfig(persist=True)
    making = desk.loop.create_task(logs.create("lobby", config))
    desk.settle()
    name, topic = making.result()
    assert topic.name == f"{channel_topic('lobby')}.{name}"
    assert not topic.policy.internal  # its segments are sealed, so that what is evicted can go
    assert logs.find(ChannelState("lobby", log=name)) is topic
    changing = desk.loop.create_task(
        logs.configure(topic, ChannelConfig(persist=True, max_persist_messages=3), fifo=False)
    )
    desk.settle()
    assert changing.done()
    assert topic.config.cap_records == 3
    logs.drop(topic)
    desk.settle()
    assert logs.find(ChannelState("lobby", log=name)) is None


def test_a_log_that_cannot_be_made_is_an_error(desk: Desk) -> None:
    logs = Logs(desk.loop, desk.parts.catalog)
    making = desk.loop.create_task(logs.create("lobby", ChannelConfig(persist=True)))
    desk.turn()
    desk.fail_wal(5)
    desk.settle()
    with pytest.raises(TopicdError):
        making.result()
    assert isinstance(making, asyncio.Task)
