"""The supervisor's socket under well-meaning and other clients."""

from __future__ import annotations

import os
import selectors
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.stub_harness import Link
from topicd.errors import InvalidRequest
from topicd.ipc.protocol import unixsock
from topicd.ipc.protocol import wire as protocol
from topicd.ipc.protocol.messages import Op
from topicd.supervisor import front as front_module
from topicd.supervisor.front import MAX_REQUEST, Front


class Served:
    """A front on its own selector; turn() serves what is there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.selector = selectors.DefaultSelector()
        self.front = Front(self.selector, self.answer, frozenset({os.getuid()}))
        self.front.open(unixsock.listen(path, 0o660, 512))

    def answer(self, op: int, body: dict[str, Any]) -> dict[str, Any]:
        if op == Op.STATUS:
            return {"filler": "x" * 100_000}
        if op == Op.DEBUG:
            raise RuntimeError("a bug")
        if op not in (Op.HELLO, Op.PING):
            raise InvalidRequest(f"op {op}")
        return {"body": body}

    def turn(self, times: int = 10) -> None:
        for _ in range(times):
            for key, mask in self.selector.select(0):
                key.data(mask)

    @property
    def sessions(self) -> int:
        return len(self.selector.get_map()) - 1

    def client(self, *raw: bytes) -> Link:
        link = Link(self.path, greet=False)
        for piece in raw:
            link.sock.sendall(piece)
        self.turn()
        return link


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path / "topicd.sock")
    yield made
    made.front.close()
    made.selector.close()


HELLO = protocol.map_message(Op.HELLO, 1, {"version": protocol.PROTOCOL_VERSION})
PING = protocol.map_message(Op.PING, 2, {})


def test_requests_are_answered_in_pieces_and_together(served: Served) -> None:
    link = served.client(HELLO[:3])
    link.sock.sendall(HELLO[3:] + PING)
    served.turn()
    raw = link.sock.recv(65536)
    assert raw.count(b"body") == 2


def test_hello_comes_first(served: Served) -> None:
    _, request_id, error = served.client(PING).receive()
    assert (request_id, error["code"]) == (2, "invalid_request")


@pytest.mark.parametrize(
    "raw",
    [
        struct.pack("<IBBI", 2**32 - 1, Op.PING, 0, 1),
        struct.pack("<IBBI", MAX_REQUEST + 1, Op.APPEND, 0, 1),
        struct.pack("<IBBI", 0, Op.PING, 0, 1),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_a_stream_that_is_none_gets_one_error_and_is_closed(served: Served, raw: bytes) -> None:
    link = served.client(raw)
    op, request_id, error = link.receive()
    assert (op, request_id, error["code"]) == (Op.ERROR, 0, "invalid_request")
    with pytest.raises(EOFError):
        link.receive()
    assert served.sessions == 0


def test_a_bug_in_an_answer_is_an_internal_error(served: Served) -> None:
    link = served.client(HELLO, protocol.map_message(Op.DEBUG, 3, {}))
    raw = link.sock.recv(65536)
    assert b"internal" in raw
    assert served.sessions == 1


def test_a_foreign_uid_is_turned_away(served: Served) -> None:
    served.front.uids = frozenset({os.getuid() + 1})
    link = served.client()
    _, _, error = link.receive()
    assert error["code"] == "forbidden"
    with pytest.raises(EOFError):
        link.receive()


def test_places_are_bounded_and_the_idle_make_room(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_module, "MAX_CONNECTIONS", 3)
    links = [served.client(HELLO) for _ in range(3)]
    refused = served.client()
    assert refused.receive()[2]["code"] == "throttled"
    assert served.sessions == 3
    monkeypatch.setattr(front_module, "IDLE_S", 0.0)
    served.client(HELLO)
    assert served.sessions == 3
    links[0].receive()
    with pytest.raises(EOFError):
        links[0].receive()


def test_who_asks_and_never_reads_is_dropped(served: Served) -> None:
    link = served.client(HELLO, protocol.map_message(Op.STATUS, 1, {}) * 60)
    served.turn(50)
    assert served.sessions == 0
    link.close()


def test_who_reads_slowly_gets_everything(served: Served) -> None:
    link = served.client(HELLO, protocol.map_message(Op.STATUS, 7, {}) * 15)
    assert served.sessions == 1
    link.sock.setblocking(False)
    total = 0
    while total < 15 * 100_000:
        try:
            total += len(link.sock.recv(65536))
        except BlockingIOError:
            served.turn(1)
    link.sock.setblocking(True)
    link.sock.sendall(PING)
    served.turn()
    assert served.sessions == 1


def test_a_client_that_leaves_is_forgotten(served: Served) -> None:
    served.client(HELLO).close()
    served.turn()
    assert served.sessions == 0


def test_accepting_goes_on_after_the_descriptors_ran_out(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: socket.socket) -> Any:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(socket.socket, "accept", fail)
        link = served.client(HELLO)
        assert served.selector.select(0) == []
    served.front.resume()
    served.turn()
    assert link.receive()[1] == 1
