"""Who gets in, and who does not stay."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

import pytest

from tests.unit.delivery.desk import Desk
from topicd.errors import Unauthorized
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import PROTOCOL_VERSION, map_message
from topicd.limits import MIB
from topicd.shards.delivery.sessions.session import Session
from topicd.tokens import Rights, Token, TokenFile, digest_of

RIGHTS = Rights("spark", frozenset({"read"}))


def test_their_number_is_bounded(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(max_connections=2)
    lines = [desk.line(hello=False) for _ in range(3)]
    assert [line.closing for line in lines] == [False, False, True]
    assert lines[2].answers[0].map()["code"] == "throttled"
    lines[0].session.connection_lost(None)
    assert not desk.line(hello=False).closing
    assert len(desk.parts.connections.open) == 2


def test_a_user_that_is_not_on_the_list_does_not_get_in(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(allowed_uids=str(os.geteuid() + 1))
    line = desk.line(hello=False)
    assert line.closing
    assert line.answers[0].map()["code"] == "forbidden"
    assert desk.parts.connections.open == set()


def test_one_from_another_machine_needs_a_token(desk: Desk) -> None:
    connections, session = desk.parts.connections, Session(desk.parts)
    with socket.socket(socket.AF_INET) as sock:
        assert connections.admit(session, sock) is None
    assert session.needs_token
    assert session in connections.open


def test_without_tokens_nobody_is_authorized(desk: Desk) -> None:
    with pytest.raises(Unauthorized):
        desk.parts.connections.authorize("secret")


@pytest.mark.parametrize("secret", ["wrong", "", None])
def test_a_token_that_is_not_known_is_refused(desk: Desk, secret: str | None) -> None:
    desk.parts.connections.tokens = TokenFile([Token(RIGHTS, digest_of("secret"), None)])
    assert desk.parts.connections.authorize("secret") == RIGHTS
    with pytest.raises(Unauthorized):
        desk.parts.connections.authorize(secret)


# ---- who does not stay ----


def after(desk: Desk, seconds: float) -> None:
    desk.clock.advance(int(seconds * 1000))
    desk.parts.connections.close_stalled()


def test_one_that_says_no_hello_does_not_stay(desk: Desk) -> None:
    desk.clock.advance(1000)
    line = desk.line(hello=False)
    after(desk, 30)
    assert not line.closing
    after(desk, 1)
    assert line.closing
    assert line.answers[0].map()["code"] == "invalid_request"


def test_one_that_is_quiet_stays(desk: Desk) -> None:
    desk.clock.advance(1000)
    line = desk.line()
    after(desk, 10_000)
    assert not line.closing


def test_half_a_message_is_not_waited_for_for_ever(desk: Desk) -> None:
    desk.clock.advance(1000)
    line = desk.line()
    line.feed(map_message(Op.PING, 1, {})[:-1])
    after(desk, 31)
    assert line.closing


def test_a_long_message_may_take_its_time(desk: Desk) -> None:
    desk.clock.advance(1000)
    line = desk.line()
    head = map_message(Op.HELLO, 1, {"version": PROTOCOL_VERSION})
    whole = (20 * MIB).to_bytes(4, "little") + bytes([Op.APPEND]) + head[5:10]
    line.feed(whole + bytes(10 * MIB))
    after(desk, 39)
    assert not line.closing
    after(desk, 2)
    assert line.closing


def test_a_buffer_that_grew_goes_back(desk: Desk) -> None:
    line = desk.line()
    line.feed((MIB).to_bytes(4, "little") + bytes([Op.APPEND]) + bytes(5 + MIB - 6))
    assert len(line.session._buffer) > MIB
    after(desk, 1)
    after(desk, 1)
    assert len(line.session._buffer) == 2 * 1024


def test_a_busy_connection_keeps_a_buffer_for_many_messages_and_an_idle_one_gives_it_back(desk: Desk) -> None:
    line = desk.line()
    assert len(line.session._buffer) == 2 * 1024
    line.feed(map_message(Op.PING, 1, {}) * 187)  # one more than there is room for
    desk.settle()
    assert len(line.session._buffer) == 64 * 1024
    after(desk, 1)
    assert len(line.session._buffer) == 64 * 1024
    after(desk, 1)
    assert len(line.session._buffer) == 2 * 1024


def test_those_of_this_machine_are_counted_apart_from_others(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(max_connections=2)
    with socket.socket(socket.AF_INET) as sock:
        remote = [Session(desk.parts, desk.parts.connections.strangers.admit("10.0.0.1")) for _ in range(3)]
        refusals = [desk.parts.connections.admit(session, sock) for session in remote]
        assert [refusal is None for refusal in refusals] == [True, True, False]
        lines = [desk.line(hello=False) for _ in range(3)]
        assert [line.closing for line in lines] == [False, False, True]
        desk.parts.connections.forget(remote[0])
        assert desk.parts.connections.admit(remote[2], sock) is None


def test_closing_closes_all(desk: Desk) -> None:
    lines = [desk.line() for _ in range(3)]
    desk.parts.connections.close()
    assert all(line.closing for line in lines)


def test_one_that_reads_nothing_for_30_s_is_closed_with_a_reason(desk: Desk) -> None:
    line, other = desk.line(), desk.line()
    aborted: list[bool] = []
    line.get_write_buffer_size = lambda: 5_000  # type: ignore[method-assign]
    line.abort = lambda: aborted.append(True)  # type: ignore[method-assign]
    line.session.pause_writing()
    line.answers.clear()
    for _ in range(31):
        desk.parts.connections.close_stalled()
        desk.clock.advance(1_000)
    assert not line.closing
    desk.parts.connections.close_stalled()
    assert line.closing
    [said] = line.answers
    assert (said.request_id, said.map()["code"], said.map()["detail"]["limit"]) == (0, "throttled", "outbox_bytes")
    assert desk.parts.connections.cut_off == 1
    assert not other.closing
    desk.parts.connections.close_stalled()
    assert desk.parts.connections.cut_off == 1
