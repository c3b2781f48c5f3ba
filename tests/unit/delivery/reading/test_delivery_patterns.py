"""Which topics a pattern means, and that it picks up those that are created later."""

from __future__ import annotations

import pytest

from tests.unit.delivery.desk import Desk
from topicd.ipc.protocol.messages import Op
from topicd.patterns import covers
from topicd.tokens import Rights


@pytest.mark.parametrize(
    ("pattern", "name", "meant"),
    [
        ("*", "orders", True),
        ("orders.*", "orders.eu", True),
        ("orders.*", "orders", False),
        ("Orders*", "orders", False),
        ("o?ders", "orders", False),
        ("orders.*", "orders.eu.north", True),  # a beginning
        ("orders.>", "orders.eu.north", True),
        ("orders.>", "orders", False),
        ("orders.*.north", "orders.eu.north", True),
        ("orders.*.north", "orders.eu.far.north", False),
        ("*.eu.*", "orders.eu.north", True),
        ("*.eu.*", "orders.eu.far.north", False),
        (">", "orders.eu", True),
        (">", "topicd.stage", False),
        ("*", "topicd.stage", False),
        ("?opicd.*", "topicd.stage", False),
        ("topicd.*", "topicd.stage", True),
        ("topicd.*", "topicdx", False),
    ],
)
def test_what_a_pattern_means(pattern: str, name: str, meant: bool) -> None:
    assert covers(pattern, name) is meant


def test_a_topic_created_later_is_announced_and_followed_from_its_start(desk: Desk) -> None:
    line = desk.line()
    sub_id = line.send(Op.SUBSCRIBE, {"pattern": "eu.*", "tail": True})
    topics = [desk.topic(name, durability="memory") for name in ("eu.orders", "us.orders")]
    for topic in topics:
        desk.write(topic, [b"x"])
    [notice] = line.take(Op.NOTICE)
    assert notice.request_id == sub_id
    assert notice.map() == {"event": "topic", "topic": "eu.orders", "topic_id": topics[0].id}
    assert [push.datas() for push in line.take(Op.PUSH)] == [[b"x"]]


def test_a_topic_that_the_token_may_not_read_stays_hidden(desk: Desk) -> None:
    line = desk.line()
    line.session.rights = Rights("token", frozenset({"read"}), ("eu.",))
    line.send(Op.SUBSCRIBE, {"pattern": "*"})
    desk.topic("us.orders")
    assert line.take(Op.NOTICE) == []
    desk.topic("eu.orders")
    assert len(line.take(Op.NOTICE)) == 1


def test_a_subscription_that_ended_picks_up_nothing(desk: Desk) -> None:
    line = desk.line()
    sub_id = line.send(Op.SUBSCRIBE, {"pattern": "*"})
    line.ask(Op.UNSUBSCRIBE, subscription=sub_id)
    topic = desk.topic()
    assert (line.take(Op.NOTICE), topic.followers) == ([], set())


def test_a_subscription_without_a_pattern_picks_up_nothing(desk: Desk) -> None:
    desk.topic("a")
    line = desk.line()
    line.send(Op.SUBSCRIBE, {"topics": [{"topic": "a"}]})
    assert desk.topic("b").followers == set()
