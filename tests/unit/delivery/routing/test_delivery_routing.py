"""Reads that wait for copies, and topics that go."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.delivery.desk import Desk
from tests.unit.delivery.routing.routing_kit import datas, make_router
from topicd.errors import NotReady
from topicd.ipc.protocol.messages import Op
from topicd.shards.delivery.routing import routing


def test_a_read_gets_the_copy_of_what_was_acknowledged_before(routed: Desk) -> None:
    make_router(routed, "r", "a", "b")
    source, dest = routed.parts.catalog.get("a"), routed.parts.catalog.get("b")
    assert routed.parts.routing.is_fresh(dest)
    routed.append(source, [b"x"])
    routed.parts.turn.end()
    routed.store()
    assert source.seqs.visible == 1
    assert not routed.parts.routing.is_fresh(dest)
    line = routed.line()
    state = line.send(Op.STATE, {"topic": "b"})
    assert line.result(state).map()["head_seq"] == 1
    assert datas(routed, "b") == [b"x"]


def test_a_router_that_stands_still_keeps_nobody(routed: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    routed.topic("b", cap_records=1, discard="reject")
    make_router(routed, "r", "a", "b")
    routed.write(routed.parts.catalog.get("a"), [b"x", b"y"])
    assert datas(routed, "b") == [b"x"]
    row = routed.line().ask(Op.ROUTER_GET, router="r")
    assert (row["lag"], row["waiting"]) == (1, "its destination is full")


def test_the_wait_has_an_end(routed: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "FRESH_S", 0.01)
    make_router(routed, "r", "a", "b")
    routed.parts.routing.shop.forwarders[1]._held = True
    routed.write(routed.parts.catalog.get("a"), [b"x"])
    line, found = routed.line(), []
    state = line.send(Op.STATE, {"topic": "b"})
    for _ in range(100):
        routed.loop.run_until_complete(asyncio.sleep(0.005))
        found = [answer for answer in line.answers if answer.request_id == state]
        if found:
            break
    assert found[0].map()["head_seq"] == 0


def test_who_looks_for_a_topic_that_leaves_is_told_to_come_back(routed: Desk) -> None:
    make_router(routed, "r", "a", "b")
    line = routed.line()
    gone = line.send(Op.DELETE_TOPIC, {"topic": "a"})
    with pytest.raises(NotReady):
        routed.parts.catalog.get("a")
    assert line.result(gone).map()["routers_removed"] == ["r"]
    assert "a" not in routed.parts.catalog.by_name


def test_a_topic_that_cannot_go_stays_with_its_routers(routed: Desk) -> None:
    make_router(routed, "r", "a", "b")
    routed.write(routed.parts.catalog.get("a"), [b"x"])
    line = routed.line()
    with pytest.raises(Exception, match=r"holds 1 record$"):
        line.ask(Op.DELETE_TOPIC, topic="a", if_empty=True)
    assert line.ask(Op.ROUTERS_OF, topic="a") == {"from": ["r"], "to": []}
