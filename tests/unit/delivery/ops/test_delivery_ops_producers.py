"""How far a producer got."""

from __future__ import annotations

import pytest

from tests.unit.delivery.desk import Desk, Line
from topicd.errors import InvalidRequest, TopicNotFound
from topicd.ipc.protocol.messages import Op
from topicd.limits import LASTING
from topicd.shards.delivery.topic.producers import PRODUCERS_KEPT
from topicd.shards.delivery.topic.topic import Topic


@pytest.fixture
def topic(desk: Desk) -> Topic:
    return desk.topic(durability="fsync")


@pytest.fixture
def line(desk: Desk, topic: Topic) -> Line:
    return desk.line()


def expected(line: Line, producer_id: int = 7, op: Op = Op.PRODUCER) -> int:
    answer = line.ask(op, topic="orders", producer_id=producer_id)
    return int(answer["expected"])


def test_one_that_is_not_known_begins_with_one(line: Line, topic: Topic) -> None:
    assert expected(line) == 1
    assert line.ask(Op.PRODUCER, topic="orders", producer_id=7)["topic_id"] == topic.id


def test_what_is_under_way_does_not_count(desk: Desk, line: Line, topic: Topic) -> None:
    desk.write(topic, [b"x"], producer=7, number=1)
    desk.append(topic, [b"y"], producer=7, number=2)
    line.send(Op.PRODUCER, {"topic": "orders", "producer_id": 7})
    assert line.answers[0].map()["expected"] == 2
    line.answers.clear()
    desk.settle()
    assert expected(line) == 3


def test_a_released_one_may_be_forgotten(desk: Desk, line: Line, topic: Topic) -> None:
    desk.write(topic, [b"x"], producer=LASTING, number=1)
    for n in range(1, PRODUCERS_KEPT + 2):
        topic.producers.assign(n, 1, 1 + n, 1)
    assert expected(line, LASTING) == 2
    assert expected(line, LASTING, Op.RELEASE_PRODUCER) == 2
    topic.producers.assign(9999, 1, 5000, 1)
    assert expected(line, LASTING) == 1


@pytest.mark.parametrize("op", [Op.PRODUCER, Op.RELEASE_PRODUCER])
def test_bad_requests_are_refused(line: Line, op: Op) -> None:
    with pytest.raises(TopicNotFound):
        line.ask(op, topic="missing", producer_id=7)
    with pytest.raises(InvalidRequest):
        line.ask(op, topic="orders", producer_id=0)
