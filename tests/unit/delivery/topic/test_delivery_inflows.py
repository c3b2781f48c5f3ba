"""How far routers have come with a topic."""

from __future__ import annotations

from topicd.frames import FrameType
from topicd.limits import LASTING, ROUTED, SCATTERED
from topicd.shards.delivery.topic.inflows import Inflow, Inflows, Mark, is_routed


def flows() -> Inflows:
    made = Inflows()
    made.routers[3] = Inflow(10, why="others write to it")
    return made


def state(made: Inflows) -> tuple[int, int]:
    return made.routers[3].cursor, made.routers[3].total


def test_producers_of_routers_are_told_from_others() -> None:
    assert is_routed(ROUTED + 3)
    assert not any(map(is_routed, (1, ROUTED - 1, SCATTERED, LASTING)))


def test_a_batch_counts_when_it_is_stored() -> None:
    made = flows()
    made.begin(3, 15, 4)
    assert state(made) == (10, 0)
    made.stored(ROUTED + 3)
    assert state(made) == (15, 4)
    made.stored(ROUTED + 4)
    made.stored(17)


def test_one_that_fails_does_not() -> None:
    made = flows()
    made.begin(3, 15, 4)
    made.failed(ROUTED + 3)
    made.stored(ROUTED + 3)
    assert state(made) == (10, 0)


def test_the_log_is_not_counted_twice() -> None:
    made = flows()
    made.replay_batch(ROUTED + 3, 15, 4)
    made.replay_batch(ROUTED + 3, 15, 4)
    made.replay_batch(ROUTED + 3, 12, 2)
    assert state(made) == (15, 4)


def test_what_was_passed_over_and_holes_come_back() -> None:
    made = flows()
    made.replay(FrameType.ROUTED, {"router": 3, "cursor": 20, "total": 1}, 0)
    made.replay(FrameType.ROUTED, {"router": 3, "cursor": 30, "total": 6, "hole": [2, 6]}, 0)
    again = Inflows()
    again.restore(made.to_snapshot(6))
    assert (state(again), list(again.trimmed)) == ((30, 6), [(2, 6)])
    again.replay(FrameType.ROUTED, {"router": 3, "cursor": 12, "total": 6, "back": True}, 0)
    assert state(again) == (12, 6)
    again.replay(FrameType.ROUTED, {"router": 3, "ended": True}, 0)
    assert len(again) == 0


def derived() -> Inflows:
    made = Inflows()
    made.routers[3] = Inflow(10, why="")
    made.derived, made.mark = 3, Mark(0, 10, 0)
    return made


def test_a_mark_moves_when_segments_have_what_was_planned() -> None:
    made = derived()
    made.begin(3, 15, 4)
    made.stored(ROUTED + 3)
    made.plan(4)
    made.reached(3, 77)
    assert made.mark == (0, 10, 0)
    made.reached(4, 78)
    assert (made.mark, made.last_ts) == ((4, 15, 4), 78)


def test_a_start_goes_on_from_the_mark_and_skips_what_segments_have() -> None:
    made, again = derived(), Inflows()
    made.mark = Mark(4, 15, 4)
    again.restore(made.to_snapshot(9))
    again.replay(FrameType.ROUTED, {"router": 3, "cursor": 12, "total": 2, "mark": 2}, 0)  # older
    again.resume(6, 50)
    assert (state(again), again.skip, again.remaking, again.last_ts) == ((15, 6), 2, True, 50)


def test_no_mark_is_made_before_all_is_there_again() -> None:
    made = derived()
    made.remaking = True
    made.plan(9)
    made.reached(9, 1)
    assert made.mark == (0, 10, 0)


def test_once_logged_it_stays_so() -> None:
    made = derived()
    made.replay(FrameType.ROUTED, {"router": 3, "cursor": 20, "total": 6, "logged": "others write to it"}, 0)
    again = Inflows()
    again.restore(made.to_snapshot(6))
    assert (again.derived, again.remaking, again.routers[3].why) == (None, False, "others write to it")
