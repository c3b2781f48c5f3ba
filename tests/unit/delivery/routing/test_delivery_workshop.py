"""The routers that run in a shard."""

from __future__ import annotations

from tests.unit.delivery.desk import Desk
from tests.unit.delivery.routing.routing_kit import make_router
from topicd.ipc.protocol.messages import Op


def test_what_was_passed_over_is_noted_now_and_then(routed: Desk) -> None:
    routed.write(routed.topic("b"), [b"direct"])  # so it is logged
    make_router(routed, "r", "a", "b", filter="x")
    routed.write(routed.parts.catalog.get("a"), [b"1", b"2"])
    shop, dest = routed.parts.routing.shop, routed.parts.catalog.get("b")
    before = dest.changes.newest
    shop.tick()
    shop.tick()
    assert dest.changes.newest == before + 1, "once"
    routed.settle()
    assert shop.forwarders[1].noted == 2


def test_a_router_that_is_gone_is_forgotten_by_its_destination(routed: Desk) -> None:
    make_router(routed, "r", "a", "b")
    dest = routed.parts.catalog.get("b")
    assert len(dest.inflows) == 1
    routed.line().ask(Op.ROUTER_DELETE, router="r")
    assert len(dest.inflows) == 0
    assert routed.parts.routing.shop.forwarders == {}
    routed.write(routed.parts.catalog.get("a"), [b"x"])
    assert dest.seqs.head == 0


def test_the_page_shows_those_that_one_should_look_at(routed: Desk) -> None:
    routed.topic("full", cap_records=1, discard="reject")
    make_router(routed, "fine", "a", "b")
    make_router(routed, "stuck", "a", "full")
    routed.write(routed.parts.catalog.get("a"), [b"1", b"2", b"3"])
    page = routed.parts.routing.shop.page()
    assert (page["routers"], page["routers_waiting"], page["router_lag"]) == (2, 1, 2)
    assert page["top_routers"] == [["stuck", 1, 2, "its destination is full"], ["fine", 3, 0, ""]]
    assert routed.parts.counters.forwarded == 4
