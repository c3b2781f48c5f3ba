"""Jobs with options on their way in: stored with them, and one job for a key."""

from __future__ import annotations

import errno

import pytest

from tests.support.jobs import put_body
from tests.unit.delivery.desk import Desk
from tests.unit.delivery.queues.hands import Hands
from topicd.errors import InvalidRequest, NotAQueue, StorageFailed
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import FLAG_CONFLICT, FLAG_DEDUPED, FLAG_OPTIONS


@pytest.fixture
def hands(desk: Desk) -> Hands:
    return Hands(desk)


def test_a_second_job_with_a_key_is_none(hands: Hands) -> None:
    assert hands.put(unique="k") == (1, 0)
    assert hands.put(unique="k") == (1, FLAG_CONFLICT)
    claimed = hands.claim()
    assert hands.put(unique="k") == (1, FLAG_CONFLICT)
    hands.done(claimed)
    assert hands.put(unique="k") == (2, 0)


def test_until_it_is_started(hands: Hands) -> None:
    hands.put(unique="k", until="start")
    hands.claim()
    assert hands.put(unique="k") == (2, 0)


def test_for_a_time_also_when_it_is_done(hands: Hands) -> None:
    hands.put(unique="k", until="time", unique_ms=1_000)
    hands.done(hands.claim())
    assert hands.put(unique="k", on_conflict="replace") == (1, FLAG_CONFLICT)
    hands.desk.clock.advance(1_000)
    assert hands.put(unique="k") == (2, 0)


def test_a_job_that_waits_is_replaced_and_one_that_runs_is_not(hands: Hands) -> None:
    hands.put(b"old", unique="k")
    assert hands.put(b"new", unique="k", on_conflict="replace") == (2, 0)
    assert hands.counts() == (1, 0, 0) and hands.topic.contents.count == 1
    assert hands.claim().jobs[0].data == b"new"
    assert hands.put(unique="k", on_conflict="replace") == (2, FLAG_CONFLICT)


def test_a_job_that_waits_gets_another_time(hands: Hands) -> None:
    hands.put(unique="k", delay_ms=100)
    assert hands.put(unique="k", delay_ms=500, on_conflict="reschedule") == (1, FLAG_CONFLICT)
    hands.advance(499)
    assert hands.claim().jobs == []
    hands.advance(1)
    assert hands.claim().seqs == [1]
    assert hands.put(unique="k", on_conflict="reschedule") == (1, FLAG_CONFLICT)


def test_whoever_waits_gets_a_job_whose_time_is_now(hands: Hands) -> None:
    hands.put(unique="k", delay_ms=100)
    hands.work(1)
    assert hands.pushed() == []
    hands.put(unique="k", on_conflict="reschedule")
    assert [claimed.seqs for claimed in hands.pushed()] == [[1]]


def test_a_producer_that_meets_a_conflict_goes_on_with_its_next_number(hands: Hands) -> None:
    assert hands.put(unique="k", producer=5, number=1) == (1, 0)
    assert hands.put(unique="k", producer=5, number=2) == (1, FLAG_CONFLICT)
    assert hands.put(unique="k", producer=5, number=2) == (1, FLAG_CONFLICT | FLAG_DEDUPED)
    assert hands.put(unique="k", producer=5, number=1) == (1, FLAG_DEDUPED)
    assert hands.put(unique="other", producer=5, number=3) == (2, 0)


def test_a_key_of_a_job_that_was_not_stored_is_free(hands: Hands) -> None:
    hands.ask(Op.CONFIGURE, config={"durability": "fsync"})
    body = put_body(hands.topic.id, [b"x"], [[0, 1, {"unique": "k"}]])
    first = hands.line.send(Op.APPEND, body, FLAG_OPTIONS)
    second = hands.line.send(Op.APPEND, body, FLAG_OPTIONS)
    hands.desk.turn()
    hands.desk.fail_wal(errno.EIO)
    for request in (first, second):
        with pytest.raises(StorageFailed):
            hands.line.result(request)
    assert hands.put(unique="k") == (1, 0)


def test_a_batch_may_hold_jobs_of_several_kinds(hands: Hands) -> None:
    body = put_body(hands.topic.id, [b"a", b"b", b"c", b"d"], [[1, 1, {"priority": 9}], [3, 1, {"delay_ms": 50}]])
    hands.line.result(hands.line.send(Op.APPEND, body, FLAG_OPTIONS))
    assert [job.data for job in hands.claim(9).jobs] == [b"b", b"a", b"c"]
    hands.desk.clock.advance(50)
    assert [job.data for job in hands.claim(9).jobs] == [b"d"]


def test_a_log_takes_no_options_and_what_is_cut_off_is_refused(hands: Hands) -> None:
    log = hands.desk.topic("orders")
    with pytest.raises(NotAQueue):
        hands.line.result(hands.line.send(Op.APPEND, put_body(log.id, [b"x"], [[0, 1, {}]]), FLAG_OPTIONS))
    with pytest.raises(InvalidRequest, match="cut off"):
        hands.line.result(hands.line.send(Op.APPEND, put_body(hands.topic.id, [b"x"], [[0, 1, {}]])[:32], FLAG_OPTIONS))
    assert hands.topic.seqs.head == 0
