"""Waiting jobs steered by an operator."""

from __future__ import annotations

from tests.unit.delivery.desk import Desk
from tests.unit.delivery.queues.hands import Hands
from topicd.ipc.protocol.messages import Op


def test_a_delayed_job_is_tried_at_once(desk: Desk) -> None:
    hands = Hands(desk)
    seq, _ = hands.put(delay_ms=60_000)
    assert hands.counts() == (0, 0, 1)
    answer = hands.ask(Op.QUEUE_STEER, seqs=[seq], action="ready")
    assert (answer["changed"], answer["skipped"]) == (1, [])
    assert hands.claim().seqs == [seq]


def test_waiting_jobs_are_deleted_for_good(desk: Desk) -> None:
    hands = Hands(desk)
    hands.write(3)
    delayed, _ = hands.put(delay_ms=60_000)
    answer = hands.ask(Op.QUEUE_STEER, seqs=[2, delayed], action="delete")
    assert answer["changed"] == 2
    assert hands.counts() == (2, 0, 0)
    assert hands.claim(10).seqs == [1, 3]
    assert hands.topic.contents.count == 2
    assert any(body and body.get("buried") == [2, 2, delayed, delayed] for _, body in desk.wal.frames())


def test_what_somebody_holds_or_nobody_knows_is_left_alone_and_named(desk: Desk) -> None:
    hands = Hands(desk)
    hands.write(2)
    hands.claim()
    answer = hands.ask(Op.QUEUE_STEER, seqs=[1, 99], action="delete")
    assert (answer["changed"], answer["skipped"]) == (0, [1, 99])
    answer = hands.ask(Op.QUEUE_STEER, seqs=[2], action="ready")  # it is ready already
    assert (answer["changed"], answer["skipped"]) == (0, [2])
    assert hands.counts() == (1, 1, 0)
