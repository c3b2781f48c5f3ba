"""One router at work: once, in order, and nothing skipped."""

from __future__ import annotations

import errno

import pytest

from tests.unit.delivery.desk import Desk
from tests.unit.delivery.routing.routing_kit import datas, make_router
from topicd.errors import InvalidRequest
from topicd.ipc.protocol.messages import Op
from topicd.limits import ROUTED_RECORDS
from topicd.shards.delivery.topic.contents import Damaged
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


def test_a_full_destination_that_was_made_again_as_far_as_it_goes_may_be_given_room(routed: Desk) -> None:
    audit = routed.topic("audit", cap_records=3, discard="reject")
    orders, _ = pair(routed)
    forwarder = routed.parts.routing.shop.forwarders[1]
    forwarder._held = True
    routed.write(orders, [b"%d" % n for n in range(5)])
    audit.inflows.remaking, forwarder._remake_to = True, 5  # as at a start
    forwarder._go_on()
    routed.settle()
    assert (forwarder.waiting, datas(routed, "audit")) == ("its destination is full", [b"0", b"1", b"2"])
    routed.line().ask(Op.CONFIGURE, topic="audit", config={"cap_records": 0})
    forwarder._go_on()
    routed.settle()
    assert datas(routed, "audit") == [b"%d" % n for n in range(5)]


def test_whoever_is_always_a_little_behind_is_not_behind_for_long(routed: Desk) -> None:
    orders, _ = pair(routed)
    forwarder = routed.parts.routing.shop.forwarders[1]
    for n in range(20):
        forwarder._under_way = True  # its last batch is not stored yet when the next records come
        routed.write(orders, [b"%d" % n])
        forwarder._under_way = False
        forwarder.feed.head = orders.seqs.visible
        forwarder._note_behind(1_000 * (n + 1))
        forwarder.position = orders.seqs.visible
    assert forwarder.behind_since >= 18_000
    forwarder.position = 0  # it comes no further
    for n in range(20, 30):
        forwarder._note_behind(1_000 * (n + 1))
    assert forwarder.behind_since <= 20_000


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


# ---- a source that cannot be read ----


def _rotten(desk: Desk) -> tuple[Topic, Topic]:
    """Eight records of which 4 to 6 cannot be read; two have been copied."""
    orders, audit = pair(desk)
    forwarder = desk.parts.routing.shop.forwarders[1]
    desk.write(orders, [b"1", b"2"])
    forwarder._held = True
    desk.write(orders, [b"%d" % n for n in range(3, 9)])
    orders.contents.damaged = [Damaged(4, 6, "a file")]
    forwarder._go_on()
    desk.settle()
    return orders, audit


def test_where_the_source_cannot_be_read_it_stands_and_says_so(routed: Desk) -> None:
    orders, _ = _rotten(routed)
    found = routed.line().ask(Op.ROUTER_GET, router="r")
    assert datas(routed, "audit") == [b"1", b"2", b"3"]
    assert found["unreadable"] == [4, 6] and "seqs 4 to 6 cannot be read" in found["waiting"]
    orders.contents.damaged = []  # mended
    routed.parts.routing.shop.forwarders[1]._go_on()
    routed.settle()
    assert datas(routed, "audit") == [b"%d" % n for n in range(1, 9)]
    assert routed.line().ask(Op.ROUTER_GET, router="r")["unreadable"] is None


def test_what_cannot_be_read_is_given_up_when_somebody_says_so(routed: Desk) -> None:
    _rotten(routed)
    answer = routed.line().ask(Op.ROUTER_SKIP, router="r", up_to_seq=100)
    assert answer == {"router": "r", "skipped": [4, 6], "hole": [4, 6]}
    routed.parts.routing.shop.forwarders[1]._go_on()
    routed.settle()
    audit = routed.parts.catalog.get("audit")
    assert datas(routed, "audit", 6) == [b"7", b"8"], "they keep the seqs that they would have had"
    assert list(audit.inflows.trimmed) == [(4, 6)]
    info = routed.line().ask(Op.ROUTER_GET, router="r")
    assert (info["waiting"], info["unreadable"], info["kind"], info["forwarded_total"]) == (None, None, "logged", 8)


def test_no_more_is_given_up_than_was_said(routed: Desk) -> None:
    _rotten(routed)
    forwarder = routed.parts.routing.shop.forwarders[1]
    assert routed.line().ask(Op.ROUTER_SKIP, router="r", up_to_seq=5)["skipped"] == [4, 5]
    forwarder._go_on()
    routed.settle()
    assert forwarder.unreadable == (6, 6)
    with pytest.raises(InvalidRequest, match="stands at seq 6"):
        routed.line().ask(Op.ROUTER_SKIP, router="r", up_to_seq=5)
    assert routed.line().ask(Op.ROUTER_SKIP, router="r", up_to_seq=6)["skipped"] == [6, 6]


def test_nothing_is_given_up_where_everything_can_be_read(routed: Desk) -> None:
    orders, _ = pair(routed)
    routed.write(orders, [b"1"])
    with pytest.raises(InvalidRequest, match="does not stand at records that cannot be read"):
        routed.line().ask(Op.ROUTER_SKIP, router="r", up_to_seq=1)
    routed.topic("full", cap_records=1, discard="reject")
    make_router(routed, "f", "orders", "full")
    routed.write(orders, [b"2", b"3"])
    routed.settle()
    with pytest.raises(InvalidRequest, match="does not stand at records that cannot be read"):
        routed.line().ask(Op.ROUTER_SKIP, router="f", up_to_seq=9)


def test_a_logged_destination_has_the_hole_too(routed: Desk) -> None:
    routed.write(routed.topic("audit"), [b"direct"])
    _, audit = _rotten(routed)
    assert routed.line().ask(Op.ROUTER_SKIP, router="r", up_to_seq=6)["hole"] == [5, 7]
    routed.parts.routing.shop.forwarders[1]._go_on()
    routed.settle()
    assert audit.seqs.visible == 9
    assert datas(routed, "audit", 7) == [b"7", b"8"]


def test_while_copies_are_made_again_no_seq_that_was_seen_is_given_out_again(routed: Desk) -> None:
    """Of a filtered copy nobody knows which seqs belonged to what cannot be read."""
    _, audit = _rotten(routed)
    forwarder = routed.parts.routing.shop.forwarders[1]
    audit.inflows.remaking, audit.inflows.skip, forwarder._remake_to = True, 0, 8
    assert routed.line().ask(Op.ROUTER_SKIP, router="r", up_to_seq=6)["hole"] == [4, 8]
    forwarder._go_on()
    routed.settle()
    assert datas(routed, "audit", 8) == [b"7", b"8"]
    assert not audit.inflows.remaking
    routed.write(audit, [b"direct"])
    assert datas(routed, "audit", 10) == [b"direct"]


def test_copies_leave_memory_to_writers_unless_somebody_waits_for_them(routed: Desk) -> None:
    orders, audit = pair(routed)
    routed.write(orders, [b"0"])
    backlog, forwarder = routed.parts.backlog, routed.parts.routing.shop.forwarders[1]
    backlog.tail_bytes += 2 * routed.parts.place.settings.checkpoint_bytes
    routed.write(orders, [b"1"])
    assert (audit.seqs.visible, forwarder.waiting) == (1, None)
    assert datas(routed, "audit") == [b"0", b"1"]
    routed.write(orders, [b"2"])
    assert audit.seqs.visible == 2
    backlog.tail_bytes -= 2 * routed.parts.place.settings.checkpoint_bytes
    forwarder._go_on()
    routed.settle()
    assert audit.seqs.visible == 3
