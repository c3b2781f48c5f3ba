"""Channels at a start: rows C14 to C19, on a machine that dies and comes back."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.machine import ROOT, Machine
from tests.support.fakedisk import FakeDisk
from topicd import errors
from topicd.channel import channel_hash, channel_topic, is_channel_log
from topicd.ipc.protocol.messages import Op


class World:
    """Machines on one disk, one after the other."""

    def __init__(self) -> None:
        self.disk = FakeDisk(directories=[ROOT / name for name in ("meta", "wal", "topics")])
        self.machine = Machine(self.disk).open()

    def restart(self, **settings: Any) -> None:
        old = self.machine
        old.abandon()
        self.machine = Machine(self.disk, previous=old, **settings).open()
        old.close()

    def ask(self, op: Op, channel: str, **body: Any) -> dict[str, Any]:
        return self.machine.wire_of(channel_topic(channel)).ask(op, {"channel": channel, **body})

    def make(self, channel: str, user: str = "ann", **config: Any) -> None:
        self.ask(Op.CHANNEL_JOIN, channel, user=user)
        self.ask(Op.CHANNEL_CONFIG, channel, config={"persist": True, **config})

    def file(self, channel: str, name: str = "metadata.bin") -> Path:
        return ROOT / "channels" / channel_hash(channel) / name


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.machine.close()


def test_c18_c19_what_is_durable_comes_back_and_seqs_go_on(world: World) -> None:
    world.make("lobby")
    world.ask(Op.CHANNEL_ACL, "lobby", access="publish", users=["bob"])
    for n in range(5):
        world.ask(Op.CHANNEL_PUBLISH, "lobby", user="ann", data=b"%d" % n)
    wire = world.machine.wire_of(channel_topic("lobby"))
    wire.ask(Op.CHANNEL_WATCH, {"channel": "lobby", "user": "ann"})
    before = world.ask(Op.CHANNEL_STATE, "lobby")
    assert before["connected"] == ["ann"]
    world.restart()
    assert world.ask(Op.CHANNEL_STATE, "lobby") == {**before, "connected": []}
    assert world.ask(Op.CHANNEL_PUBLISH, "lobby", user="ann", data=b"next")["seq"] == 6
    assert len(world.ask(Op.CHANNEL_HISTORY, "lobby")["messages"]) == 6


def test_what_is_not_persistent_is_gone_with_its_log(world: World) -> None:
    world.ask(Op.CHANNEL_JOIN, "live", user="ann")
    world.restart()
    with pytest.raises(errors.ChannelNotFound):
        world.ask(Op.CHANNEL_STATE, "live")
    assert [name for name in world.machine.topics() if is_channel_log(name)] == []


@pytest.mark.fault("CHN-03")
def test_c17_one_that_cannot_be_read_is_skipped_and_named(world: World, caplog: pytest.LogCaptureFixture) -> None:
    for n in range(10):
        world.make(f"room/{n}")
        world.ask(Op.CHANNEL_PUBLISH, f"room/{n}", user="ann", data=b"x")
    world.disk.damage(world.file("room/4"), 30, b"\xff")
    with caplog.at_level(logging.WARNING):
        world.restart()
    told = [record for record in caplog.records if record.message.startswith("channel skipped")]
    assert [getattr(record, "file") for record in told] == [str(world.file("room/4"))]  # noqa: B009
    for n in range(10):
        if n != 4:
            assert world.ask(Op.CHANNEL_PUBLISH, f"room/{n}", user="ann", data=b"y")["seq"] == 2
    for op, body in ((Op.CHANNEL_JOIN, {"user": "eve"}), (Op.CHANNEL_STATE, {})):
        with pytest.raises(errors.StorageCorrupt, match=r"metadata\.bin"):
            world.ask(op, "room/4", **body)
    # Nothing of it was thrown away: with its file mended it is whole again.
    assert len([name for name in world.machine.topics() if is_channel_log(name)]) == 10


def test_a_channel_whose_file_is_mended_has_its_messages(world: World) -> None:
    world.make("lobby")
    world.ask(Op.CHANNEL_PUBLISH, "lobby", user="ann", data=b"x")
    good = world.disk.files()[world.file("lobby")]
    world.disk.damage(world.file("lobby"), 30, b"\xff\xff")
    world.restart()
    world.disk.damage(world.file("lobby"), 0, good)
    world.restart()
    assert [m["data"] for m in world.ask(Op.CHANNEL_HISTORY, "lobby")["messages"]] == [b"x"]


@pytest.mark.fault("CHN-05")
def test_c14_strays_are_moved_to_trash_and_told(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.disk.mkdir(ROOT / "channels" / ("e" * 64))
    world.disk.open(ROOT / "channels" / ("e" * 64) / "x.log", write=True, create=True)
    with caplog.at_level(logging.WARNING):
        world.restart()
    assert any("stray directory" in record.message for record in caplog.records)
    assert world.disk.listdir(ROOT / "channels") == []
    assert world.disk.listdir(ROOT / "trash") == ["channel-" + "e" * 64]
    assert world.machine.delivery_of("any").channels.tallies.strays == 1


def test_c16_nothing_is_restored_while_nobody_is_known(world: World) -> None:
    world.make("lobby")
    world.ask(Op.CHANNEL_PUBLISH, "lobby", user="ann", data=b"x")
    world.restart(channel_auth=False)
    with pytest.raises(errors.ChannelNotFound):
        world.ask(Op.CHANNEL_STATE, "lobby")
    world.ask(Op.CHANNEL_JOIN, "lobby", user="eve")
    world.restart()
    assert world.ask(Op.CHANNEL_STATE, "lobby")["users"] == ["ann"]
    assert [m["data"] for m in world.ask(Op.CHANNEL_HISTORY, "lobby")["messages"]] == [b"x"]


def test_c18_a_lower_limit_evicts_nobody(world: World) -> None:
    for name in ("a", "b", "c"):
        world.make(name)
    world.make("d", user="bob")
    world.restart(max_channels_per_user=2)
    for name in ("a", "b", "c"):
        assert world.ask(Op.CHANNEL_STATE, name)["users"] == ["ann"]
    with pytest.raises(errors.ChannelLimit):
        world.ask(Op.CHANNEL_JOIN, "d", user="ann")


def test_c15_each_channel_is_in_one_shard_whatever_their_number(world: World) -> None:
    names = [f"room/{n}" for n in range(100)]
    for name in names:
        world.make(name)
    world.restart(delivery_shards=3)
    owners = [
        [index for index, parts in world.machine.deliveries.items() if name in parts.channels.registry._channels]
        for name in names
    ]
    assert all(len(found) == 1 for found in owners)
    assert {found[0] for found in owners} == {0, 1, 2}
    for name in names[:10]:
        assert world.ask(Op.CHANNEL_PUBLISH, name, user="ann", data=b"x")["seq"] == 1


@pytest.mark.fault("CHN-04")
def test_c28_a_cursor_that_cannot_be_read_needs_a_clear(world: World) -> None:
    world.make("jobs")
    world.ask(Op.CHANNEL_TYPE, "jobs", type="fifo")
    for n in range(3):
        world.ask(Op.CHANNEL_PUSH, "jobs", data=b"%d" % n)
    assert world.ask(Op.CHANNEL_POP, "jobs")["data"] == b"0"
    world.restart()
    assert world.ask(Op.CHANNEL_POP, "jobs")["data"] == b"1"
    world.disk.damage(world.file("jobs", "cursor.bin"), 8, b"\0\0\0\0")
    world.restart()
    for op, body in ((Op.CHANNEL_POP, {}), (Op.CHANNEL_PUSH, {"data": b"x"})):
        with pytest.raises(errors.NeedsRecovery):
            world.ask(op, "jobs", **body)
    with pytest.raises(errors.NotOwner):
        world.ask(Op.CHANNEL_CLEAR, "jobs", user="bob")
    world.ask(Op.CHANNEL_CLEAR, "jobs", user="ann")
    world.ask(Op.CHANNEL_PUSH, "jobs", data=b"new")
    assert world.ask(Op.CHANNEL_POP, "jobs")["data"] == b"new"


def test_a_log_that_is_missing_begins_anew(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.make("lobby")
    (log,) = (name for name in world.machine.topics() if is_channel_log(name))
    parts = world.machine.delivery_of(log)
    parts.catalog.delete(parts.catalog.by_name[log], if_empty=False, done=lambda topic, error: None)
    world.machine.settle()
    with caplog.at_level(logging.WARNING):
        world.restart()
    assert any("log of a channel is missing" in record.message for record in caplog.records)
    assert world.ask(Op.CHANNEL_PUBLISH, "lobby", user="ann", data=b"x")["seq"] == 1
