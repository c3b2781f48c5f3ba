"""Schedules that make jobs."""

from __future__ import annotations

import pytest

from tests.unit.delivery.desk import Desk
from tests.unit.delivery.queues.hands import Hands
from topicd.errors import InvalidRequest, NotAQueue, Throttled
from topicd.frames import FrameType
from topicd.ipc.protocol.messages import Op
from topicd.shards.delivery.queues.crons import CRON_DATA_MAX, CRONS_MAX

MINUTE = 60_000


@pytest.fixture
def hands(desk: Desk) -> Hands:
    return Hands(desk)


def test_a_job_for_each_time_that_is_named(hands: Hands) -> None:
    answer = hands.ask(Op.CRON_ADD, name="often", schedule="*/5 * * * *", data=b"go", tag="t", priority=7, group="g")
    assert answer["created"] and answer["next_ts"] % (5 * MINUTE) == 0 and answer["last_ts"] is None
    assert hands.counts() == (0, 0, 0)
    for n in range(3):
        hands.advance(5 * MINUTE)
        assert hands.counts()[0] == n + 1
    job = hands.claim().jobs[0]
    assert job.data == b"go" and hands.why(2)["group"] == "g"
    (row,) = hands.ask(Op.CRON_LIST)["schedules"]
    assert row["last_ts"] == answer["next_ts"] + 10 * MINUTE and row["next_ts"] == row["last_ts"] + 5 * MINUTE


def test_a_tick_and_its_job_are_one_batch(hands: Hands) -> None:
    hands.ask(Op.CRON_ADD, name="often", schedule="* * * * *", data=b"go")
    hands.advance(MINUTE)
    frames = hands.desk.wal.frames()
    at = next(n for n, (_, body) in enumerate(frames) if body and "tick" in body)
    assert frames[at + 1][0] is FrameType.APPEND


def test_of_those_that_were_missed_one_is_made_up_for(hands: Hands) -> None:
    hands.ask(Op.CRON_ADD, name="often", schedule="* * * * *")
    hands.advance(90 * MINUTE)
    assert hands.counts()[0] == 1
    hands.advance(MINUTE)
    assert hands.counts()[0] == 2


def test_replaced_and_removed(hands: Hands) -> None:
    hands.ask(Op.CRON_ADD, name="one", schedule="* * * * *")
    assert not hands.ask(Op.CRON_ADD, name="one", schedule="0 3 * * *", data="text")["created"]
    hands.advance(2 * MINUTE)
    assert hands.counts()[0] == 0
    assert hands.ask(Op.CRON_LIST)["schedules"][0]["data"] == b"text"
    assert hands.ask(Op.CRON_REMOVE, name="one")["removed"]
    assert not hands.ask(Op.CRON_REMOVE, name="one")["removed"]
    assert hands.ask(Op.CRON_LIST)["schedules"] == []


def test_a_queue_that_takes_nothing_gets_its_job_when_it_does(hands: Hands) -> None:
    hands.ask(Op.CRON_ADD, name="one", schedule="* * * * *")
    hands.ask(Op.QUEUE_DRAIN)
    hands.advance(MINUTE)
    assert hands.counts()[0] == 0
    hands.ask(Op.QUEUE_RESUME)
    hands.advance(2_000)
    assert hands.counts()[0] == 1


def test_bounded_and_checked(hands: Hands) -> None:
    with pytest.raises(InvalidRequest, match="fields"):
        hands.ask(Op.CRON_ADD, name="one", schedule="sometimes")
    with pytest.raises(InvalidRequest, match="at most"):
        hands.ask(Op.CRON_ADD, name="one", schedule="* * * * *", data=bytes(CRON_DATA_MAX + 1))
    with pytest.raises(InvalidRequest, match="at most"):
        hands.ask(Op.CRON_ADD, name="one", schedule="* * * * *", data=5)
    for n in range(CRONS_MAX):
        hands.ask(Op.CRON_ADD, name=f"c{n}", schedule="* * * * *")
    with pytest.raises(Throttled):
        hands.ask(Op.CRON_ADD, name="more", schedule="* * * * *")
    hands.desk.topic("orders")
    with pytest.raises(NotAQueue):
        hands.line.ask(Op.CRON_LIST, topic="orders")
