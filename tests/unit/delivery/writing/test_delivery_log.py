"""The one way into the WAL: order, numbers, and exactly one outcome."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.delivery.desk import Desk, rings
from tests.unit.delivery.kit import Note
from topicd.errors import TopicdError
from topicd.frames import FrameType
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.delivery.writing.durability import Need


class Story:
    def __init__(self, desk: Desk, topic: Topic) -> None:
        self._desk = desk
        self._topic = topic
        self.told: list[str] = []

    def change(self, name: str, need: Need = Need.SYNCED, **more: Any) -> None:
        def refused(error: TopicdError) -> None:
            self.told.append(f"{name} {error.code}")

        self._desk.parts.log.change(
            self._topic,
            FrameType.CURSOR,
            {"name": name},
            seq=0,
            need=need,
            applied=lambda: self.told.append(name),
            refused=refused,
            **more,
        )


@pytest.fixture
def topic(desk: Desk) -> Topic:
    made = desk.topic(durability="fsync")
    desk.wal.log = b""
    return made


@pytest.fixture
def story(desk: Desk, topic: Topic) -> Story:
    return Story(desk, topic)


def test_what_was_gathered_before_a_change_stands_before_it(desk: Desk, topic: Topic, story: Story) -> None:
    desk.append(topic, [b"x"])
    story.change("a")
    desk.settle()
    assert [kind for kind, _ in desk.wal.frames()] == [FrameType.APPEND, FrameType.CURSOR]


def test_each_change_is_told_once_that_it_is_stored(desk: Desk, story: Story) -> None:
    story.change("a")
    story.change("b")
    desk.wal.write()
    desk.parts.turn.doorbell()
    assert story.told == []
    desk.settle()
    desk.settle()
    assert story.told == ["a", "b"]


def test_each_change_is_told_once_that_it_is_not(desk: Desk, story: Story) -> None:
    story.change("a")
    desk.fail_wal(errno.EIO)
    desk.settle()
    assert story.told == ["a storage_failed"]


def test_a_read_only_log_refuses_at_once_what_must_be_stored(desk: Desk, topic: Topic, story: Story) -> None:
    desk.parts.backlog.metadata_changed = False
    desk.wal.ring.set_read_only(errno.ENOSPC)
    story.change("a", Need.WRITTEN, numbered=True)
    assert story.told == ["a storage_failed"]
    assert (desk.wal.pending, desk.parts.backlog.metadata_changed) == (0, False)
    assert topic.changes.settled == topic.changes.newest == 1
    story.change("b", Need.PLACED)  # nobody waits for that one
    assert story.told[1:] == ["b"]


def test_the_next_snapshot_knows_of_a_change_and_the_wal_shard_is_rung(desk: Desk, story: Story) -> None:
    desk.parts.backlog.metadata_changed = False
    desk.wal_bell.announce()
    story.change("a")
    assert desk.parts.backlog.metadata_changed
    assert not rings(desk.wal_bell)  # by the turn, with whatever else comes
    desk.turn()
    assert rings(desk.wal_bell)


def test_numbers_settle_when_their_changes_do(desk: Desk, topic: Topic, story: Story) -> None:
    story.change("a", numbered=True)
    story.change("b")
    story.change("c", numbered=True)
    assert (topic.changes.newest, topic.changes.settled) == (2, 0)
    desk.settle()
    assert topic.changes.settled == 2
    assert [body.get("no") for _, body in desk.wal.frames()] == [1, None, 2]


def test_a_number_that_was_refused_is_settled_too(desk: Desk, topic: Topic, story: Story) -> None:
    story.change("a", numbered=True)
    desk.fail_wal(errno.EIO)
    assert topic.changes.settled == 1


def test_small_parts_are_placed_as_one_and_large_ones_as_they_are(
    desk: Desk, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed: list[list[int]] = []
    outlet = desk.parts.outlets[0]
    monkeypatch.setattr(outlet, "submit", lambda parts, size, entry: placed.append([len(part) for part in parts]))
    log, limit = desk.parts.log, desk.parts.place.gathered_bytes + desk.parts.place.small_batch
    log.append(topic, [b"a" * 10, b"b" * 20], Note("small", Need.PLACED, []))
    log.append(topic, [b"a" * limit, b"b" * 20], Note("large", Need.PLACED, []))
    assert placed == [[30], [limit, 20]]


def test_each_topic_has_its_outlet(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(wals=2)
    topics = [desk.topic(f"t{n}") for n in range(8)]
    assert {topic.outlet for topic in topics} == {0, 1}
    for topic in topics:
        assert desk.parts.log.outlet_of(topic).index == topic.outlet


def test_one_crowded_outlet_is_enough(open_desk: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch) -> None:
    desk = open_desk(wals=2)
    assert not desk.parts.log.crowded
    monkeypatch.setattr("topicd.shards.delivery.writing.outlet.ENTRIES_MAX", 1)
    topic = desk.topic(durability="fsync")
    desk.append(topic, [b"x"])
    desk.parts.turn.end()
    assert desk.parts.log.crowded
    desk.settle()
    assert not desk.parts.log.crowded
