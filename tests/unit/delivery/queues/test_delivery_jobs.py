"""The jobs of a queue: what the log makes of them, what a snapshot and the log give again."""

from __future__ import annotations

from tests.unit.delivery.queues.loose_jobs import NOW, again, change, make, options, seqs
from topicd.shards.delivery.queues.facts import Kept, Past, Stop


def test_every_job_is_in_one_place_also_after_a_restart() -> None:
    jobs = make()
    jobs.announce(4, [options(4, 2, priority=9)])
    jobs.announce(6, [options(6, ready_at=NOW + 50)])
    jobs.open([(1, 10)], 10, NOW)
    change(jobs, done=[1, 2], keep=True)
    change(jobs, back=[[3, 2, NOW, NOW, "oops", NOW + 70]], dying=[[7, 5, NOW, NOW, "bad"]], totals=[2, 0, 1, 0, 0])
    change(jobs, pause=["user", "why", NOW], drain=["user", "", NOW], mark=77)
    # what was in the lanes is there yet: rebuilt, as a start does it
    for one in (jobs, again(jobs, 10, [(1, 10)])):
        one.open([(1, 10)], 10, NOW)
        assert one.delayed == {6: NOW + 50, 3: NOW + 70} and one.dying == {7}
        assert list(one.kept_seqs) == [(1, 2)] and one.past[3] == Past(2, NOW, NOW, "oops")
        assert one.paused == Stop("user", "why", NOW) and one.draining is not None
        assert one.totals.acked == 2 and one.leases.marked == 77
        assert seqs(one) == [4, 5, 8, 9, 10]


def test_leases_outlive_a_restart_only_if_they_are_meant_to() -> None:
    for durable in (False, True):
        jobs = make(leases_durable=durable)
        jobs.open([(1, 3)], 3, NOW)
        seqs(jobs, 2)
        jobs.leases.give(1, 2, 5, NOW + 100, b"w", None)
        jobs.begin_end(2)
        other = again(jobs, 3, [(1, 3)])
        assert other.leases.is_held(1, 5, b"") == durable and other.leases.is_held(2, 6, b"") == durable
        assert other.ready == (1 if durable else 3)


def test_a_lease_in_the_log_is_held_until_the_log_says_otherwise() -> None:
    jobs = make(leases_durable=True)
    change(jobs, lease=[[1, 3, 10, NOW + 100, b"w"]])
    change(jobs, free=[2, 2])
    change(jobs, lease=[[3, 3, 12, NOW + 900, b"w"]])
    jobs.open([(1, 3)], 3, NOW)
    assert jobs.leases.is_held(1, 10, b"") and jobs.leases.next_number == 13
    assert seqs(jobs) == [2]
    assert [seq for seq, _ in jobs.leases.take_expired(NOW + 500)] == [1]


def test_a_key_until_the_start_is_free_when_the_log_says_that_its_job_was_handed_out() -> None:
    jobs = make(leases_durable=True)
    jobs.replay_options(1, {"n": 1, "opts": [options(1, key="k", until="start").to_log()]})
    jobs.replay_options(2, {"n": 1, "opts": [options(2, key="l").to_log()]})
    change(jobs, lease=[[1, 2, 10, NOW + 100, b"w"]])
    assert jobs.keys.holder("k", NOW) is None
    assert jobs.keys.holder("l", NOW) is not None


def test_options_that_a_snapshot_holds_are_not_taken_from_the_log_again() -> None:
    jobs = make()
    jobs.announce(1, [options(1, ready_at=NOW + 50)])
    jobs.open([(1, 1)], 1, NOW)
    change(jobs, back=[[1, 1, NOW, NOW, "", NOW + 500]])
    other = make()
    other.restore(jobs.to_snapshot(1))
    other.replay_options(1, {"n": 1, "opts": [options(1, ready_at=NOW + 50).to_log()]})
    other.replay_options(2, {"n": 1, "opts": [options(2, ready_at=NOW + 60).to_log()]})
    assert other.delayed == {1: NOW + 500, 2: NOW + 60}


def test_options_of_a_batch_that_failed_leave_nothing() -> None:
    jobs = make()
    jobs.open([(1, 3)], 3, NOW)
    jobs.announce(4, [options(4, key="k", priority=9)])
    assert jobs.keys.holder("k", NOW) is not None
    jobs.take_back(4)
    assert jobs.keys.holder("k", NOW) is None
    jobs.catch_up(4, NOW)
    assert len(jobs.placed) == 0 and jobs.ready == 4


def test_a_job_that_was_to_be_replaced_is_there_again_if_nothing_comes_of_it() -> None:
    jobs = make()
    jobs.announce(1, [options(1, key="k")])
    jobs.open([(1, 1)], 1, NOW)
    jobs.announce(2, [options(2, key="k")], replaces=1)
    assert jobs.ready == 0
    jobs.take_back(2)
    held = jobs.keys.holder("k", NOW)
    assert jobs.ready == 1 and held is not None and held.seq == 1


def test_a_replaced_job_goes_with_the_one_that_took_its_place() -> None:
    jobs = make()
    jobs.announce(1, [options(1, key="k", ready_at=NOW + 5)])
    jobs.open([(1, 1)], 1, NOW)
    jobs.announce(2, [options(2, key="k")], replaces=1)
    jobs.catch_up(2, NOW)
    assert jobs.replaced == [1] and jobs.delayed == {} and seqs(jobs) == [2]
    assert again(jobs, 2, [(1, 2)]).ready == 1


def test_what_is_done_and_kept_goes_when_it_is_told_to() -> None:
    jobs = make(keep_done_ms=10)
    jobs.open([(1, 5)], 5, NOW)
    change(jobs, done=[1, 3], keep=True)
    assert jobs.kept_count == 3
    change(jobs, gone=[1, 2])
    assert list(jobs.kept) == [Kept(NOW, 3, 3)] and jobs.kept_count == 1


def test_totals_never_go_back() -> None:
    jobs = make()
    change(jobs, totals=[5, 1, 0, 0, 0])
    change(jobs, totals=[4, 2, 0, 0, 0])
    assert jobs.totals.row[:2] == [5, 2]


def test_another_time_for_a_job_that_waits() -> None:
    jobs = make()
    jobs.announce(1, [options(1, ready_at=NOW + 5)])
    jobs.open([(1, 1)], 1, NOW)
    jobs.withdraw(1)
    change(jobs, sched=[[1, NOW + 50]])
    jobs.wake_delayed(NOW + 49)
    assert jobs.delayed == {1: NOW + 50}
