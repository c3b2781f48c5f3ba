"""Subscriptions begun and ended by request."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.delivery.desk import Desk, Line
from tests.unit.delivery.kit import TS
from topicd.errors import Forbidden, InvalidRequest, Throttled, TopicNotFound
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import message
from topicd.shards.delivery.topic.topic import Topic
from topicd.tokens import Rights


@pytest.fixture
def topics(desk: Desk) -> list[Topic]:
    made = [desk.topic(name, durability="memory") for name in ("a", "b", "topicd.stage")]
    for n in range(1, 4):
        desk.clock.set_wall(TS + n)
        for topic in made:
            desk.write(topic, [b"%s%d" % (topic.name.encode(), n)])
    return made


@pytest.fixture
def line(desk: Desk, topics: list[Topic]) -> Line:
    return desk.line()


def pushed(line: Line) -> list[bytes]:
    return [data for push in line.take(Op.PUSH) for data in push.datas()]


@pytest.mark.parametrize(
    ("where", "from_seq", "got"),
    [
        ({}, 0, [b"a1", b"a2", b"a3"]),
        ({"from_seq": 2}, 2, [b"a3"]),
        ({"from_ts": TS + 2}, 1, [b"a2", b"a3"]),
        ({"tail": True}, 3, []),
        ({"epoch": 12345, "from_seq": 3}, 0, [b"a1", b"a2", b"a3"]),
    ],
)
def test_it_starts_where_it_is_told_to(line: Line, where: dict[str, int], from_seq: int, got: list[bytes]) -> None:
    answer = line.ask(Op.SUBSCRIBE, topics=[{"topic": "a", **where}])
    assert [(row["topic"], row["from_seq"]) for row in answer["topics"]] == [("a", from_seq)]
    assert pushed(line) == got


def test_the_answer_comes_before_the_first_push(line: Line) -> None:
    line.send(Op.SUBSCRIBE, {"topics": [{"topic": "a"}]})
    line._desk.settle()
    assert [answer.op for answer in line.answers] == [Op.SUBSCRIBE | 0x80, Op.PUSH]


def test_a_pattern_adds_what_is_not_named(line: Line) -> None:
    answer = line.ask(Op.SUBSCRIBE, topics=[{"topic": "a", "from_seq": 3}], pattern="*", from_seq=2)
    assert [(row["topic"], row["from_seq"]) for row in answer["topics"]] == [("a", 3), ("b", 2)]
    assert pushed(line) == [b"b3"]


def test_bad_requests_are_refused_and_follow_nothing(line: Line, topics: list[Topic]) -> None:
    for body in ({}, {"topics": []}, {"topics": [{"topic": "a"}, {"topic": "a"}]}):
        with pytest.raises(InvalidRequest):
            line.ask(Op.SUBSCRIBE, **body)
    with pytest.raises(TopicNotFound):
        line.ask(Op.SUBSCRIBE, topics=[{"topic": "a"}, {"topic": "missing"}])
    assert line.session.subscriptions == {}
    assert all(topic.followers == set() for topic in topics)


def test_a_number_is_used_once(line: Line) -> None:
    line.ask(Op.SUBSCRIBE, topics=[{"topic": "a", "tail": True}])
    [sub_id] = line.session.subscriptions
    line._next = sub_id - 1
    with pytest.raises(InvalidRequest, match="already"):
        line.ask(Op.SUBSCRIBE, topics=[{"topic": "b"}])


def test_a_token_watches_what_it_may(line: Line) -> None:
    line.session.rights = Rights("token", frozenset({"read"}), ("b",))
    with pytest.raises(Forbidden):
        line.ask(Op.SUBSCRIBE, topics=[{"topic": "a"}])
    assert [row["topic"] for row in line.ask(Op.SUBSCRIBE, pattern="*")["topics"]] == ["b"]
    line.session.rights = Rights("token", frozenset({"write"}))
    with pytest.raises(Forbidden):
        line.ask(Op.SUBSCRIBE, pattern="x*")


def test_subscriptions_of_one_connection_are_bounded(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(max_inflight_per_connection=2)
    line = desk.line()
    for _ in range(2):
        line.ask(Op.SUBSCRIBE, pattern="x*")
    with pytest.raises(Throttled):
        line.ask(Op.SUBSCRIBE, pattern="x*")


def test_one_that_ended_gets_nothing_more_and_may_end_again(desk: Desk, line: Line, topics: list[Topic]) -> None:
    sub_id = line.send(Op.SUBSCRIBE, {"topics": [{"topic": "a", "tail": True}]})
    for _ in range(2):
        assert line.ask(Op.UNSUBSCRIBE, subscription=sub_id) == {}
    desk.write(topics[0], [b"x"])
    assert (pushed(line), topics[0].followers) == ([], set())
    line.feed(message(Op.PING, 1, b"\x80"))
    assert not line.closing
