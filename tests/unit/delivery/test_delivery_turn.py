"""One turn: the order of its steps, and that no ring of the bell is missed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.delivery.desk import Desk, rings
from topicd.shards.delivery.sessions.peer import Peer
from topicd.shards.delivery.topic.follower import Follower


class Witness(Follower, Peer):
    def __init__(self, desk: Desk, story: list[str]) -> None:
        self._desk = desk
        self._story = story

    def moved(self) -> None:
        self._story.append("moved")

    def flush(self) -> None:
        self._story.append("flushed")


def test_the_disk_is_rung_before_followers_and_connections_are_served(desk: Desk) -> None:
    topic = desk.topic(durability="memory")
    story: list[str] = []
    witness = Witness(desk, story)
    topic.followers.add(witness)
    desk.wal_bell.announce()  # the WAL shard sleeps
    desk.append(topic, [b"x"])
    desk.parts.agenda.to_flush.add(witness)
    witness.moved = lambda: story.append(f"moved, rung: {rings(desk.wal_bell)}")  # type: ignore[method-assign]
    desk.parts.turn.end()
    assert story == ["moved, rung: True", "flushed"]


def test_gathered_batches_are_placed_by_the_end_of_the_turn(desk: Desk) -> None:
    topic = desk.topic(durability="memory")
    writer = desk.append(topic, [b"x"])
    assert writer.told == []
    desk.parts.turn.end()
    assert [outcome.how for outcome in writer.told] == ["appended"]


def test_caps_hold_before_followers_are_told(desk: Desk) -> None:
    topic = desk.topic(durability="memory", cap_records=2)
    seen: list[int] = []
    witness = Witness(desk, [])
    witness.moved = lambda: seen.append(topic.contents.count)  # type: ignore[method-assign]
    topic.followers.add(witness)
    desk.append(topic, [b"1", b"2"])
    desk.append(topic, [b"3", b"4"])
    desk.parts.turn.end()
    assert seen == [2]


def test_a_follower_that_leaves_while_others_are_told_harms_nobody(desk: Desk) -> None:
    topic = desk.topic(durability="memory")
    story: list[str] = []
    for _ in range(3):
        witness = Witness(desk, story)
        witness.moved = lambda: (topic.followers.clear(), story.append("moved"))  # type: ignore[method-assign, assignment]
        topic.followers.add(witness)
    desk.append(topic, [b"x"])
    desk.parts.turn.end()
    assert story == ["moved"] * 3


def test_the_bell_tells_entries_their_outcome(desk: Desk) -> None:
    topic = desk.topic(durability="fsync")
    writer = desk.append(topic, [b"x"])
    desk.parts.turn.end()
    desk.parts.turn.doorbell()
    assert writer.told == []
    desk.wal.write()
    desk.wal.sync()
    desk.parts.turn.doorbell()
    assert [outcome.how for outcome in writer.told] == ["appended"]


def test_what_is_stored_between_the_look_and_the_announcement_is_not_missed(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would not ring: the shard had not yet said that it sleeps."""
    topic = desk.topic(durability="fsync")
    writer = desk.append(topic, [b"x"])
    desk.parts.turn.end()
    announce = type(desk.bell).announce

    def stored_just_before(bell: object) -> None:
        desk.wal.write()
        desk.wal.sync()
        announce(desk.bell)

    monkeypatch.setattr(type(desk.bell), "announce", stored_just_before)
    desk.parts.turn.doorbell()
    assert [outcome.how for outcome in writer.told] == ["appended"]


def test_a_lone_write_is_waited_for(open_desk: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch) -> None:
    """Awake, the shard finds it stored without being rung."""
    desk = open_desk(linger_us=1_000_000)
    topic = desk.topic(durability="fsync")
    writer = desk.append(topic, [b"x"])
    desk.parts.turn.end()
    desk.wal.write()
    desk.wal.sync()
    desk.parts.turn.await_write()
    assert [outcome.how for outcome in writer.told] == ["appended"]


def test_without_a_lone_write_nothing_is_waited_for(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(linger_us=1_000_000)
    topics = [desk.topic(name, durability="fsync") for name in ("a", "b")]
    writers = [desk.append(topic, [b"x"]) for topic in topics]
    desk.parts.turn.end()
    desk.wal.write()
    desk.wal.sync()
    desk.parts.turn.await_write()
    assert [writer.told for writer in writers] == [[], []]
