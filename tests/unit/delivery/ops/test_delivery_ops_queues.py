"""Jobs over the wire: claimed, pushed, finished, given back; queues looked at, paused and drained."""

from __future__ import annotations

import errno

import pytest

from tests.support.jobs import ack_body, claim_body
from tests.unit.delivery.desk import Desk
from tests.unit.delivery.queues.hands import Hands
from topicd.errors import Conflict, InvalidRequest, NotAQueue, StorageFailed, TopicNotFound
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import FLAG_DONE
from topicd.shards.delivery.sessions.call import OPERATIONS, RAW_OPERATIONS


@pytest.fixture
def hands(desk: Desk) -> Hands:
    return Hands(desk)


def test_every_operation_on_queues_is_there() -> None:
    assert {Op.CLAIM, Op.ACK} <= set(RAW_OPERATIONS)
    assert all(op in OPERATIONS for op in range(Op.NACK, Op.CRON_LIST + 1))


def test_a_job_is_claimed_once_and_done_for_good(hands: Hands) -> None:
    hands.write(3)
    first = hands.claim(2)
    assert first.seqs == [1, 2] and first.ready == 1
    assert [job.deliveries for job in first.jobs] == [1, 1]
    assert hands.claim(5).seqs == [3]
    acked = hands.done(first)
    assert (acked.acked, acked.skipped, acked.ready, acked.in_flight) == (2, [], 0, 1)
    again = hands.done(first)
    assert (again.acked, again.skipped) == (0, [1, 2])
    assert hands.topic.contents.count == 1


def test_a_stale_number_and_another_node_are_skipped(hands: Hands) -> None:
    hands.write(2)
    job = hands.claim(1).jobs[0]
    assert hands.ack([(job.seq, job.lease + 1)]).skipped == [1]
    assert hands.ack([(job.seq, 0)], node=b"another").skipped == [1]
    assert hands.ack([(job.seq, 0)], node=b"w").acked == 1
    assert hands.ask(Op.NACK, seqs=[2], node="w")["skipped"] == [2]
    assert hands.ask(Op.EXTEND, seqs=[2], node="w", lease_ms=100)["skipped"] == [2]


def test_a_lease_that_is_over_ends_nothing_and_the_job_comes_again(hands: Hands) -> None:
    hands.write(1)
    job = hands.claim(1, lease_ms=1_000).jobs[0]
    hands.desk.clock.advance(1_000)
    assert hands.counts() == (0, 1, 0)
    hands.desk.clock.advance(1)
    assert hands.counts() == (1, 0, 0)
    assert hands.ack([(1, job.lease)]).skipped == [1]
    again = hands.claim(1).jobs[0]
    assert again.deliveries == 2 and again.lease > job.lease


def test_a_claim_finishes_jobs_first_and_says_what_became_of_them(hands: Hands) -> None:
    hands.write(4)
    first = hands.claim(2)
    found = hands.claim_after(first, 5)
    assert (found.acked, found.skipped, found.seqs, found.ready) == (2, [], [3, 4], 0)
    assert hands.topic.contents.count == 2 and hands.counts() == (0, 2, 0)
    again = hands.claim_after(first, 5)
    assert (again.acked, again.skipped, again.seqs) == (0, [1, 2], [])
    assert hands.claim_after(found._replace(jobs=[])).jobs == []
    assert hands.state()["acked"] == 2


def test_a_claim_finishes_by_number_and_without_one_by_its_own_node(hands: Hands) -> None:
    hands.write(3)
    one, other, third = hands.claim(3, node=b"w").jobs
    rows = [(one.seq, one.lease + 1), (other.seq, 0), (third.seq, third.lease)]
    found = hands.claimed(hands.begin_claim(done=rows, node=b"w"))
    assert (found.acked, found.skipped) == (2, [1])
    assert hands.claimed(hands.begin_claim(done=[(1, 0)], node=b"another")).skipped == [1]


@pytest.mark.parametrize("finished", [1, 2])
def test_nothing_is_handed_out_before_what_is_finished_first_is_stored(hands: Hands, finished: int) -> None:
    hands.write(finished + 1)
    request = hands.begin_claim(done=[(job.seq, job.lease) for job in hands.claim(finished).jobs])
    hands.desk.turn()
    assert not hands.line.answers and hands.jobs.ready == 1
    assert hands.claimed(request).seqs == [finished + 1]


def test_a_place_in_a_group_that_is_freed_by_a_claim_is_there_for_it(desk: Desk) -> None:
    hands = Hands(desk, group_max_in_flight=1)
    hands.put(group="a")
    hands.put(group="a")
    first = hands.claim(2)
    assert first.seqs == [1]
    assert hands.claim_after(first, 2).seqs == [2]


def test_a_claim_whose_jobs_cannot_be_stored_as_done_takes_none(desk: Desk) -> None:
    hands = Hands(desk, durability="fsync")
    hands.write(2)
    first = hands.claim()
    request = hands.begin_claim(done=[(1, first.jobs[0].lease)])
    desk.turn()
    desk.fail_wal(errno.EIO)
    with pytest.raises(StorageFailed):
        hands.claimed(request)
    assert hands.counts() == (1, 1, 0)
    assert hands.claim_after(first).seqs == [2]


def test_a_connection_that_ended_meanwhile_gets_no_jobs_and_its_own_are_done(hands: Hands) -> None:
    hands.write(2)
    other = hands.desk.line()
    job = hands.claim(line=other).jobs[0]
    hands.begin_claim(done=[(job.seq, job.lease)], wait_ms=1_000, line=other)
    other.session.connection_lost(None)
    hands.desk.settle()
    assert hands.counts() == (1, 0, 0) and hands.state()["claims"] == 0


def test_a_claim_that_finishes_jobs_waits_for_others_as_any_does(hands: Hands) -> None:
    hands.write(1)
    first = hands.claim()
    waiting = hands.begin_claim(wait_ms=1_000, done=[(1, first.jobs[0].lease)])
    hands.desk.settle()
    assert not hands.line.answers and hands.state()["acked"] == 1
    hands.write(1)
    found = hands.claimed(waiting)
    assert (found.acked, found.seqs) == (1, [2])


def test_what_a_claim_finishes_is_whole_rows_at_most_a_thousand_and_said_by_its_flag(hands: Hands) -> None:
    hands.write(1)
    first = hands.claim()
    body = claim_body(hands.topic.id, done=[(1, first.jobs[0].lease)])
    too_many = claim_body(hands.topic.id, done=[(1, 1)] * 1_001)
    for wrong, flags in ((body[:-1], FLAG_DONE), (body, 0), (too_many, FLAG_DONE)):
        with pytest.raises(InvalidRequest):
            hands.line.result(hands.line.send(Op.CLAIM, wrong, flags))
    assert hands.counts() == (0, 1, 0)


def test_a_queue_that_is_deleted_meanwhile_hands_nothing_out(hands: Hands) -> None:
    hands.write(2)
    first = hands.claim()
    request = hands.begin_claim(done=[(1, first.jobs[0].lease)], wait_ms=1_000)
    hands.line.send(Op.DELETE_TOPIC, {"topic": "jobs"})
    with pytest.raises(TopicNotFound):
        hands.claimed(request)


def test_extended_is_from_now_on_and_keeps_the_number(hands: Hands) -> None:
    hands.write(2)
    claimed = hands.claim(2, lease_ms=1_000)
    hands.desk.clock.advance(900)
    now = hands.desk.clock.now_ms()
    answer = hands.ask(Op.EXTEND, seqs=[1], leases=[claimed.jobs[0].lease], lease_ms=2_000)
    assert answer["deadlines"] == [[1, now + 2_000]] and answer["extended"] == 1
    hands.desk.clock.advance(500)
    assert hands.counts() == (1, 1, 0)
    assert hands.ack([(1, claimed.jobs[0].lease)]).acked == 1


def test_given_back_by_release_it_does_not_count_by_fail_it_does_and_waits(hands: Hands) -> None:
    hands.write(1)
    assert hands.nack(hands.claim(), kind="release")["ready"] == 1
    again = hands.claim()
    assert again.jobs[0].deliveries == 1
    answer = hands.nack(again, kind="fail", reason="no luck")
    assert (answer["nacked"], answer["ready"]) == (1, 0)
    row = hands.why(1)
    assert (row["state"], row["deliveries"], row["reason"]) == ("delayed", 1, "no luck")
    assert 750 <= row["ready_at"] - hands.desk.clock.now_ms() <= 1_000
    hands.desk.clock.advance(1_000)
    assert hands.claim().jobs[0].deliveries == 2


def test_a_delay_that_is_given_is_taken_as_it_is(hands: Hands) -> None:
    hands.write(1)
    hands.nack(hands.claim(), delay_ms=5_000)
    hands.desk.clock.advance(4_999)
    assert hands.claim().jobs == []
    hands.desk.clock.advance(1)
    assert hands.claim().seqs == [1]


def test_a_claim_waits_until_there_is_a_job_or_its_time_is_over(hands: Hands) -> None:
    waiting = hands.begin_claim(5, wait_ms=1_000)
    hands.desk.settle()
    assert not hands.line.answers
    hands.write(2)
    assert hands.claimed(waiting).seqs == [1, 2]
    waiting = hands.begin_claim(5, wait_ms=1_000)
    hands.advance(999)
    assert not hands.line.answers
    hands.advance(1)
    assert hands.claimed(waiting).jobs == []


def test_a_stream_gets_as_many_as_it_asked_for_and_more_when_it_has_ended_some(hands: Hands) -> None:
    hands.write(5)
    hands.work(2)
    (first,) = hands.pushed()
    assert first.seqs == [1, 2]
    assert hands.state()["workers"] == 1
    hands.ack([(1, first.jobs[0].lease)])
    assert [claimed.seqs for claimed in hands.pushed()] == [[3]]
    hands.desk.clock.advance(30_001)
    hands.desk.parts.deadlines.run()
    assert sorted(seq for claimed in hands.pushed() for seq in claimed.seqs) == [2, 3]


def test_what_a_stream_holds_is_free_at_once_when_its_connection_ends(hands: Hands) -> None:
    other = hands.desk.line()
    hands.write(3)
    hands.work(2, other)
    hands.claim(1)
    assert hands.counts() == (0, 3, 0)
    other.session.connection_lost(None)
    assert hands.counts() == (2, 1, 0)
    assert [job.deliveries for job in hands.claim(2).jobs] == [1, 1]


def test_a_stream_that_stops_keeps_what_it_has_unless_it_gives_it_back(hands: Hands) -> None:
    hands.write(4)
    work = hands.work(2)
    hands.pushed()
    assert hands.line.ask(Op.STOP_WORK, work=work) == {"released": 0}
    hands.write(1)
    assert hands.pushed() == [] and hands.counts() == (3, 2, 0)
    assert hands.line.ask(Op.STOP_WORK, work=work, release=True) == {"released": 2}
    assert hands.counts() == (5, 0, 0)
    with pytest.raises(InvalidRequest):
        hands.line.ask(Op.STOP_WORK, work=99)


def test_ten_claimers_of_ten_share_what_a_window_has(desk: Desk) -> None:
    hands = Hands(desk, claim_jitter_ms=50)
    hands.write(50)
    waiting = [hands.begin_claim(10) for _ in range(10)]
    desk.settle()
    assert not hands.line.answers
    hands.advance(50)
    assert [len(hands.claimed(one).jobs) for one in waiting] == [5] * 10


def test_without_a_window_the_first_comer_takes_all(hands: Hands) -> None:
    hands.write(5)
    assert len(hands.claim(10).jobs) == 5
    assert hands.claim(10).jobs == []


def test_paused_nothing_is_handed_out_and_resumed_it_goes_on(hands: Hands) -> None:
    hands.write(2)
    answer = hands.ask(Op.QUEUE_PAUSE, reason="maintenance")
    assert answer["paused"]["by"] == "user"
    assert hands.claim().jobs == []
    assert "maintenance" in hands.why(1)["because"][0]
    hands.work(1)
    assert hands.pushed() == []
    hands.ask(Op.QUEUE_RESUME)
    assert [claimed.seqs for claimed in hands.pushed()] == [[1]]


def test_drained_nothing_comes_in(hands: Hands) -> None:
    hands.write(1)
    assert hands.ask(Op.QUEUE_DRAIN)["draining"]
    with pytest.raises(Conflict, match="drained"):
        hands.put(priority=3)
    assert hands.claim().seqs == [1]
    hands.ask(Op.QUEUE_RESUME)
    hands.put(priority=3)


def test_looked_at_jobs_are_as_they_are(hands: Hands) -> None:
    hands.write(3)
    hands.put(delay_ms=500)
    hands.claim(1)
    rows = {row["seq"]: row["state"] for row in hands.ask(Op.QUEUE_PEEK)["jobs"]}
    assert rows == {1: "in_flight", 2: "ready", 3: "ready", 4: "delayed"}
    page = hands.ask(Op.QUEUE_PEEK, state="ready", limit=1)
    assert ([row["seq"] for row in page["jobs"]], page["next"]) == ([2], 2)
    page = hands.ask(Op.QUEUE_PEEK, state="ready", limit=1, from_seq=2)
    assert ([row["seq"] for row in page["jobs"]], page["next"]) == ([3], None)


def test_a_log_has_no_jobs_and_what_is_not_there_has_none(hands: Hands) -> None:
    log = hands.desk.topic("orders")
    line = hands.line
    for send in (
        lambda: line.ask(Op.QUEUE_STATE, topic="orders"),
        lambda: line.ask(Op.WORK, topic="orders", node="w"),
        lambda: line.result(line.send(Op.CLAIM, claim_body(log.id))),
        lambda: line.result(line.send(Op.ACK, ack_body(log.id, [(1, 1)]))),
    ):
        with pytest.raises(NotAQueue):
            send()
    with pytest.raises(TopicNotFound):
        line.result(line.send(Op.CLAIM, claim_body(999)))


@pytest.mark.parametrize(
    "body",
    [b"", claim_body(1, node=b""), claim_body(1, node=b"x" * 129), claim_body(1) + b"?", claim_body(1, wait_ms=30_001)],
)
def test_a_claim_that_is_none_is_refused(hands: Hands, body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        hands.line.result(hands.line.send(Op.CLAIM, body))


@pytest.mark.parametrize("body", [b"", ack_body(1, [(1, 1)])[:-1], ack_body(1, [(1, 0)]), ack_body(1, [(1, 1)] * 1001)])
def test_an_ack_that_is_none_is_refused(hands: Hands, body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        hands.line.result(hands.line.send(Op.ACK, body))
    with pytest.raises(InvalidRequest):
        hands.ask(Op.NACK, seqs=[1])
    with pytest.raises(InvalidRequest):
        hands.ask(Op.NACK, seqs=[1], leases=[1, 2])
