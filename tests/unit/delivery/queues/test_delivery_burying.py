"""Jobs on their way to the dead letters."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from tests.unit.delivery.desk import Desk
from tests.unit.delivery.queues.hands import Hands
from topicd.errors import InvalidRequest, NotReady, TopicdError, TopicFull
from topicd.frames import core
from topicd.ipc.protocol.messages import Op
from topicd.shards.delivery.queues import burying
from topicd.shards.delivery.topic.topic import Topic


@pytest.fixture
def hands(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Hands:
    monkeypatch.setattr(burying, "_PAUSE_S", 0.0)
    monkeypatch.setattr(burying, "_PAUSE_MAX_S", 0.0)
    return Hands(desk.route(), max_deliveries=2, dead_letter="jobs.dead", backoff_ms=0)


def letters(desk: Desk, name: str = "jobs.dead") -> list[dict[str, Any]]:
    topic: Topic | None = desk.parts.catalog.by_name.get(name)
    rows = (
        []
        if topic is None
        else [row for blob in topic.contents.tail for row in core.decode_frames(blob.data, blob.start, blob.end)]
    )
    return [msgpack.unpackb(row[4]) for row in rows]


def test_tried_often_enough_it_is_there_once_and_here_no_more(hands: Hands) -> None:
    hands.write(2)
    hands.nack(hands.claim(), reason="one")
    again = hands.claim()
    assert again.seqs == [1] and again.jobs[0].deliveries == 2
    assert hands.nack(again, reason="two")["dead"] == [1]
    (found,) = letters(hands.desk)
    assert found["$dead_letter_from"] == "jobs" and found["$dead_letter_src_seq"] == "1"
    assert found["$dead_letter_deliveries"] == "2" and found["$dead_letter_reason"] == "two"
    state = hands.state()
    assert (state["ready"], state["dead_lettered"], hands.topic.contents.count) == (1, 1, 1)
    assert hands.why(1)["state"] == "gone"


def test_a_worker_that_says_dead_and_leases_that_run_out_count(hands: Hands) -> None:
    hands.write(2)
    assert hands.nack(hands.claim(), kind="dead", reason="poison")["dead"] == [1]
    for _ in range(2):
        assert hands.claim(1, lease_ms=100).seqs == [2]
        hands.advance(2_000)
    assert [found["$dead_letter_src_seq"] for found in letters(hands.desk)] == ["1", "2"]
    assert hands.counts() == (0, 0, 0) and hands.topic.contents.count == 0


def test_a_lease_that_came_with_the_end_of_another_job_runs_out_by_itself(hands: Hands) -> None:
    short = Hands(hands.desk, "short", max_deliveries=1, dead_letter="short.dead")
    short.write(2)
    short.claim_after(short.claim(lease_ms=60_000), lease_ms=100)
    short.advance(2_000)
    assert [found["$dead_letter_src_seq"] for found in letters(hands.desk, "short.dead")] == ["2"]


def test_repeated_it_is_there_once(hands: Hands) -> None:
    """The letter was stored, what says so here was not: as after a crash in between."""
    hands.write(1)
    claimed = hands.claim()
    jobs, service = hands.jobs, hands.service
    hands.nack(claimed, kind="dead")
    assert len(letters(hands.desk)) == 1
    hands.write(1)
    row = [1, 2, 0, 0, ""]
    jobs.replay(burying_frame(), {"at": 0, "dying": [row]}, 0)
    hands.topic.contents.tail_dead = type(hands.topic.contents.tail_dead)()
    hands.topic.floors.earliest = 1
    hands.topic.contents.count += 1
    hands.topic.contents.bytes += 3
    service.wake()
    hands.desk.settle()
    assert len(letters(hands.desk)) == 1 and not jobs.dying


def burying_frame() -> Any:
    from topicd.frames import FrameType

    return FrameType.LEASE


def test_what_the_dead_letters_do_not_take_is_a_job_again(hands: Hands) -> None:
    full = hands.desk.topic("jobs.dead", cap_records=1, discard="reject")
    hands.desk.write(full, [b"there is no room"])
    hands.write(1)
    hands.nack(hands.claim(), kind="dead")
    assert hands.counts() == (0, 0, 1) and hands.topic.contents.count == 1
    assert "jobs.dead" in hands.why(1)["reason"]
    hands.advance(1_000)
    assert hands.claim().seqs == [1]


def test_a_shard_that_is_away_for_a_moment_is_asked_again(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    refusals: list[TopicdError] = [NotReady("away"), NotReady("away")]
    real = hands.desk.parts.relay.open

    async def open_later(topic: str, **more: Any) -> int:
        if refusals:
            raise refusals.pop()
        return await real(topic, **more)

    monkeypatch.setattr(hands.desk.parts.relay, "open", open_later)
    hands.write(1)
    hands.nack(hands.claim(), kind="dead")
    assert len(letters(hands.desk)) == 1 and not refusals


def test_a_job_is_dying_until_it_is_there(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(topic: str, **more: Any) -> int:
        raise TopicFull("no")

    hands.write(1)
    claimed = hands.claim()
    monkeypatch.setattr(burying, "AT_ONCE", 0)
    hands.nack(claimed, kind="dead")
    assert hands.why(1)["state"] == "dead" and hands.counts() == (0, 0, 0)
    assert hands.jobs.to_snapshot(1)["dying"] == [1]


def test_a_queue_is_not_its_own_dead_letters(hands: Hands) -> None:
    for name in ("jobs", "topicd.letters"):
        with pytest.raises(InvalidRequest, match="dead_letter"):
            hands.ask(Op.CONFIGURE, config={"dead_letter": name})


def test_without_somewhere_to_go_jobs_come_back_for_ever(desk: Desk) -> None:
    hands = Hands(desk.route(), max_deliveries=1, backoff_ms=0)
    hands.write(1)
    for tries in range(1, 5):
        claimed = hands.claim()
        assert claimed.jobs[0].deliveries == tries
        assert hands.nack(claimed)["dead"] == []
