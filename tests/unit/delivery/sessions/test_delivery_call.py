"""One request and the one way to answer it."""

from __future__ import annotations

import pytest

from tests.unit.delivery.desk import Desk, Line
from topicd.errors import Conflict
from topicd.ipc.protocol.messages import REQUESTS, Op
from topicd.ipc.protocol.wire import ANSWER, FLAG_PERFORMANCE
from topicd.shards.delivery.sessions import call as module
from topicd.shards.delivery.sessions import dispatch
from topicd.shards.delivery.sessions.call import OPERATIONS, RAW_OPERATIONS, Call, operation


@pytest.fixture
def line(desk: Desk) -> Line:
    return desk.line()


def make(desk: Desk, line: Line, flags: int = 0) -> Call:
    return Call(desk.parts, line.session, Op.PING, flags, 77)


def test_the_answer_has_the_op_and_the_number_of_the_request(desk: Desk, line: Line) -> None:
    make(desk, line).answer({"a": 1})
    [answer] = line.take(Op.PING | ANSWER)
    assert (answer.request_id, answer.map()) == (77, {"a": 1})


def test_what_is_answered_later_is_an_answer_or_why_there_is_none(desk: Desk, line: Line) -> None:
    call = make(desk, line)
    call.done({"a": 1}, None)
    call.done(None, Conflict("because"))
    call.done(None, None)
    desk.turn()
    assert [one.map().get("message") for one in line.answers] == [None, "because", "nothing was changed"]
    assert [one.request_id for one in line.answers] == [77] * 3


def test_an_empty_answer_is_an_answer(desk: Desk, line: Line) -> None:
    make(desk, line).done({}, None)
    assert len(line.take(Op.PING | ANSWER)) == 1


def test_the_time_is_taken_only_for_who_asks(desk: Desk, line: Line) -> None:
    desk.clock.advance(4000)
    assert make(desk, line).started_at is None
    assert make(desk, line, FLAG_PERFORMANCE).started_at == 4.0


def test_every_request_has_its_operation() -> None:
    """APPEND and CREDIT are taken by the session itself; dispatch brings all others in."""
    assert dispatch.OPERATIONS is OPERATIONS
    by_op = {*OPERATIONS, *RAW_OPERATIONS}
    assert set(REQUESTS) - by_op == set()
    assert by_op & {Op.APPEND, Op.CREDIT} == set()


def test_each_operation_takes_the_message_of_its_op() -> None:
    assert all(REQUESTS[op] is wanted for op, (wanted, _) in OPERATIONS.items())


def test_declaring_leaves_the_function_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OPERATIONS", {})

    def function(call: Call, want: object) -> None:
        return

    wanted = REQUESTS[Op.PING]
    assert operation(wanted)(function) is function
    assert {Op.PING: (wanted, function)} == module.OPERATIONS
