"""What a shard says for the pressure of the daemon, and that it is silent while nothing happens."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.delivery.desk import Desk
from topicd.ipc.pressure import Inputs, pressure_of
from topicd.shards.delivery import load as module
from topicd.shards.delivery.load import Load


class Timers:
    """call_later of the loop, done by hand."""

    def __init__(self, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
        self.due: list[Any] = []
        self.now = 100.0
        monkeypatch.setattr(desk.loop, "call_later", lambda after, call, *args: self.due.append(call))
        self.cpu = 5.0
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(module.time, "thread_time", lambda: self.cpu)

    def beat(self, after: float = module.BEAT_S, busy: float = 0.0) -> None:
        """busy: so much of that time its own work took."""
        self.now += after
        self.cpu += busy
        [call] = self.due
        self.due.clear()
        call()


@pytest.fixture
def timers(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Timers:
    return Timers(desk, monkeypatch)


@pytest.fixture
def load(desk: Desk, timers: Timers) -> Load:
    desk.parts.load._awake = False
    return desk.parts.load


def test_it_looks_while_something_happens_and_a_second_longer(load: Load, timers: Timers) -> None:
    assert timers.due == []
    load.stir()
    load.stir()
    beats = 0
    while timers.due:
        timers.beat()
        beats += 1
        if beats == 5:
            load.stir()
    assert beats == 6 + 20
    load.stir()
    assert len(timers.due) == 1


def test_a_late_loop_is_latency_and_fades(load: Load, timers: Timers, desk: Desk) -> None:
    load.stir()
    timers.beat(module.BEAT_S + 0.1, busy=0.05)
    assert load.said.latency_ms == 0  # others had the processor
    load.stir()
    timers.beat(module.BEAT_S + 0.1, busy=0.08)
    assert load.said.latency_ms == pytest.approx(30)
    assert desk.parts.board.said(0).latency_ms == pytest.approx(30, abs=0.01)
    beats = 0
    while timers.due:
        timers.beat(module.BEAT_S + 0.1)  # still late, and not because of anything it does
        beats += 1
    assert load.said == Inputs()
    assert beats < 60


def test_topics_that_wait_are_depth_and_latency(load: Load, timers: Timers, desk: Desk) -> None:
    topics = [desk.topic(f"t{n}") for n in range(3)]
    for topic in topics:
        desk.parts.agenda.ready.add(topic)
    desk.parts.agenda.ready.settle()
    desk.clock.advance(100)
    load.stir()
    timers.beat()
    assert (load.said.depth, load.said.latency_ms) == (3, pytest.approx(30))
    desk.parts.turn.end()
    timers.beat()
    assert load.said.depth == 0


def test_a_wal_shard_that_stands_still_is_latency_and_a_full_ring(load: Load, timers: Timers, desk: Desk) -> None:
    topic = desk.topic(durability="disk")
    desk.append(topic, [bytes(desk.parts.place.settings.ring_bytes // 2)])
    desk.parts.turn.end()
    for _ in range(4):
        load.stir()
        timers.beat()
    assert load.said.latency_ms == 0  # a disk may take so long
    for _ in range(21):
        load.stir()
        timers.beat()
    assert load.said.latency_ms > 500
    assert 0.3 < load.said.ring < 0.7
    assert pressure_of(load.said) > 0.95
    desk.settle()
    for _ in range(60):
        if timers.due:
            timers.beat()
    assert pressure_of(load.said) < 1e-6
    assert timers.due == []


def test_what_is_bounded_in_memory_is_backlog(load: Load, timers: Timers, desk: Desk) -> None:
    settings = desk.parts.place.settings
    desk.parts.backlog.tail_bytes = 4 * settings.checkpoint_bytes
    load.stir()
    timers.beat()
    assert load.said.backlog == pytest.approx(0.5)
    desk.parts.outlets[0].in_flight_bytes = settings.max_inflight_bytes
    timers.beat()
    assert load.said.backlog == 1.0


def test_the_supervisor_is_called_unless_it_looks_already(load: Load, timers: Timers, desk: Desk) -> None:
    desk.sent.clear()
    load.stir()
    timers.beat()
    assert desk.sent == []
    desk.parts.backlog.tail_bytes = 4 * desk.parts.place.settings.checkpoint_bytes
    timers.beat()
    timers.beat()
    assert desk.sent == [{"event": "pressed"}] * 2
    desk.parts.board.say(0.5, 0, 0, 0, watching=True)
    timers.beat()
    assert len(desk.sent) == 2


def test_the_page_has_what_the_board_has(load: Load, timers: Timers, desk: Desk) -> None:
    desk.parts.backlog.tail_bytes = 4 * desk.parts.place.settings.checkpoint_bytes
    load.stir()
    timers.beat()
    page = load.page()
    assert (page["backlog_occupied"], page["pressure"], page["ready_depth"]) == (0.5, 0.5, 0)


def test_it_says_for_how_much_of_the_time_floods_pause(desk: Desk, load: Load, timers: Timers) -> None:
    load.stir()
    timers.beat()
    assert load.page()["floods_paused"] == 0
    for _ in range(30):
        desk.parts.fairness.paused_s += 0.75 * module.BEAT_S
        load.stir()
        timers.beat()
    assert load.page()["floods_paused"] == pytest.approx(0.75, abs=0.01)
    assert load.page()["pressure"] == 0
    for _ in range(30):
        load.stir()
        timers.beat()
    assert load.page()["floods_paused"] == 0
