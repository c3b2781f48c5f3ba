"""What is asked before an operation runs: a hello, its fields, its right, and room for a change."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.delivery.desk import Desk, Line
from topicd.errors import Forbidden, InvalidRequest, Throttled
from topicd.ipc.protocol.messages import REQUESTS, Op
from topicd.ipc.protocol.wire import map_message
from topicd.shards.delivery.sessions.call import OPERATIONS, Call
from topicd.shards.delivery.sessions.dispatch import dispatch
from topicd.tokens import Rights

FIELDS: dict[str, Any] = {
    "topic": "orders",
    "name": "c",
    "seq": 1,
    "producer_id": 7,
    "first_no": 1,
    "records": 1,
    "bytes": 1,
    "hold_ms": 1,
    "first_seq": 1,
    "last_seq": 1,
    "subscription": 1,
    "topic_id": 1,
    "source_id": 1,
    "up_to": 1,
    "router": "r",
    "source": "a",
    "dest": "b",
    "version": 1,
    "seqs": [1],
    "node": "w",
    "lease_ms": 1_000,
    "work": 1,
    "schedule": "* * * * *",
    "action": "ready",
}


@pytest.fixture
def line(desk: Desk) -> Line:
    desk.topic()
    return desk.line()


def send(desk: Desk, line: Line, op: int, body: dict[str, Any] | None = None) -> None:
    packed = map_message(op, 1, fields(op) if body is None else body)[10:]
    dispatch(Call(desk.parts, line.session, op, 0, 1), memoryview(packed))


def fields(op: int) -> dict[str, Any]:
    wanted = REQUESTS[Op(op)]
    return {name: value for name, value in FIELDS.items() if name in wanted.__annotations__}


@pytest.mark.parametrize("op", sorted(set(OPERATIONS) - {Op.HELLO}), ids=lambda op: Op(op).name)
def test_before_a_hello_nothing_is_done(desk: Desk, line: Line, op: int) -> None:
    line.session.greeted = False
    with pytest.raises(InvalidRequest, match="HELLO"):
        send(desk, line, op)


@pytest.mark.parametrize("op", [0x00, 0x0F, 0x7F, 0x80, Op.PUSH, Op.ERROR])
def test_an_op_that_is_none_is_named(desk: Desk, line: Line, op: int) -> None:
    with pytest.raises(InvalidRequest, match=f"0x{op:02x}"):
        send(desk, line, op, {})


@pytest.mark.parametrize(
    "op", sorted(op for op, (wanted, _) in OPERATIONS.items() if wanted.RIGHT), ids=lambda op: Op(op).name
)
def test_without_its_right_nothing_is_done(desk: Desk, line: Line, op: int) -> None:
    wanted, _ = OPERATIONS[op]
    others = frozenset({"read", "write", "delete"} - set(wanted.RIGHT))
    line.session.rights = Rights("token", others)
    with pytest.raises(Forbidden):
        send(desk, line, op)
    line.session.rights = Rights("token", frozenset(wanted.RIGHT), ("other.",))
    with pytest.raises(Forbidden):
        send(desk, line, op)


@pytest.mark.parametrize("op", sorted(set(OPERATIONS) - {Op.HELLO}), ids=lambda op: Op(op).name)
def test_a_field_that_is_not_known_is_refused(desk: Desk, line: Line, op: int) -> None:
    with pytest.raises(InvalidRequest):
        send(desk, line, op, {**fields(op), "no_such_field": 1})


def test_a_body_that_is_no_map_is_refused(desk: Desk, line: Line) -> None:
    with pytest.raises(InvalidRequest):
        dispatch(Call(desk.parts, line.session, Op.PING, 0, 1), memoryview(b"\x93\x01\x02\x03"))


def test_one_change_too_many_is_throttled_and_reading_goes_on(
    desk: Desk, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(desk.parts.log), "crowded", property(lambda log: True))
    for op, (wanted, _) in OPERATIONS.items():
        if wanted.CHANGES:
            with pytest.raises(Throttled):
                send(desk, line, op)
    send(desk, line, Op.PING)
    send(desk, line, Op.STATE)
