"""A fetch that waits: answered once, by records, by time or by the end of its topic."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from tests.unit.delivery.desk import Desk, Line
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import ANSWER, FETCH, FLAG_CAUGHT_UP, MessageFlag
from topicd.shards.delivery.reading.long_polls import LongPoll
from topicd.shards.delivery.topic.contents import Damaged
from topicd.shards.delivery.topic.topic import Topic

FETCHED = Op.FETCH | ANSWER


@pytest.fixture
def topic(desk: Desk) -> Topic:
    return desk.topic(durability="memory")


@pytest.fixture
def line(desk: Desk) -> Line:
    return desk.line()


def poll(line: Line, topic: Topic, from_seq: int = 0, wait_ms: int = 30_000, filter: Any = None) -> int:
    body = FETCH.pack(topic.id, from_seq, 0, 0, wait_ms)
    if filter is None:
        return line.send(Op.FETCH, body)
    return line.send(Op.FETCH, body + msgpack.packb(filter), int(MessageFlag.FILTER))


def waiting(line: Line, topic: Topic) -> tuple[int, int]:
    return len(line.session.long_polls), len(topic.followers)


def test_it_is_answered_when_records_come_and_then_no_more(desk: Desk, topic: Topic, line: Line) -> None:
    request = poll(line, topic)
    desk.settle()
    assert (line.answers, waiting(line, topic)) == ([], (1, 1))
    desk.write(topic, [b"a", b"b"])
    desk.write(topic, [b"c"])
    [answer] = line.take(FETCHED)
    assert (answer.request_id, answer.datas()) == (request, [b"a", b"b"])
    assert waiting(line, topic) == (0, 0)


def test_records_it_does_not_want_move_it_on_and_do_not_wake_it(desk: Desk, topic: Topic, line: Line) -> None:
    poll(line, topic, filter={"match": "wanted"})
    desk.write(topic, [b"a"] * 3, tags=b"other")
    assert line.take(FETCHED) == []
    [made] = line.session.long_polls
    assert made._from_seq == 3
    desk.write(topic, [b"b"], tags=b"wanted")
    assert [answer.datas() for answer in line.take(FETCHED)] == [[b"b"]]


def test_when_its_time_is_over_it_is_answered_with_nothing(desk: Desk, topic: Topic, line: Line) -> None:
    poll(line, topic, wait_ms=1)
    [made] = line.session.long_polls
    assert made._timer is not None
    made._expire()
    [answer] = line.take(FETCHED)
    assert (answer.datas(), answer.flags & FLAG_CAUGHT_UP) == ([], FLAG_CAUGHT_UP)
    assert waiting(line, topic) == (0, 0)
    assert made._timer.cancelled()


def test_the_end_of_its_topic_is_told(desk: Desk, topic: Topic, line: Line) -> None:
    poll(line, topic)
    desk.parts.catalog.delete(topic, if_empty=False, done=lambda topic, error: None)
    [error] = line.take(Op.ERROR)
    assert error.map()["code"] == "topic_not_found"
    assert waiting(line, topic) == (0, 0)


def test_damage_that_it_meets_is_told(desk: Desk, topic: Topic, line: Line) -> None:
    poll(line, topic)
    topic.contents.damaged = [Damaged(1, 1, "file")]
    desk.write(topic, [b"a"])
    [error] = line.take(Op.ERROR)
    assert error.map()["code"] == "storage_corrupt"
    assert waiting(line, topic) == (0, 0)


def test_a_connection_that_is_lost_leaves_nobody_waiting(desk: Desk, topic: Topic, line: Line) -> None:
    poll(line, topic)
    [made] = line.session.long_polls
    assert isinstance(made, LongPoll)
    line.session.connection_lost(None)
    assert waiting(line, topic) == (0, 0)
    assert made._timer is not None
    assert made._timer.cancelled()


def test_what_is_there_is_not_waited_for(desk: Desk, topic: Topic, line: Line) -> None:
    desk.write(topic, [b"a"])
    poll(line, topic)
    assert waiting(line, topic) == (0, 0)
    assert [answer.datas() for answer in line.take(FETCHED)] == [[b"a"]]
