"""What ends deliveries: one frame for a turn, answered when it is stored, undone when it cannot be."""

from __future__ import annotations

import errno

import pytest

from tests.support.jobs import ack_body, parse_acked
from tests.unit.delivery.desk import Desk
from tests.unit.delivery.queues.hands import Hands
from topicd.errors import StorageFailed
from topicd.frames import FrameType
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import message
from topicd.shards.delivery.queues.ending import flat_ranges, pairs


def test_seqs_become_ranges() -> None:
    assert flat_ranges([3, 1, 2, 9, 7, 9]) == [1, 3, 7, 7, 9, 9]
    assert pairs([1, 3, 7, 7]) == [(1, 3), (7, 7)] and flat_ranges([]) == []


def test_the_acks_of_a_turn_are_one_frame(desk: Desk) -> None:
    hands = Hands(desk)
    hands.write(6)
    jobs = hands.claim(6).jobs
    before = len([kind for kind, _ in desk.wal.frames() if kind is FrameType.LEASE])
    bodies = [ack_body(hands.topic.id, [(job.seq, job.lease)]) for job in jobs]
    hands.line.feed(b"".join(message(Op.ACK, 1_000 + n, body) for n, body in enumerate(bodies)))
    desk.settle()
    answers = [parse_acked(answer.body).acked for answer in hands.line.answers]
    assert answers == [1] * 6
    frames = [body for kind, body in desk.wal.frames() if kind is FrameType.LEASE][before:]
    assert [frame["done"] for frame in frames] == [[1, 6]]


def test_the_acks_of_several_workers_that_are_heard_together_are_one_frame(desk: Desk) -> None:
    hands = Hands(desk)
    hands.write(6)
    lines = [desk.line() for _ in range(3)]
    rows = [[(job.seq, job.lease) for job in hands.claim(2, line=line).jobs] for line in lines]
    before = len([kind for kind, _ in desk.wal.frames() if kind is FrameType.LEASE])
    for line, some in zip(lines, rows, strict=True):
        line.send(Op.ACK, ack_body(hands.topic.id, some))
    assert desk.parts.agenda.gathering
    desk.settle()
    assert not desk.parts.agenda.gathering
    assert [parse_acked(answer.body).acked for line in lines for answer in line.answers] == [2, 2, 2]
    frames = [body for kind, body in desk.wal.frames() if kind is FrameType.LEASE][before:]
    assert [frame["done"] for frame in frames] == [[1, 6]]


def test_nobody_is_answered_before_it_is_stored(desk: Desk) -> None:
    hands = Hands(desk)
    hands.write(1)
    job = hands.claim().jobs[0]
    hands.line.send(Op.ACK, ack_body(hands.topic.id, [(1, job.lease)]))
    desk.turn()
    assert not hands.line.answers and hands.jobs.in_flight == 1
    desk.settle()
    assert len(hands.line.answers) == 1 and hands.jobs.in_flight == 0


def test_what_cannot_be_stored_is_refused_and_the_job_held_as_before(desk: Desk) -> None:
    hands = Hands(desk, durability="fsync")
    hands.write(2)
    jobs = hands.claim(2).jobs
    ack = hands.line.send(Op.ACK, ack_body(hands.topic.id, [(1, jobs[0].lease)]))
    nack = hands.line.send(Op.NACK, {"topic": "jobs", "seqs": [2], "leases": [jobs[1].lease]})
    desk.turn()
    desk.fail_wal(errno.EIO)
    for request in (ack, nack):
        with pytest.raises(StorageFailed):
            hands.line.result(request)
    assert hands.counts() == (0, 2, 0)
    assert hands.ack([(job.seq, job.lease) for job in jobs]).acked == 2
    assert hands.state()["acked"] == 2


def test_an_ephemeral_queue_needs_no_log(desk: Desk) -> None:
    hands = Hands(desk, durability="ephemeral")
    hands.write(2)
    assert hands.done(hands.claim(2)).acked == 2
    assert hands.topic.contents.count == 0


def test_done_and_kept_it_is_readable_for_a_while(desk: Desk) -> None:
    hands = Hands(desk, keep_done_ms=1_000)
    hands.write(2)
    hands.done(hands.claim(1))
    assert hands.topic.contents.count == 2 and hands.state()["kept"] == 1
    assert hands.why(1)["state"] == "done"
    assert hands.claim(5).seqs == [2]
    hands.advance(3_000)
    assert hands.topic.contents.count == 1 and hands.state()["kept"] == 0


def test_seqs_that_follow_each_other_are_one_range_in_any_order_and_twice_none() -> None:
    assert flat_ranges([3, 1, 2]) == [1, 3] and flat_ranges([1, 1, 3]) == [1, 1, 3, 3] and flat_ranges([5, 5]) == [5, 5]


def test_many_finished_together_are_as_many_finished_one_by_one(desk: Desk) -> None:
    hands = Hands(desk)
    hands.write(30)
    whole, part, extended = hands.claim(10), hands.claim(10), hands.claim(10)
    assert (hands.done(whole).acked, hands.jobs.in_flight) == (10, 20)
    assert hands.done(whole).skipped == whole.seqs
    rows = [(job.seq, job.lease) for job in part.jobs]
    assert hands.ack([*rows[:5], *rows[:5]]).skipped == part.seqs[:5]
    assert hands.ack(rows).skipped == part.seqs[:5] and hands.jobs.in_flight == 10
    hands.ask(Op.EXTEND, seqs=[extended.seqs[3]], leases=[extended.jobs[3].lease], lease_ms=60_000)
    wrong = [(job.seq, job.lease + 1) for job in extended.jobs]
    assert hands.ack(wrong).skipped == extended.seqs
    assert hands.done(extended).acked == 10 and hands.counts() == (0, 0, 0)
    assert hands.topic.contents.count == 0 and hands.topic.floors.earliest == 31
