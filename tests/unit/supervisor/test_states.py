"""The tables of states."""

from __future__ import annotations

import pytest

from topicd.supervisor.states import CHILD_STATES, PHASES, ChildState, IllegalMove, Machine, Phase


def test_the_way_of_a_daemon() -> None:
    machine = Machine(PHASES, Phase.STARTING)
    for phase in (Phase.RECOVERING, Phase.SERVING, Phase.DEGRADED, Phase.SERVING, Phase.STOPPING, Phase.STOPPED):
        assert machine.move(phase)
    assert machine.now is Phase.STOPPED


def test_staying_is_no_move() -> None:
    assert not Machine(PHASES, Phase.STARTING).move(Phase.STARTING)


@pytest.mark.parametrize(
    ("start", "to"),
    [
        (Phase.STARTING, Phase.SERVING),
        (Phase.STOPPING, Phase.SERVING),
        (Phase.STOPPED, Phase.STARTING),
        (Phase.SERVING, Phase.STARTING),
    ],
)
def test_an_illegal_move_raises_and_changes_nothing(start: Phase, to: Phase) -> None:
    machine = Machine(PHASES, start)
    with pytest.raises(IllegalMove, match=f"{start} cannot become {to}"):
        machine.move(to)
    assert machine.now is start


def test_ready_is_reached_through_recovery_only() -> None:
    assert [phase for phase, following in PHASES.items() if Phase.SERVING in following] == [
        Phase.RECOVERING,
        Phase.DEGRADED,
    ]


def test_tables_know_every_state() -> None:
    assert set(PHASES) == set(Phase)
    assert set(CHILD_STATES) == set(ChildState)


def test_an_abandoned_child_stays_away() -> None:
    assert CHILD_STATES[ChildState.EXITED] == frozenset()
