"""One router at work: once, in order, and nothing skipped."""

from __future__ import annotations

import errno

from tests.unit.delivery.desk import Desk
from tests.unit.delivery.routing.routing_kit import datas, make_router
from topicd.ipc.protocol.messages import Op
from topicd.limits import ROUTED_RECORDS
from topicd.shards.delivery.topic.topic import Topic


def pair(desk: Desk, **more: object) -> tuple[Topic, Topic]:
    make_router(desk, "r", "orders", "audit", **more)
    return desk.parts.catalog.get("orders"), desk.parts.catalog.get("audit")


def test_what_comes_is_copied_in_order(routed: Desk) -> None:
    orders, _ = pair(routed)
    for n in range(5):
        routed.write(orders, [b"%d-%d" % (n, i) for i in range(3)])
    assert datas(routed, "audit") == datas(routed, "orders")


def test_what_was_there_before_is_not(routed: Desk) -> None:
    orders = routed.topic("orders")
    routed.write(orders, [b"old"])
    pair(routed)
    routed.write(orders, [b"new"])
    assert datas(routed, "audit") == [b"new"]


def test_large_batches_are_cut(routed: Desk) -> None:
    orders, _ = pair(routed)
    routed.write(orders, [b"%d" % n for n in range(3 * ROUTED_RECORDS)])
    assert len(datas(routed, "audit")) == 3 * ROUTED_RECORDS
    assert routed.parts.routing.shop.forwarders[1].flow.total == 3 * ROUTED_RECORDS


def test_only_what_the_filter_lets_through(routed: Desk) -> None:
    orders, _ = pair(routed, filter=["tag", "Glob", "eu:*"])
    routed.write(orders, [b"a", b"b", b"c"], tags=[b"eu:1", b"us:1", b"eu:2"])
    routed.write(orders, [b"d"])
    assert datas(routed, "audit") == [b"a", b"c"]
    flow = routed.parts.routing.shop.forwarders[1].flow
    assert (flow.cursor, flow.total) == (4, 2)


def test_a_full_destination_is_filled_and_then_waits(routed: Desk) -> None:
    routed.topic("audit", cap_records=3, discard="reject")
    orders, _ = pair(routed)
    routed.write(orders, [b"%d" % n for n in range(5)])
    routed.settle()
    forwarder = routed.parts.routing.shop.forwarders[1]
    assert (datas(routed, "audit"), forwarder.waiting) == ([b"0", b"1", b"2"], "its destination is full")
    assert routed.parts.routing.shop.page()["routers_waiting"] == 1
    routed.line().ask(Op.DELETE_RECORDS, topic="audit", before_seq=3)
    forwarder._go_on()  # what a timer does
    routed.settle()
    assert datas(routed, "audit") == [b"2", b"3", b"4"]
    routed.settle()
    assert forwarder.waiting is None


def test_a_write_that_fails_is_made_again(routed: Desk) -> None:
    routed.topic("audit", durability="fsync")  # more than its source promises: it is logged
    orders, _ = pair(routed)
    routed.append(orders, [b"one"])
    routed.parts.turn.end()
    routed.store()  # the source has it; its copy is on the way
    for _ in range(5):
        routed.turn()
    routed.fail_wal(errno.EIO)
    forwarder = routed.parts.routing.shop.forwarders[1]
    assert forwarder.waiting is not None
    assert forwarder.position == forwarder.flow.cursor == 0
    forwarder._go_on()
    routed.settle()
    assert datas(routed, "audit") == [b"one"]


def test_what_was_gone_before_its_turn_is_a_hole(routed: Desk) -> None:
    orders = routed.topic("orders", cap_records=2)
    pair(routed)
    routed.write(orders, [b"first"])
    forwarder = routed.parts.routing.shop.forwarders[1]
    forwarder._held = True
    for n in range(5):
        routed.write(orders, [b"%d" % n])
    forwarder._go_on()
    routed.settle()
    state = routed.line().ask(Op.STATE, topic="audit")
    assert (state["head_seq"], state["count"]) == (6, 3)
    assert forwarder.flow.total == 6
    audit = routed.parts.catalog.get("audit")
    assert list(audit.inflows.trimmed) == [(2, 4)]
    assert datas(routed, "audit") == [b"first"], "the answer ends before the gap"
    assert datas(routed, "audit", 1) == [b"3", b"4"]


def test_deleted_records_are_passed_over(routed: Desk) -> None:
    orders, audit = pair(routed)
    forwarder = routed.parts.routing.shop.forwarders[1]
    forwarder._held = True
    routed.write(orders, [b"a", b"b"], tags=[b"x", b"y"])
    routed.line().ask(Op.DELETE_RECORDS, topic="orders", match="x")
    forwarder._go_on()
    routed.settle()
    assert datas(routed, "audit") == [b"b"]
    assert audit.seqs.head == 1


def test_other_options_count_from_now_on(routed: Desk) -> None:
    orders, _ = pair(routed)
    routed.write(orders, [b"a"], tags=[b"x"])
    assert not make_router(routed, "r", "orders", "audit", filter="y")["created"]
    routed.write(orders, [b"b", b"c"], tags=[b"x", b"y"])
    assert datas(routed, "audit") == [b"a", b"c"]


def test_a_source_that_lost_its_newest_records_is_copied_from_there(routed: Desk) -> None:
    orders, audit = pair(routed)
    routed.write(orders, [b"a", b"b"])
    forwarder = routed.parts.routing.shop.forwarders[1]
    forwarder.position = forwarder.flow.cursor = 7  # as if there had been more
    forwarder.change(forwarder.one)
    routed.settle()
    assert (forwarder.position, audit.inflows.routers[1].cursor) == (2, 2)
    routed.write(orders, [b"c"])
    assert datas(routed, "audit") == [b"a", b"b", b"c"]


def test_a_circle_ends(routed: Desk) -> None:
    make_router(routed, "ab", "a", "b")
    make_router(routed, "ba", "b", "a", allow_cycle=True)
    routed.write(routed.parts.catalog.get("a"), [b"x"])
    routed.settle()
    assert (len(datas(routed, "b")), len(datas(routed, "a"))) == (4, 5)


def test_an_ephemeral_destination_keeps_the_routers_place(routed: Desk) -> None:
    desk = routed
    desk.topic("audit", durability="ephemeral")
    orders, audit = pair(desk)
    desk.write(orders, [b"a", b"b"])
    assert datas(desk, "audit") == [b"a", b"b"]
    assert audit.inflows.routers[1].cursor == 2
