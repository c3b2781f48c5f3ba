"""Decisions about routers: one at a time, whole, and with nothing left behind."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.delivery.desk import Desk
from tests.unit.delivery.routing.routing_kit import make_router
from topicd.errors import Forbidden, RouterNotFound, Throttled, TopicNotFound
from topicd.ipc.protocol.messages import Op
from topicd.limits import ROUTERS


def test_both_topics_come_into_being(routed: Desk) -> None:
    answer = make_router(routed, "r", "orders", "audit", filter="x")
    assert (answer["created"], answer["source"], answer["filter"]) == (True, "orders", ["tag", "Eq", "x"])
    assert {"orders", "audit"} <= set(routed.parts.catalog.by_name)
    assert not make_router(routed, "r", "orders", "audit", filter="x")["created"]


def test_a_refusal_leaves_no_topic(routed: Desk) -> None:
    with pytest.raises(TopicNotFound):
        make_router(routed, "r", "orders", "audit", create_dest=False)
    make_router(routed, "ab", "a", "b")
    before = set(routed.parts.catalog.by_name)
    with pytest.raises(Exception, match="one source"):
        make_router(routed, "cb", "c", "b")
    assert set(routed.parts.catalog.by_name) == before


def test_a_topic_that_was_made_goes_again_if_the_other_cannot_be(open_desk: Callable[..., Desk]) -> None:
    routed = open_desk(max_topics=4).route()
    make_router(routed, "r", "a", "b")
    with pytest.raises(Throttled):
        make_router(routed, "r2", "c", "d")
    assert "c" not in routed.parts.catalog.by_name


def test_a_deleted_router_is_gone_once(routed: Desk) -> None:
    make_router(routed, "r", "a", "b")
    line = routed.line()
    assert line.ask(Op.ROUTER_DELETE, router="r")["deleted"]
    assert not line.ask(Op.ROUTER_DELETE, router="r")["deleted"]
    with pytest.raises(RouterNotFound):
        line.ask(Op.ROUTER_GET, router="r")


def test_the_topic_of_definitions_holds_what_counts(routed: Desk) -> None:
    line = routed.line()
    for n in range(5):
        make_router(routed, "r", "a", "b", sample=n + 1)
        make_router(routed, "s", "a", "c")
        line.ask(Op.ROUTER_DELETE, router="s")
    routed.settle()
    assert routed.parts.catalog.get(ROUTERS).contents.count == 1
    make_router(routed, "s", "a", "c")
    assert [row["router"] for row in line.ask(Op.ROUTER_LIST)["routers"]] == ["r", "s"]


def test_nobody_else_writes_there(routed: Desk) -> None:
    make_router(routed, "r", "a", "b")
    topic = routed.parts.catalog.get(ROUTERS)
    with pytest.raises(Forbidden):
        routed.append(topic, [b"x"])
    line = routed.line()
    for op, body in ((Op.DELETE_TOPIC, {}), (Op.DELETE_RECORDS, {"before_seq": 9}), (Op.CONFIGURE, {"config": {}})):
        with pytest.raises(Forbidden):
            line.ask(op, topic=ROUTERS, **body)


def test_a_topic_goes_with_its_routers(routed: Desk) -> None:
    make_router(routed, "ab", "a", "b")
    make_router(routed, "bc", "b", "c")
    make_router(routed, "xy", "x", "y")
    line = routed.line()
    assert line.ask(Op.DELETE_TOPIC, topic="b")["routers_removed"] == ["ab", "bc"]
    assert [row["router"] for row in line.ask(Op.ROUTER_LIST)["routers"]] == ["xy"]
    assert routed.parts.catalog.get(ROUTERS).seqs.head == 4, "both went with one record"
    assert line.ask(Op.DELETE_TOPIC, topic="a")["routers_removed"] == []
