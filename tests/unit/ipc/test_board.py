"""The board: the same numbers for everybody. And the ladder as a table."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from topicd.ipc import pressure, shm
from topicd.ipc.pressure import LADDER, Board, Inputs, commit_us, gather_us, pressure_of


@pytest.fixture
def instance() -> Iterator[str]:
    made = secrets.token_hex(8)
    yield made
    for name in shm.names_of(made):
        shm.unlink(name)


def test_what_is_said_is_read_by_all(instance: str) -> None:
    written = Board(pressure.create(instance, 3))
    read = Board.attach(instance)
    assert (read.value, read.steps, read.gather_us, read.commit_us, read.watching) == (0.0, 0, 0, 0, False)
    written.say(0.875, 0b0111, 16_000, 9_000, watching=True)
    assert (read.value, read.gather_us, read.commit_us, read.watching) == (0.875, 16_000, 9_000, True)
    assert (read.pausing, read.routers_lower, read.refusing) == (True, 1, False)
    written.say(1.0, 0b1111, 0, 0, watching=True)
    assert read.refusing
    for board in (written, read):
        board.close()


def test_each_shard_has_a_line_of_its_own(instance: str) -> None:
    board = Board(pressure.create(instance, 3))
    said = [Inputs(n, n + 0.25, n / 10, n / 20, n / 5, n / 4) for n in range(3)]
    for shard, inputs in enumerate(said):
        board.report(shard, inputs)
    assert [board.said(shard) for shard in range(3)] == said
    assert board.value == 0.0
    board.close()


def test_the_ladder_climbs_and_each_step_ends_below_where_it_begins() -> None:
    assert [step.name for step in LADDER] == ["gather", "widen", "pause", "refuse"]
    assert [step.above for step in LADDER] == [0.2, 0.4, 0.8, 0.95]
    assert LADDER[pressure.PAUSE].below == 0.6
    assert all(step.below < step.above for step in LADDER)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (Inputs(), 0.0),
        (Inputs(latency_ms=5), 0.2),  # the target
        (Inputs(latency_ms=80), 0.8),
        (Inputs(depth=1024), 0.2),
        (Inputs(pool=1.0), 0.2),
        (Inputs(ring=1.0), 0.5),
        (Inputs(backlog=0.97), 0.97),
        (Inputs(ring=1.0, backlog=2.0), 1.0),
        (Inputs(latency_ms=5, pool=0.5, ring=0.1), 0.2),
    ],
)
def test_the_worst_of_what_a_shard_says_counts(said: Inputs, expected: float) -> None:
    assert pressure_of(said) == pytest.approx(expected)


def test_windows_grow_with_the_pressure() -> None:
    assert [gather_us(value) for value in (0.15, 0.2, 0.6, 1.0)] == [0, 0, 10_000, 20_000]
    assert [commit_us(value) for value in (0.3, 0.4, 0.7, 1.0)] == [500, 500, 5_250, 10_000]
