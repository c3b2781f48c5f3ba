"""What routers ask of shards so that copies are safe."""

from __future__ import annotations

import pytest

from tests.unit.delivery.desk import Desk
from tests.unit.delivery.routing.routing_kit import datas, make_router
from topicd.errors import NotReady
from topicd.ipc.protocol.messages import Op
from topicd.limits import MAX_SEQ
from topicd.rights import Rights
from topicd.shards.delivery.topic.topic import Topic


def pair(desk: Desk) -> tuple[Topic, Topic]:
    make_router(desk, "r", "a", "b")
    return desk.parts.catalog.get("a"), desk.parts.catalog.get("b")


def test_copies_are_in_no_log_until_somebody_else_writes(routed: Desk) -> None:
    a, b = pair(routed)
    routed.write(a, [b"1", b"2"])
    assert b.inflows.derived == 1
    assert (datas(routed, "b"), b.changes.newest) == ([b"1", b"2"], 1)
    routed.write(b, [b"direct"])
    assert (b.inflows.derived, b.inflows.routers[1].why) == (None, "others write to it")
    routed.write(a, [b"3"])
    assert datas(routed, "b") == [b"1", b"2", b"direct", b"3"]


def test_a_source_loses_records_when_copies_are_logged(routed: Desk) -> None:
    a, b = pair(routed)
    routed.write(a, [b"1", b"2"], tags=[b"x", b"y"])
    assert routed.line().ask(Op.DELETE_RECORDS, topic="a", match="x")["deleted"] == 1
    assert b.inflows.routers[1].why == "records of its source were deleted"
    assert datas(routed, "b") == [b"1", b"2"]


def test_a_config_that_takes_records_waits_and_another_does_not(routed: Desk) -> None:
    _, b = pair(routed)
    routed.line().ask(Op.CONFIGURE, topic="a", config={"priority": 1})
    assert b.inflows.derived == 1
    routed.line().ask(Op.CONFIGURE, topic="a", config={"ttl_ms": 5_000})
    assert b.inflows.routers[1].why == "its source has a TTL"


def test_nobody_writes_or_changes_while_copies_are_made_again(routed: Desk) -> None:
    a, b = pair(routed)
    routed.write(a, [b"1"])
    b.inflows.remaking = True
    line = routed.line()
    for op, body in (
        (Op.DELETE_RECORDS, {"match": "x"}),
        (Op.CONFIGURE, {"config": {"ttl_ms": 5}}),
        (Op.CONSUMER_OPEN, {"name": "c"}),
    ):
        with pytest.raises(NotReady):
            line.ask(op, topic="b", **body)
    with pytest.raises(NotReady):
        routed.write(b, [b"direct"])
    assert b.inflows.derived == 1


def test_what_a_source_may_let_go_of(routed: Desk) -> None:
    a, _ = pair(routed)
    safety = routed.parts.routing.safety
    routed.write(a, [b"1", b"2"])
    assert safety.passed_by_all(a) == 2
    assert safety.passed_by_all(routed.topic("lonely")) == MAX_SEQ
    routed.parts.routing.replica.loaded = False
    assert safety.passed_by_all(a) == 0, "nobody knows yet who needs it"


def test_routers_of_a_topic_are_named_to_those_who_may_know_both_ends(routed: Desk) -> None:
    make_router(routed, "open", "a", "b")
    make_router(routed, "hidden", "a", "secret")
    line = routed.line()
    assert line.ask(Op.ROUTERS_OF, topic="a")["from"] == ["hidden", "open"]
    line.session.rights = Rights("token", frozenset({"read"}), ("a", "b"))
    assert line.ask(Op.ROUTERS_OF, topic="a")["from"] == ["open"]
