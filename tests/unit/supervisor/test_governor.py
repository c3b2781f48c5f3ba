"""One pressure for all, steps with hysteresis, and nobody woken while there is nothing to look at."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator

import pytest

from topicd.ipc import pressure, shm
from topicd.ipc.pressure import LOOK_S, Board, Inputs
from topicd.supervisor.governor import CALM_S, Governor, Ladder


@pytest.fixture
def board() -> Iterator[Board]:
    instance = secrets.token_hex(8)
    made = Board(pressure.create(instance, 2))
    yield made
    made.close()
    for name in shm.names_of(instance):
        shm.unlink(name)


@pytest.fixture
def governor(board: Board) -> Governor:
    made = Governor(2)
    made.open(board)
    return made


def active(governor: Governor) -> list[str]:
    return [step["name"] for step in governor.status()["steps"] if step["active"]]


def test_a_step_begins_above_and_ends_below() -> None:
    ladder = Ladder()
    story = []
    for now, value in enumerate([0.2, 0.21, 0.19, 0.16, 0.15, 0.14, 0.14, 0.3]):
        story += [(now, *change) for change in ladder.climb(value, float(now))]
    assert story == [(1, 0, True), (5, 0, False), (7, 0, True)]
    assert ladder.times == [2, 0, 0, 0]


def test_pushes_pause_only_when_the_pressure_lasts_and_until_it_is_well_below() -> None:
    ladder, pause = Ladder(), pressure.PAUSE
    ladder.climb(0.9, 0.0)
    ladder.climb(0.7, 0.9)  # it did not last
    ladder.climb(0.9, 1.0)
    ladder.climb(0.9, 1.9)
    assert not ladder.holds(pause)
    ladder.climb(0.9, 2.0)
    assert ladder.holds(pause)
    for value in (0.79, 0.6):
        ladder.climb(value, 3.0)
        assert ladder.holds(pause)
    ladder.climb(0.59, 3.1)
    assert not ladder.holds(pause)


def test_the_worst_shard_is_the_pressure_of_all(governor: Governor, board: Board) -> None:
    board.report(0, Inputs(latency_ms=5))
    board.report(1, Inputs(backlog=0.5))
    governor.call(0.0)
    governor.look(0.0)
    assert (board.value, board.gather_us, board.commit_us) == (0.5, 7_500, 2_083)
    assert active(governor) == ["gather", "widen"]
    assert [shard["pressure"] for shard in governor.status()["shards"]] == [0.2, 0.5]


def test_it_rises_at_once_and_falls_step_by_step(governor: Governor, board: Board) -> None:
    governor.call(0.0)
    board.report(0, Inputs(backlog=1.0))
    governor.look(0.0)
    board.report(0, Inputs())
    seen = []
    for look in range(1, 5):
        governor.look(look * LOOK_S)
        seen.append(board.value)
    assert seen == [0.5, 0.25, 0.125, 0.0625]


def test_nobody_looks_until_somebody_calls_and_no_longer_than_needed(governor: Governor, board: Board) -> None:
    board.report(0, Inputs(backlog=0.9))
    governor.look(1.0)
    assert (governor.next_at, board.value, board.watching) == (None, 0.0, False)
    governor.call(1.0)
    governor.look(1.0)
    assert (governor.next_at, board.watching) == (1.0 + LOOK_S, True)
    governor.look(1.0 + LOOK_S / 2)  # too early
    assert governor.next_at == 1.0 + LOOK_S
    board.report(0, Inputs())
    now = 1.0
    while governor.next_at is not None:
        now = governor.next_at
        governor.look(now)
    assert CALM_S < now - 1.0 < CALM_S + 2
    assert (board.value, board.steps, board.watching) == (0.0, 0, False)


def test_a_forced_pressure_holds_whatever_the_shards_say(governor: Governor, board: Board) -> None:
    governor.force(0.9, 0.0)
    assert (board.value, governor.status()["forced"]) == (0.9, True)
    board.report(0, Inputs(backlog=0.1))
    governor.look(1.0)
    assert active(governor) == ["gather", "widen", "pause"]
    governor.force(None, 2.0)
    for now in range(3, 8):
        governor.look(float(now))
    assert active(governor) == []


def test_steps_are_logged_by_their_names(governor: Governor, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        governor.force(0.3, 0.0)
        governor.force(0.0, 1.0)
    assert [(record.message, record.step) for record in caplog.records] == [  # type: ignore[attr-defined]
        ("pressure: a step begins", "gather"),
        ("pressure: a step ends", "gather"),
    ]
