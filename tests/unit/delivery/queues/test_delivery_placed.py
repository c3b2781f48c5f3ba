"""Which jobs are in which lane, as runs."""

from __future__ import annotations

from topicd.shards.delivery.queues.lanes import Lanes
from topicd.shards.delivery.queues.placed import Placed


def test_neighbours_that_are_alike_are_one_run() -> None:
    lanes, placed = Lanes(), Placed()
    lane = lanes.get(9, "")
    placed.add(1, 10, lane)
    placed.add(11, 20, lane)
    placed.add(22, 22, lane)
    assert [(run.first, run.last) for run in placed] == [(1, 20), (22, 22)] and lane.jobs == 21
    assert placed.lane_of(15) is lane and placed.lane_of(21) is None and placed.lane_of(23) is None


def test_a_run_goes_with_the_last_of_its_jobs() -> None:
    lanes, placed = Lanes(), Placed()
    lane = lanes.get(9, "")
    placed.add(1, 3, lane)
    placed.add(5, 5, lanes.get(1, ""))
    assert placed.done(2, 3) == [] and len(placed) == 2
    assert placed.done(1, 1) == [lane] and len(placed) == 1
    assert [run.first for run in placed.between(1, 9)][-1] == 5


def test_many_that_came_and_went_leave_nothing() -> None:
    lanes, placed = Lanes(), Placed()
    for seq in range(1, 10_001):
        placed.add(seq, seq, lanes.get(seq % 2, ""))
        placed.done(seq, seq)
    assert len(placed) == 0 and len(placed._runs) < 200
