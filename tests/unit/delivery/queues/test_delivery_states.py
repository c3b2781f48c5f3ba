"""Where each job is, and how it gets from one place to another."""

from __future__ import annotations

import pytest

from tests.support.jobs import Claimed
from tests.unit.delivery.desk import Desk
from tests.unit.delivery.queues.hands import Hands
from tests.unit.delivery.queues.loose_jobs import NOW, again, change, make, options, seqs
from topicd.ipc.protocol.messages import Op
from topicd.shards.delivery.queues.facts import Kept


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


def test_what_is_kept_says_how_it_went(desk: Desk) -> None:
    hands = Hands(desk, keep_done_ms=1_000, backoff_ms=0)
    hands.write(3)
    hands.put(group="g")
    began = desk.clock.now_ms()
    held = hands.claim(4)
    failing = [job for job in held.jobs if job.seq == 2]
    hands.advance(30)
    hands.nack(Claimed(held.topic_id, 0, failing), kind="fail", reason="oops", delay_ms=0)
    second = hands.claim()
    hands.advance(12)
    hands.done(Claimed(held.topic_id, 0, [*(job for job in held.jobs if job not in failing), *second.jobs]))
    rows = hands.ask(Op.QUEUE_PEEK, state="done", from_seq=0, limit=10)["jobs"]
    assert rows == [
        {"seq": 1, "state": "done", "deliveries": 1, "started_ts": began, "done_ts": began + 42},
        {"seq": 2, "state": "done", "deliveries": 2, "started_ts": began + 30, "done_ts": began + 42, "reason": "oops"},
        {"seq": 3, "state": "done", "deliveries": 1, "started_ts": began, "done_ts": began + 42},
        {"seq": 4, "state": "done", "deliveries": 1, "started_ts": began, "done_ts": began + 42, "group": "g"},
    ]
    kept = list(hands.jobs.kept)
    other = again(hands.jobs, 4, [(1, 4)])
    assert list(other.kept) == kept
    hands.advance(2_000)
    assert hands.ask(Op.QUEUE_PEEK, state="done", from_seq=0, limit=10)["jobs"] == []


def test_jobs_that_went_the_same_way_are_kept_as_one() -> None:
    jobs = make()
    jobs.open([(1, 1_000)], 1_000, NOW)
    for seq in range(1, 1_001):
        jobs.leases.give(seq, seq, seq, NOW + 10, b"w", None).since = NOW
        jobs.begin_end(seq)
    rows = jobs.ran(list(range(1, 1_001)))
    assert [(row[0], row[1]) for row in rows] == [(1, 256), (257, 512), (513, 768), (769, 1_000)]
    change(jobs, done=[1, 1_000], keep=rows)
    assert jobs.kept_row(512) == Kept(NOW, 257, 512, NOW, 1) and jobs.kept_count == 1_000
    change(jobs, gone=[300, 400])
    assert jobs.kept_row(299).last == 299 and jobs.kept_row(401).first == 401


def test_a_log_of_earlier_days_keeps_what_it_kept() -> None:
    jobs = make()
    jobs.open([(1, 3)], 3, NOW)
    change(jobs, done=[1, 2], keep=True)
    assert list(jobs.kept) == [Kept(NOW, 1, 2)]
