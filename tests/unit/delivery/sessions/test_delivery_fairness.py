"""Turns of connections: whoever floods lets others go first, whoever is alone is not held up."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.delivery.desk import Desk, Line, append_body
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import message
from topicd.limits import MIB
from topicd.shards.delivery.sessions.fairness import MUCH, QUANTUM, Fairness, Pace
from topicd.shards.delivery.sessions.peer import Peer
from topicd.shards.delivery.topic.topic import Topic


@pytest.fixture
def desk(open_desk: Callable[..., Desk]) -> Desk:
    return open_desk(ring_bytes=2 * MIB)


@pytest.fixture
def topic(desk: Desk) -> Topic:
    return desk.topic(durability="disk")


def test_others_count_for_a_while_only(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [10.0]
    monkeypatch.setattr("topicd.shards.delivery.sessions.fairness.time.monotonic", lambda: now[0])
    fairness, a, b = Fairness(), Peer(), Peer()
    assert fairness.heard(a)
    assert not fairness.heard(a)
    assert not fairness.contended
    assert fairness.heard(b)
    assert fairness.contended
    now[0] += 0.2
    assert not fairness.contended
    fairness.heard(a)
    fairness.forget(a)
    fairness.heard(b)
    assert fairness.contended  # it was heard a moment ago


def test_those_who_write_much_are_told_apart() -> None:
    pace = Pace()
    assert all(pace.is_modest(MUCH // 10, 100.0 + n) for n in range(20))
    assert [pace.is_modest(MUCH // 2, 200.0) for _ in range(3)] == [True, False, False]
    assert not pace.is_modest(1, 200.15)  # a moment ago it did
    assert pace.is_modest(1, 201.0)


def pieces(topic: Topic, size: int, times: int) -> bytes:
    return message(Op.APPEND, 5, append_body(topic.id, [bytes(size)])) * times


def test_whoever_is_alone_is_not_held_up(desk: Desk, topic: Topic) -> None:
    line = desk.line()
    line.feed(pieces(topic, 1_000, 2 * MUCH // 1_000))
    assert line.reading
    desk.settle()
    assert topic.contents.count == 2 * MUCH // 1_000


def test_a_turn_ends_after_so_many_bytes_when_others_want_one(desk: Desk, topic: Topic) -> None:
    line, other = desk.line(), desk.line()
    other.ask(Op.PING)
    line.feed(pieces(topic, 1_000, 2 * QUANTUM // 1_000))
    assert not line.reading
    assert topic.flight.count <= QUANTUM // 1_000 + 1
    desk.settle()
    assert topic.contents.count == 2 * QUANTUM // 1_000
    assert line.reading


def test_a_large_message_is_paid_for_with_turns(desk: Desk, topic: Topic) -> None:
    line, other = desk.line(), desk.line()
    other.ask(Op.PING)
    line.feed(pieces(topic, 10 * QUANTUM, 1))
    assert not line.reading
    turns = 0
    while not line.reading:
        other.ask(Op.PING)  # still there
        desk.turn()
        turns += 1
        assert turns < 100
    assert line.session._left <= QUANTUM


def write(line: Line, topic: Topic, size: int) -> None:
    line.send(Op.APPEND, append_body(topic.id, [bytes(size)]))


def test_a_writer_has_its_share_under_way_while_somebody_writes_little(desk: Desk, topic: Topic) -> None:
    flood, other = desk.line(), desk.line()
    write(other, topic, 10)
    write(flood, topic, MUCH + 1_000)
    desk.turn()
    assert flood.session.over_share
    assert not flood.reading
    write(other, topic, 10)  # is taken at once
    assert topic.flight.count == 3
    desk.settle()
    assert (flood.session.over_share, flood.session.in_flight_bytes, flood.reading) == (False, 0, True)
    assert flood.session.held_ms > 0
    assert topic.contents.count == 3


@pytest.mark.parametrize("durability", ["memory", "ephemeral"])
def test_what_is_answered_at_once_is_not_waited_for(desk: Desk, durability: str) -> None:
    topic = desk.topic("quick", durability=durability)
    flood, other = desk.line(), desk.line()
    for _ in range(5):
        write(other, topic, 10)
        write(flood, topic, MUCH + 1_000)
        assert not flood.session.over_share
        assert flood.session.in_flight_bytes == 0
        desk.settle()
    assert topic.contents.count == 10


def test_those_who_write_much_do_not_wait_for_each_other(desk: Desk, topic: Topic) -> None:
    lines = [desk.line(), desk.line()]
    for line in lines * 2:
        write(line, topic, MUCH + 1_000)
    assert not any(line.session.over_share for line in lines)
    desk.settle()
    assert topic.contents.count == 4


def test_under_full_pressure_nobody_waits_for_its_share(desk: Desk, topic: Topic) -> None:
    flood, other = desk.line(), desk.line()
    write(other, topic, 10)
    write(flood, topic, MUCH + 1_000)
    desk.turn()
    desk.parts.board.say(1.0, 0b1111, 0, 0, watching=True)
    for look in desk.parts.load.on_beat:
        look()
    for _ in range(MUCH // QUANTUM + 3):  # what it took beyond its turn is paid for
        desk.turn()
    assert flood.reading
    write(flood, topic, MUCH)
    assert not flood.session.over_share


def test_one_that_goes_away_is_forgotten(desk: Desk, topic: Topic) -> None:
    flood, other = desk.line(), desk.line()
    write(other, topic, 10)
    write(flood, topic, MUCH + 1_000)
    desk.turn()
    flood.session.connection_lost(None)
    assert desk.parts.fairness.holding == set()
    desk.settle()
