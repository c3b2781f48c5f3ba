"""Where each job is, and how it gets from one place to another."""

from __future__ import annotations

import pytest

from tests.unit.delivery.queues.loose_jobs import NOW, change, make, options, seqs


def test_what_is_live_and_nothing_else_is_ready() -> None:
    jobs = make()
    jobs.open([(1, 5), (8, 10)], 10, NOW)
    assert jobs.ready == 8 and seqs(jobs) == [1, 2, 3, 4, 5, 8, 9, 10]


def test_what_is_known_of_records_that_went_goes_too() -> None:
    jobs = make()
    jobs.announce(1, [options(1, 5, group="g")])
    jobs.open([(1, 10)], 10, NOW)
    seqs(jobs, 2)
    jobs.leases.give(1, 1, 1, NOW + 100, b"w", None)
    change(jobs, back=[[2, 1, NOW, NOW, "", NOW + 50]])
    jobs.open([(6, 10)], 10, NOW)
    assert jobs.in_flight == 0 and not jobs.delayed and not jobs.past and jobs.ready == 5
    assert jobs.lanes.get(4, "g").jobs == 0


def test_an_end_that_was_not_stored_leaves_the_job_held() -> None:
    jobs = make()
    jobs.open([(1, 1)], 1, NOW)
    seqs(jobs)
    jobs.leases.give(1, 1, 9, NOW + 100, b"w", None)
    jobs.begin_end(1)
    assert not jobs.leases.is_held(1, 9, b"") and jobs.in_flight == 1
    jobs.end_failed(1)
    assert jobs.leases.is_held(1, 9, b"") and jobs.in_flight == 1


def test_a_delayed_job_is_ready_at_its_time() -> None:
    jobs = make()
    jobs.announce(1, [options(1, ready_at=NOW + 5)])
    jobs.open([(1, 1)], 1, NOW)
    assert jobs.next_ready == NOW + 5
    jobs.wake_delayed(NOW + 4)
    assert jobs.ready == 0
    jobs.wake_delayed(NOW + 5)
    assert jobs.ready == 1 and jobs.next_ready is None


def test_figures_are_its_counters() -> None:
    jobs = make()
    jobs.open([(1, 3)], 3, NOW)
    assert jobs.figures(3, 1) == (3, 0, 0, 0, 0)


@pytest.mark.parametrize("count", [1_000_000])
def test_a_million_plain_jobs_are_one_run(count: int) -> None:
    jobs = make()
    jobs.open([], 0, NOW)
    jobs.catch_up(count, NOW)
    assert jobs.ready == count and len(jobs.lanes.plain.fresh) == 1
    assert len(jobs.to_snapshot(count)["placed"]) == 0
