"""One queue at work: who waits, what happens at which time."""

from __future__ import annotations

import pytest

from tests.unit.delivery.desk import Desk
from tests.unit.delivery.queues.hands import Hands
from topicd.ipc.protocol.messages import Op
from topicd.shards.delivery.queues.service import shares


def test_shares_are_even_as_far_as_each_wants() -> None:
    assert shares(50, [10] * 10) == [5] * 10
    assert shares(7, [1, 10, 10]) == [1, 3, 3]
    assert shares(2, [5, 5, 5]) == [1, 1, 0]
    assert shares(100, [1, 2, 3]) == [1, 2, 3]
    assert shares(0, [1]) == [0] and shares(5, []) == []


def test_streams_share_what_comes(desk: Desk) -> None:
    hands = Hands(desk)
    lines = [desk.line() for _ in range(4)]
    for line in lines:
        hands.work(10, line)
    hands.write(20)
    assert [sum(len(claimed.jobs) for claimed in hands.pushed(line)) for line in lines] == [5, 5, 5, 5]


def test_a_worker_is_woken_when_a_job_comes_back_or_its_time_has_come(desk: Desk) -> None:
    hands = Hands(desk)
    hands.write(1)
    hands.claim(1, lease_ms=500)
    hands.put(delay_ms=200)
    other = desk.line()
    hands.work(5, other)
    assert hands.pushed(other) == []
    hands.advance(200)
    assert [claimed.seqs for claimed in hands.pushed(other)] == [[2]]
    hands.advance(301)
    assert [claimed.seqs for claimed in hands.pushed(other)] == [[1]]


@pytest.mark.parametrize("limit", ["rate_per_s", "group_rate_per_s"])
@pytest.mark.parametrize("waits", ["stream", "claim"])
def test_whoever_waits_is_woken_when_a_rate_allows_more(desk: Desk, limit: str, waits: str) -> None:
    """Also where every group with jobs has had its share."""
    hands = Hands(desk, **{limit: 2})
    hands.put_many(4, group="g")
    assert hands.claim(1).seqs == [1]
    line = desk.line()
    if waits == "stream":
        hands.work(1, line)
        hands.advance(600)
        assert [claimed.seqs for claimed in hands.pushed(line)] == [[2]]
    else:
        request = hands.begin_claim(1, line=line, wait_ms=5_000)
        hands.advance(600)
        assert hands.claimed(request, line).seqs == [2]


@pytest.mark.parametrize("limit", ["rate_per_s", "group_rate_per_s"])
def test_a_clock_that_is_set_back_stops_no_limited_queue(desk: Desk, limit: str) -> None:
    hands = Hands(desk, **{limit: 2})
    hands.put_many(9, group="g")
    hands.work(5, line := desk.line())
    hands.advance(0)
    assert [claimed.seqs for claimed in hands.pushed(line)] == [[1]]
    desk.clock.set_wall(desk.clock.now_ms() - 3_600_000)
    hands.advance(0)
    hands.advance(600)
    assert len(hands.pushed(line)) >= 2


def test_a_clock_that_is_set_back_keeps_nobody_waiting(desk: Desk) -> None:
    hands, gathering = Hands(desk), Hands(desk, "gathered", claim_jitter_ms=50)
    hands.advance(0)
    waits = hands.begin_claim(wait_ms=1_000)
    gathering.write(1)
    gathered = gathering.begin_claim(1)
    desk.clock.set_wall(desk.clock.now_ms() - 3_600_000)
    hands.advance(0)
    assert hands.claimed(waits).jobs == []
    assert gathering.claimed(gathered).seqs == [1]


def test_a_window_serves_streams_and_claims_in_one_pass(desk: Desk) -> None:
    hands = Hands(desk, claim_jitter_ms=100)
    hands.write(6)
    waiting, other = hands.begin_claim(6), desk.line()
    hands.work(6, other)
    desk.settle()
    assert not hands.line.answers and hands.pushed(other) == []
    hands.advance(100)
    assert len(hands.claimed(waiting).jobs) == 3
    assert sum(len(claimed.jobs) for claimed in hands.pushed(other)) == 3


def test_a_window_in_which_there_is_nothing_ends_with_nothing(desk: Desk) -> None:
    hands = Hands(desk, claim_jitter_ms=100)
    waiting = hands.begin_claim(6)
    hands.advance(100)
    assert hands.claimed(waiting).jobs == []


def test_a_claim_whose_connection_ended_takes_nothing(desk: Desk) -> None:
    hands = Hands(desk)
    other = desk.line()
    hands.begin_claim(1, line=other, wait_ms=1_000)
    other.session.connection_lost(None)
    hands.write(1)
    assert hands.counts() == (1, 0, 0) and not hands.topic.followers


def test_a_deleted_queue_tells_those_who_wait(desk: Desk) -> None:
    hands = Hands(desk)
    other, third = desk.line(), desk.line()
    hands.begin_claim(1, line=other, wait_ms=1_000)
    hands.work(1, third)
    hands.ask(Op.DELETE_TOPIC)
    assert [answer.map()["code"] for answer in other.take(Op.ERROR)] == ["topic_not_found"]
    assert [answer.map()["event"] for answer in third.take(Op.NOTICE)] == ["topic_deleted"]
    hands.advance(60_000)


def test_records_that_a_cap_a_ttl_or_a_delete_took_are_no_jobs_any_more(desk: Desk) -> None:
    hands = Hands(desk, cap_records=5)
    hands.write(5)
    lease = hands.claim(1).jobs[0].lease
    hands.write(2)
    assert hands.counts() == (5, 0, 0)
    assert hands.ack([(1, lease)]).skipped == [1]
    hands.ask(Op.DELETE_RECORDS, before_seq=5)
    assert hands.counts() == (3, 0, 0)
    hands.ask(Op.CONFIGURE, config={"ttl_ms": 100})
    hands.desk.clock.advance(101)
    assert hands.counts() == (0, 0, 0)


def test_too_many_failures_and_the_queue_stops_itself(desk: Desk) -> None:
    hands = Hands(desk, breaker_failures=3, breaker_jobs=5, backoff_ms=0)
    hands.write(10)
    hands.done(hands.claim(2))
    for _ in range(3):
        assert hands.state()["paused"] is None
        hands.nack(hands.claim(), reason="bad")
    paused = hands.state()["paused"]
    assert paused["by"] == "breaker" and "3 of the last 5" in paused["reason"]
    assert hands.claim().jobs == []
    hands.ask(Op.QUEUE_RESUME)
    hands.nack(hands.claim())
    assert hands.state()["paused"] is None


def test_keys_whose_time_is_over_do_not_stay_for_ever(desk: Desk) -> None:
    hands = Hands(desk)
    for n in range(600):
        hands.jobs.keys.hold(f"k{n}", 1_000 + n, "time", hands.desk.clock.now_ms() + 1)
        hands.desk.clock.advance(1)
        hands.service.look()
    assert len(hands.jobs.keys) < 300


def test_a_queue_at_rest_is_not_woken(desk: Desk) -> None:
    hands = Hands(desk)
    hands.write(3)
    hands.done(hands.claim(3))
    hands.advance(60_000)
    assert len(desk.parts.deadlines) == 0
