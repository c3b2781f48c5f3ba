"""Jobs given back: how long they wait, what is kept of why."""

from __future__ import annotations

import pytest

from tests.unit.delivery.desk import Desk
from tests.unit.delivery.kit import make_topic
from tests.unit.delivery.queues.hands import Hands
from topicd.errors import Conflict, InvalidRequest
from topicd.ipc.protocol.messages import Op
from topicd.shards.delivery.queues.giving_back import backoff_ms


def test_each_try_waits_longer_up_to_the_most() -> None:
    topic = make_topic(type="queue", backoff_ms=100, backoff_factor=3.0, backoff_max_ms=1_000)
    for deliveries, nominal in ((1, 100), (2, 300), (3, 900), (4, 1_000), (500, 1_000)):
        assert nominal * 0.75 <= backoff_ms(topic, 7, deliveries) <= nominal


def test_jobs_that_fail_together_do_not_come_back_together() -> None:
    topic = make_topic(type="queue", backoff_ms=60_000)
    assert len({backoff_ms(topic, seq, 1) for seq in range(100)}) > 90


def test_reasons_and_tries_are_kept_with_the_job(desk: Desk) -> None:
    hands = Hands(desk)
    hands.write(1)
    hands.nack(hands.claim(), kind="fail", delay_ms=0, reason="first")
    hands.desk.clock.advance(10)
    hands.nack(hands.claim(), kind="release", reason="my machine stops")
    row = hands.why(1)
    assert (row["deliveries"], row["reason"], row["state"]) == (1, "my machine stops", "ready")
    hands.nack(hands.claim(), kind="fail", delay_ms=0)
    row = hands.why(1)
    assert row["deliveries"] == 2 and row["last_ts"] - row["first_ts"] == 10


def test_dead_needs_somewhere_to_go(desk: Desk) -> None:
    hands = Hands(desk)
    hands.write(1)
    with pytest.raises(Conflict, match="no dead_letter"):
        hands.nack(hands.claim(), kind="dead")
    assert hands.counts() == (0, 1, 0)


def test_the_same_job_twice_is_given_back_once(desk: Desk) -> None:
    hands = Hands(desk)
    hands.write(1)
    lease = hands.claim().jobs[0].lease
    answer = hands.ask(Op.NACK, seqs=[1, 1], leases=[lease, lease], kind="release")
    assert (answer["nacked"], answer["skipped"]) == (1, [1])
    assert hands.counts() == (1, 0, 0)


def test_without_a_node_every_number_is_needed(desk: Desk) -> None:
    hands = Hands(desk)
    for op in (Op.NACK, Op.EXTEND):
        with pytest.raises(InvalidRequest, match="every lease"):
            hands.ask(op, seqs=[1, 2], leases=[5, 0], **({"lease_ms": 100} if op is Op.EXTEND else {}))


def test_durable_leases_are_extended_through_the_log(desk: Desk) -> None:
    hands = Hands(desk, leases_durable=True)
    hands.write(1)
    lease = hands.claim().jobs[0].lease
    assert hands.ask(Op.EXTEND, seqs=[1], leases=[lease], lease_ms=90_000)["extended"] == 1
    bodies = [body for _, body in desk.wal.frames() if body and "lease" in body]
    assert [row[0][2] for row in (body["lease"] for body in bodies)] == [lease, lease]
