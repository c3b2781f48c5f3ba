"""Questions about a queue: why a job does not run."""

from __future__ import annotations

import time

import pytest

from tests.unit.delivery.desk import Desk
from tests.unit.delivery.queues.hands import Hands
from topicd.ipc.protocol.messages import Op
from topicd.shards.delivery.queues import asking


@pytest.fixture
def hands(desk: Desk) -> Hands:
    return Hands(desk)


def because(hands: Hands, seq: int | None = None) -> str:
    return " / ".join(hands.why(seq)["because"])


def test_why_a_job_does_not_run(hands: Hands) -> None:
    hands.write(3)
    assert "no job has this seq" in because(hands, 9)
    assert "nobody waits" in because(hands, 1)
    hands.claim(1, node=b"worker-7")
    assert "worker-7 holds it" in because(hands, 1)
    assert "next one" in because(hands, 2) and "of its own kind" not in because(hands, 2)
    hands.put(delay_ms=500)
    assert "in 500 ms" in because(hands, 4)
    hands.put(priority=9)
    assert "1 job of a higher priority" in because(hands, 2)
    hands.done(hands.claim(1))
    assert hands.why(5)["state"] == "gone"


def test_why_the_next_one_does_not(hands: Hands) -> None:
    assert "no job is ready" in because(hands)
    hands.put(group="tenant")
    hands.put(group="tenant")
    hands.ask(Op.CONFIGURE, config={"group_max_in_flight": 1})
    hands.claim(5)
    assert "group_max_in_flight is 1" in because(hands) and hands.why()["seq"] == 2


def test_counters_of_all_kinds(hands: Hands) -> None:
    hands.write(2)
    hands.put(priority=9, group="g", unique="k")
    hands.nack(hands.claim(1), kind="fail")
    hands.done(hands.claim(1))
    state = hands.state()
    assert (state["ready"], state["delayed"], state["acked"], state["failed"]) == (1, 1, 1, 1)
    assert state["priorities"] == {"4": 1} and state["groups"] == 1 and state["unique_keys"] == 1
    assert state["oldest_ready_ts"] == hands.desk.clock.now_ms()


def test_a_million_jobs_do_not_make_an_answer_slow(hands: Hands) -> None:
    hands.write(1)
    hands.topic.seqs.head = hands.topic.seqs.visible = 1_000_001  # as if they were there
    hands.jobs.catch_up(1_000_001, 0)
    best = min(_timed(hands) for _ in range(20))
    assert best < 0.005


def _timed(hands: Hands) -> float:
    start = time.perf_counter()
    asking.why(hands.service, 900_000)
    return time.perf_counter() - start
