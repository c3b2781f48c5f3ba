"""Commits as they are asked for: granted or refused at once, durable before they are answered."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.delivery.desk import Desk, Line
from topicd.errors import Conflict, NotReady, TopicFull
from topicd.ipc.protocol.messages import Op
from topicd.limits import LASTING
from topicd.shards.delivery.topic.topic import Topic

MINE = LASTING + 1


@pytest.fixture
def topic(desk: Desk) -> Topic:
    return desk.topic(durability="fsync", cap_records=10, discard="reject")


@pytest.fixture
def line(desk: Desk, topic: Topic) -> Line:
    return desk.line()


def ask(line: Line, op: Op, **fields: Any) -> dict[str, Any]:
    return line.ask(op, topic="orders", producer_id=MINE, **fields)


def opened(line: Line, records: int, **fields: Any) -> dict[str, Any]:
    return ask(line, Op.OPEN_COMMIT, records=records, bytes=1_000, hold_ms=60_000, **fields)


def test_room_is_granted_and_kept(desk: Desk, line: Line, topic: Topic) -> None:
    found = opened(line, 8)
    assert (found["topic_id"], found["expected"], found["first_no"], found["max_records"]) == (topic.id, 1, 1, 10)
    with pytest.raises(TopicFull, match="kept for commits"):
        desk.write(topic, [b"x"] * 3)
    desk.write(topic, [b"x"] * 2)
    desk.write(topic, [b"mine"] * 8, producer=MINE, number=1)
    assert topic.contents.count == 10 and ask(line, Op.CLOSE_COMMIT, first_no=1)["records"] == 8
    assert len(topic.commits) == 0


def test_what_does_not_fit_is_refused_and_nothing_is_held(desk: Desk, line: Line, topic: Topic) -> None:
    with pytest.raises(TopicFull, match="do not fit"):
        opened(line, 11)
    desk.write(topic, [b"x"] * 10)
    assert len(topic.commits) == 0


def test_opened_again_it_holds_what_the_rest_needs(line: Line, topic: Topic) -> None:
    opened(line, 8)
    assert opened(line, 3, first_no=1)["first_no"] == 1
    assert topic.commits.held(0, 0) == (3, 1_000)


def test_abandoned_it_is_taken_back_and_whoever_goes_on_is_refused(desk: Desk, line: Line, topic: Topic) -> None:
    desk.write(topic, [b"other"])
    opened(line, 8)
    desk.write(topic, [b"mine"] * 3, producer=MINE, number=1)
    found = ask(line, Op.ABANDON_COMMIT, first_no=1)
    assert (found["records"], found["seqs"], found["deleted"]) == (3, [[2, 4]], 3)
    assert (topic.contents.count, len(topic.commits)) == (1, 0)
    with pytest.raises(Conflict):
        desk.write(topic, [b"mine"], producer=MINE, number=2)
    following = ask(line, Op.PRODUCER)["expected"]
    desk.write(topic, [b"next"], producer=MINE, number=following)
    assert topic.contents.count == 2


def test_abandoned_and_kept_it_stays(desk: Desk, line: Line, topic: Topic) -> None:
    opened(line, 8)
    desk.write(topic, [b"mine"] * 3, producer=MINE, number=1)
    assert ask(line, Op.ABANDON_COMMIT, first_no=1, take_back=False)["deleted"] == 0
    assert (topic.contents.count, topic.commits.settled(3)) == (3, 3)


def test_not_while_a_batch_of_it_is_under_way(desk: Desk, line: Line, topic: Topic) -> None:
    opened(line, 8)
    desk.append(topic, [b"mine"], producer=MINE, number=1)
    line.send(Op.ABANDON_COMMIT, {"topic": "orders", "producer_id": MINE, "first_no": 1})
    assert line.answers[0].map()["code"] == NotReady.code
