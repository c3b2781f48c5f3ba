"""Turns of connections: whoever floods lets others go first, whoever is alone is not held up."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.delivery.desk import Desk, Line, append_body
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import message
from topicd.limits import MIB
from topicd.shards.delivery.sessions.fairness import (
    MUCH,
    PAUSE_MAX_S,
    PAUSE_MIN_S,
    PIECE,
    QUANTUM,
    RECENT_S,
    Fairness,
    Pace,
)
from topicd.shards.delivery.sessions.peer import Peer
from topicd.shards.delivery.topic.topic import Topic

LEAVE = 3
TICK_S = 0.0005


@pytest.fixture
def desk(open_desk: Callable[..., Desk]) -> Desk:
    return open_desk(ring_bytes=2 * MIB, flood_leave=0)


@pytest.fixture
def topic(desk: Desk) -> Topic:
    return desk.topic(durability="disk")


def test_others_count_for_a_while_only() -> None:
    now = [10.0]
    fairness, a, b = Fairness(lambda: LEAVE, lambda: now[0]), Peer(), Peer()
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


def test_whoever_writes_much_leaves_time_to_those_who_ask_for_little() -> None:
    now = [10.0]
    fairness, flood, other = Fairness(lambda: LEAVE, lambda: now[0]), Peer(), Peer()
    assert fairness.pause(flood, 9.9) == 0  # nobody is there
    fairness.asked_little(flood, now[0], again=True)
    assert fairness.pause(flood, 9.9) == 0  # but itself
    fairness.asked_little(other, now[0], again=True)
    assert fairness.pause(flood, now[0] - 0.001) == pytest.approx(LEAVE * 0.001)
    assert fairness.paused_s == pytest.approx(LEAVE * 0.001)
    now[0] += 2 * RECENT_S
    assert fairness.pause(flood, now[0] - 0.001) == 0  # it is gone


@pytest.mark.parametrize("took_us", [20, 70, 150, 200, 450])
def test_short_pauses_are_put_together_for_the_timers_of_the_loop(took_us: int) -> None:
    now, worked, paused = [10.0], 0.0, 0.0
    fairness, flood, other = Fairness(lambda: LEAVE, lambda: now[0]), Peer(), Peer()
    for _ in range(1_000):
        fairness.asked_little(other, now[0], again=True)
        began, now[0] = now[0], now[0] + took_us / 1e6
        pause = fairness.pause(flood, began)
        assert pause == 0 or pause >= PAUSE_MIN_S
        worked, paused = worked + took_us / 1e6, paused + pause
        now[0] += pause
    assert paused == pytest.approx(LEAVE * worked, rel=0.02)


def test_pauses_are_bounded_and_follow_each_other() -> None:
    now = [10.0]
    fairness, other = Fairness(lambda: LEAVE, lambda: now[0]), Peer()
    fairness.asked_little(other, now[0], again=True)
    floods = [Peer() for _ in range(5)]
    # As slow as the disk may be, and whoever else writes much.
    assert [fairness.pause(flood, 0.0) for flood in floods] == pytest.approx([n * PAUSE_MAX_S for n in range(1, 6)])
    now[0] += 5 * PAUSE_MAX_S
    fairness.asked_little(other, now[0], again=True)
    assert fairness.pause(floods[0], 0.0) == pytest.approx(PAUSE_MAX_S)


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


class Pauses:
    """call_later of the loop, as far as sessions go on with it, done by hand; each look at the clock takes TICK_S."""

    def __init__(self, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
        self.due: list[tuple[float, Callable[[], None]]] = []
        self.now = 100.0
        desk.parts.fairness.now = self._look
        monkeypatch.setattr(desk.loop, "call_later", self._note)

    def _look(self) -> float:
        self.now += TICK_S
        return self.now

    def _note(self, after: float, call: Callable[..., None], *args: object) -> None:
        if getattr(call, "__name__", "") == "go_on":
            self.due.append((after, call))

    def end(self) -> float:
        [(after, go_on)] = self.due
        self.due.clear()
        go_on()
        return after


def test_before_its_next_share_a_writer_pauses(open_desk: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch) -> None:
    desk = open_desk(ring_bytes=2 * MIB, flood_leave=3)
    pauses, topic = Pauses(desk, monkeypatch), desk.topic(durability="disk")
    flood, other = desk.line(), desk.line()
    other.ask(Op.PING)  # and again in a moment
    write(other, topic, 10)
    write(flood, topic, MUCH + 1_000)
    desk.settle()
    assert (flood.session.over_share, flood.session.in_flight_bytes, flood.reading) == (False, 0, False)
    write(other, topic, 10)  # is taken at once
    assert topic.flight.count == 1
    desk.settle()
    assert 0 < pauses.end() <= PAUSE_MAX_S
    for _ in range(MUCH // QUANTUM + 3):  # what it took beyond its turn is paid for
        desk.turn()
    assert flood.reading
    assert flood.session.held_ms > 0
    assert topic.contents.count == 3


def test_a_writer_that_leaves_in_its_pause_is_gone(
    open_desk: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = open_desk(ring_bytes=2 * MIB, flood_leave=3)
    pauses, topic = Pauses(desk, monkeypatch), desk.topic(durability="disk")
    flood, other = desk.line(), desk.line()
    other.ask(Op.PING)  # and again in a moment
    write(other, topic, 10)
    write(flood, topic, MUCH + 1_000)
    desk.settle()
    flood.session.connection_lost(None)
    pauses.end()
    desk.settle()
    assert not flood.reading


def test_it_pauses_after_each_piece_however_quick_the_log_is(
    open_desk: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = open_desk(ring_bytes=2 * MIB, flood_leave=3)
    pauses, topic = Pauses(desk, monkeypatch), desk.topic(durability="disk")
    flood, other = desk.line(), desk.line()
    other.ask(Op.PING)  # and again in a moment
    write(flood, topic, MUCH + 1_000)  # it writes much
    desk.settle()
    write(other, topic, 10)
    for _ in range(5):
        write(flood, topic, PIECE // 2)
        assert flood.reading
        desk.settle()
        write(flood, topic, PIECE // 2 + 1)
        assert not flood.reading
        desk.settle()
        assert flood.session.in_flight == 0
        pauses.end()
        desk.turn()
        assert flood.reading


def test_after_its_pause_a_writer_waits_for_memory_as_any_other(
    open_desk: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = open_desk(ring_bytes=2 * MIB, flood_leave=3)
    pauses, topic = Pauses(desk, monkeypatch), desk.topic(durability="disk")
    flood, other = desk.line(), desk.line()
    other.ask(Op.PING)  # and again in a moment
    write(other, topic, 10)
    write(flood, topic, MUCH + 1_000)
    desk.settle()
    before, desk.parts.backlog.tail_bytes = (
        desk.parts.backlog.tail_bytes,
        5 * desk.parts.place.settings.checkpoint_bytes,
    )
    pauses.end()
    for _ in range(MUCH // QUANTUM + 3):
        desk.turn()
    assert not flood.reading
    desk.parts.backlog.tail_bytes = before
    desk.parts.pressure.wake_writers()
    for _ in range(MUCH // QUANTUM + 3):
        desk.turn()
    assert flood.reading


@pytest.mark.parametrize("durability", ["memory", "ephemeral"])
def test_it_pauses_where_writes_are_answered_at_once(
    open_desk: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    desk = open_desk(ring_bytes=2 * MIB, flood_leave=3)
    pauses, topic = Pauses(desk, monkeypatch), desk.topic("quick", durability=durability)
    flood, other = desk.line(), desk.line()
    other.ask(Op.PING)  # and again in a moment
    write(other, topic, 10)
    write(flood, topic, MUCH + 1_000)
    assert not flood.reading
    assert pauses.end() >= 0
    for _ in range(MUCH // QUANTUM + 3):
        desk.turn()
    assert flood.reading


def test_for_who_asks_now_and_then_nobody_pauses(
    open_desk: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = open_desk(ring_bytes=2 * MIB, flood_leave=3)
    pauses, topic = Pauses(desk, monkeypatch), desk.topic(durability="disk")
    flood, other = desk.line(), desk.line()
    for _ in range(3):
        pauses.now += 2 * RECENT_S
        write(other, topic, 10)
        write(flood, topic, MUCH + 1_000)
        assert flood.session.over_share  # it has no more than its share
        desk.settle()
        assert pauses.due == []
        assert flood.reading


def test_another_shard_is_nobody_to_pause_for(open_desk: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch) -> None:
    desk = open_desk(ring_bytes=2 * MIB, flood_leave=3)
    pauses, topic = Pauses(desk, monkeypatch), desk.topic(durability="disk")
    flood, shard = desk.line(), desk.line()
    shard.session.trusted, shard.session.client = True, "dlv-01"
    for _ in range(3):
        write(shard, topic, 10)
    write(flood, topic, MUCH + 1_000)
    desk.settle()
    assert pauses.due == []


@pytest.mark.parametrize("op", [Op.PING, Op.STATE])
def test_whoever_asks_for_little_is_not_only_who_writes(
    open_desk: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch, op: Op
) -> None:
    desk = open_desk(ring_bytes=2 * MIB, flood_leave=3)
    pauses, topic = Pauses(desk, monkeypatch), desk.topic(durability="disk")
    flood, other = desk.line(), desk.line()
    other.ask(Op.PING)  # and again in a moment
    other.ask(op, **({"topic": topic.name} if op is Op.STATE else {}))
    write(flood, topic, MUCH + 1_000)
    desk.settle()
    assert pauses.end() > 0


def test_whoever_reads_much_does_not_ask_for_little(
    open_desk: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = open_desk(ring_bytes=2 * MIB, flood_leave=3)
    pauses, topic = Pauses(desk, monkeypatch), desk.topic(durability="disk")
    flood, reader = desk.line(), desk.line()
    desk.write(topic, [bytes(MUCH)])
    reader.session.bytes_out += 2 * MUCH
    reader.ask(Op.STATE, topic=topic.name)
    write(flood, topic, MUCH + 1_000)
    assert not flood.session.over_share
    desk.settle()
    assert pauses.due == []


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


def test_under_full_pressure_nobody_waits_for_its_share(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(ring_bytes=2 * MIB, flood_leave=3)
    topic = desk.topic(durability="disk")
    flood, other = desk.line(), desk.line()
    other.ask(Op.PING)  # and again in a moment
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


def test_whoever_reads_much_pauses_too(open_desk: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch) -> None:
    desk = open_desk(ring_bytes=2 * MIB, flood_leave=3)
    pauses, topic = Pauses(desk, monkeypatch), desk.topic(durability="disk")
    desk.write(topic, [bytes(MUCH)])
    reader, other = desk.line(), desk.line()
    other.ask(Op.PING)  # and again in a moment
    for _ in range(3):  # alone
        reader.ask(Op.STATE, topic=topic.name)
        reader.session.bytes_out += MUCH
    assert (reader.reading, pauses.due) == (True, [])
    write(other, topic, 10)
    reader.ask(Op.STATE, topic=topic.name)
    assert not reader.reading
    assert 0 < pauses.end() <= PAUSE_MAX_S
    desk.turn()
    assert reader.reading


def test_a_connection_with_the_requests_of_many_clients_does_not_pause(
    open_desk: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = open_desk(ring_bytes=2 * MIB, flood_leave=3)
    pauses, topic = Pauses(desk, monkeypatch), desk.topic(durability="disk")
    gateway, other = desk.line(), desk.line()
    other.ask(Op.PING)  # and again in a moment
    gateway.session.trusted = True
    write(other, topic, 10)
    write(gateway, topic, MUCH + 1_000)
    desk.settle()
    assert pauses.due == []
    for _ in range(MUCH // QUANTUM + 3):  # what it took beyond its turn is paid for
        desk.turn()
    assert gateway.reading
