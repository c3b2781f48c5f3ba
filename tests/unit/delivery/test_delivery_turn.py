"""One turn: the order of its steps, and that no ring of the bell is missed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.unit.delivery.desk import Desk, rings
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import CREDIT, FETCH
from topicd.shards.delivery import turn as module
from topicd.shards.delivery.sessions.peer import Peer
from topicd.shards.delivery.topic.follower import Follower
from topicd.shards.delivery.turn import TURN_S


class Witness(Follower, Peer):
    def __init__(self, desk: Desk, story: list[str]) -> None:
        self._desk = desk
        self._story = story

    def moved(self) -> None:
        self._story.append("moved")

    def flush(self) -> None:
        self._story.append("flushed")


@pytest.mark.parametrize("durability", ["fsync", "disk"])
def test_a_wal_shard_that_somebody_waits_for_is_rung_before_followers_and_connections_are_served(
    desk: Desk, durability: str
) -> None:
    topic, other = desk.topic(durability="ephemeral"), desk.topic("other", durability=durability)
    story: list[str] = []
    witness = Witness(desk, story)
    topic.followers.add(witness)
    desk.wal_bell.announce()  # the WAL shard sleeps
    desk.append(topic, [b"x"])
    desk.append(other, [b"x"])
    desk.parts.agenda.to_flush.add(witness)
    witness.moved = lambda: story.append(f"moved, rung: {rings(desk.wal_bell)}")  # type: ignore[method-assign]
    desk.parts.turn.end()
    assert story == ["moved, rung: True", "flushed"]


def test_a_wal_shard_that_nobody_waits_for_is_rung_last(desk: Desk) -> None:
    topic = desk.topic(durability="memory")
    story: list[str] = []
    witness = Witness(desk, story)
    topic.followers.add(witness)
    desk.wal_bell.announce()
    desk.append(topic, [b"x"])
    desk.parts.agenda.to_flush.add(witness)
    witness.moved = lambda: story.append(f"moved, rung: {rings(desk.wal_bell)}")  # type: ignore[method-assign]
    desk.parts.turn.end()
    assert story == ["moved, rung: False", "flushed"]
    assert rings(desk.wal_bell)


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


# ---- more than fits into a turn ----


class Slow(Follower):
    """Takes its time, and its topic moves again at once if it shall."""

    def __init__(self, name: str, story: list[str], takes: Callable[[], None]) -> None:
        self._name = name
        self._story = story
        self._takes = takes

    def moved(self) -> None:
        self._story.append(self._name)
        self._takes()


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 50.0
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_the_loop_looks_at_its_sockets_every_two_milliseconds(desk: Desk, clock: Clock) -> None:
    story: list[str] = []
    topics = [desk.topic(f"t{n}", durability="memory") for n in range(6)]
    for topic in topics:
        topic.followers.add(Slow(topic.name, story, lambda: clock.pass_by(0.0009)))
        desk.parts.agenda.ready.add(topic)
    turn = desk.parts.turn
    turn.end()
    assert story == ["t0", "t1", "t2"]
    turn.end()  # of a connection: what is left waits until all of them were looked at
    assert len(story) == 3
    assert desk.parts.agenda.scheduled
    desk.turn()
    assert story == ["t0", "t1", "t2", "t3", "t4", "t5"]


def test_what_is_done_in_time_is_done_in_the_same_turn(desk: Desk, clock: Clock) -> None:
    story: list[str] = []
    for n in range(100):
        topic = desk.topic(f"t{n}", durability="memory", priority=-n)
        topic.followers.add(Slow(f"t{n}", story, lambda: None))
        desk.parts.agenda.ready.add(topic)
    desk.parts.turn.end()
    assert len(story) == 100


def test_pushes_are_gathered_while_the_board_says_so(desk: Desk, clock: Clock) -> None:
    topic = desk.topic(durability="memory", cap_records=2)
    told: list[int] = []
    follower = Slow("", [], lambda: told.append(topic.seqs.visible))
    topic.followers.add(follower)
    desk.parts.board.say(0.6, 0b11, 10_000, 0, watching=True)
    for _ in range(3):
        desk.append(topic, [b"x"])
        desk.parts.turn.end()
    assert told == [1]  # the first at once
    assert topic.contents.count == 2  # caps hold meanwhile
    clock.pass_by(0.011)
    desk.parts.turn.end()
    assert told == [1, 3]
    desk.parts.board.say(0.0, 0, 0, 0, watching=True)
    desk.append(topic, [b"x"])
    desk.parts.turn.end()
    assert told == [1, 3, 4]


def test_what_was_gathered_is_told_without_anybody_coming(desk: Desk) -> None:
    topic = desk.topic(durability="memory")
    told: list[int] = []
    topic.followers.add(Slow("", [], lambda: told.append(topic.seqs.visible)))
    desk.parts.board.say(0.6, 0b11, 10_000, 0, watching=True)
    for _ in range(3):
        desk.append(topic, [b"x"])
        desk.parts.turn.end()
    desk.loop.run_until_complete(asyncio.sleep(0.1))
    assert told == [1, 3]


def test_a_negative_priority_is_not_pushed_under_pressure_and_is_afterwards(desk: Desk) -> None:
    low, high = desk.topic("low", durability="memory", priority=-1), desk.topic("high", durability="memory")
    line, asker = desk.line(), desk.line()
    line.send(Op.SUBSCRIBE, {"topics": [{"topic": "low"}, {"topic": "high"}]})
    desk.parts.board.say(0.9, 0b111, 0, 0, watching=True)
    poll = asker.send(Op.FETCH, FETCH.pack(low.id, 0, 10, 0, 10_000))
    desk.write(low, [b"l"])
    desk.write(high, [b"h"])
    assert [push.datas() for push in line.take(Op.PUSH)] == [[b"h"]]
    assert asker.result(poll).datas() == [b"l"]  # who asks is answered
    assert list(desk.parts.agenda.ready.parked) == [low.id]
    line.send(Op.CREDIT, CREDIT.pack(1, 1_000_000))  # nor by another way
    assert line.take(Op.PUSH) == []
    desk.parts.turn.look_at_pauses()
    assert line.take(Op.PUSH) == []
    desk.parts.board.say(0.5, 0b011, 0, 0, watching=True)
    desk.parts.turn.look_at_pauses()
    assert [push.datas() for push in line.take(Op.PUSH)] == [[b"l"]]
    assert desk.parts.agenda.ready.parked == {}


def test_five_saturated_topics_one_per_band_are_served_as_their_weights_say(desk: Desk, clock: Clock) -> None:
    """Telling the followers of one takes a whole turn, and each has new records by then."""
    story: list[str] = []
    topics = [desk.topic(f"t{n}", durability="memory", priority=p) for n, p in enumerate((1000, 500, 250, 0, -1))]

    def takes_a_turn() -> None:
        clock.pass_by(TURN_S)
        for topic in topics:
            desk.parts.agenda.moved(topic)

    for topic in topics:
        topic.followers.add(Slow(topic.name, story, takes_a_turn))
        desk.parts.agenda.moved(topic)
    for turns in range(1, 16 * 10 + 1):
        desk.parts.turn._run()
        assert len(story) == turns
    assert [story.count(topic.name) for topic in topics] == [80, 40, 20, 10, 10]
