"""Broken connections, refusals, restarts and hostile answers: what the caller sees of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

import topicd
from tests.support.fakeserver import CUT, HALF, MUTE, FakeServer, Request
from topicd.errors import ConnectionLost, FormatError, InvalidRequest, NotReady, Throttled
from topicd.ipc.protocol.messages import Op


def first_time(op: int, fault: object) -> object:
    """A fault that strikes the first request of that kind only."""
    struck: list[Request] = []

    def strike(request: Request) -> object:
        if request.op == op and not struck:
            struck.append(request)
            return fault
        return None

    return strike


@pytest.mark.parametrize("fault", [CUT, MUTE, HALF])
@pytest.mark.parametrize("op", [Op.HELLO, Op.OPEN, Op.APPEND])
def test_a_cut_publish_is_repeated_and_stored_once(server: FakeServer, op: int, fault: str) -> None:
    with topicd.connect(server.path, timeout=5) as client:
        server.fault = first_time(op, fault)  # type: ignore[assignment]
        assert client.publish("t", b"a") == 1
        assert client.publish("t", b"b") == 2
    assert server.payloads("t") == [b"a", b"b"]


def test_a_keyed_publish_is_stored_once_by_a_daemon_that_forgets_keys(
    client: topicd.Client, server: FakeServer
) -> None:
    struck = first_time(Op.APPEND, MUTE)

    def forgets(request: Request) -> object:
        if request.op == Op.APPEND and "t" in server.topics:
            server.topics["t"].keys.clear()
        return struck(request)  # type: ignore[operator]

    server.fault = forgets  # type: ignore[assignment]
    assert client.publish("t", b"x", key="k") == 1
    assert server.payloads("t") == [b"x"]


def test_a_key_used_by_somebody_else_does_not_confuse_the_numbers(client: topicd.Client, server: FakeServer) -> None:
    with topicd.connect(server.path, timeout=5) as other:
        other.publish("t", b"theirs", key="k")
    client.publish("t", b"1")
    assert client.publish("t", b"again", key="k") == 1
    assert [client.publish("t", b"2"), client.publish("t", b"3", key="new")] == [3, 4]
    assert server.payloads("t") == [b"theirs", b"1", b"2", b"3"]


@pytest.mark.parametrize("fault", [CUT, MUTE, HALF])
def test_a_cut_read_is_repeated(client: topicd.Client, server: FakeServer, fault: str) -> None:
    client.publish("t", b"a")
    server.fault = first_time(Op.FETCH, fault)  # type: ignore[assignment]
    assert client.fetch("t").payloads() == [b"a"]


@pytest.mark.parametrize("error", [NotReady("recovering"), Throttled("full", retry_after_ms=5)])
def test_temporary_refusals_are_waited_out(client: topicd.Client, server: FakeServer, error: Exception) -> None:
    server.fault = first_time(Op.APPEND, error)  # type: ignore[assignment]
    assert client.publish("t", b"a") == 1


def test_an_error_beyond_the_timeout_reaches_the_caller(server: FakeServer) -> None:
    with topicd.connect(server.path, timeout=5) as client:
        client.publish("t", b"before")
        server.fault = lambda r: Throttled("full", limit="bytes") if r.op == Op.APPEND else None
        client._caller.timeout = 0.05
        with pytest.raises(Throttled, match="full"):
            client.publish("t", b"a")
        client._caller.timeout = 5
        server.fault = lambda r: None
        assert client.publish("t", b"b") == 2


@pytest.mark.parametrize("op", [Op.STATE, Op.APPEND])
def test_the_timeout_counts_from_the_beginning(server: FakeServer, op: int) -> None:
    """A daemon that is silent is not waited for twice, and a read that may wait for long makes no publish do so."""
    with topicd.connect(server.path, timeout=5) as client:
        client.publish("t", b"x")
        client.fetch("t", wait=30)
        server.fault = lambda r: b"" if r.op == op else None
        client._caller.timeout = 0.5
        began = time.monotonic()
        with pytest.raises(ConnectionLost, match="did not answer"):
            client.state("t") if op == Op.STATE else client.publish("t", b"y")
        assert 0.4 < time.monotonic() - began < 0.9


def test_numbers_of_an_unknown_outcome_are_never_used_for_other_data(server: FakeServer) -> None:
    with topicd.connect(server.path, timeout=5) as client:
        client.publish("t", b"first")
        server.fault = lambda r: MUTE if r.op == Op.APPEND else None
        client._caller.timeout = 0.05
        with pytest.raises(ConnectionLost):
            client.publish("t", b"perhaps")
        client._caller.timeout = 5
        server.fault = lambda r: None
        assert client.publish("t", b"after") == 3
    assert server.payloads("t") == [b"first", b"perhaps", b"after"]


def test_a_restart_with_other_shards_is_followed(client: topicd.Client, server: FakeServer) -> None:
    for n in range(10):
        client.publish(f"t{n}", b"before")
    for shards in (5, 1, 3):
        server.restart(shards)
        for n in range(10):
            client.publish(f"t{n}", b"%d" % shards)
    for n in range(10):
        assert client.fetch(f"t{n}").payloads() == [b"before", b"5", b"1", b"3"]
    assert len(list(client.topics())) == 10


def test_a_daemon_that_forgot_the_producer_is_no_problem(client: topicd.Client, server: FakeServer) -> None:
    client.publish("t", b"a")
    client.publish("t", b"b")
    server.topics["t"].producers.clear()
    assert client.publish("t", b"c") == 3


@pytest.mark.parametrize(
    "garbage",
    [
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
        b"\xff" * 100,
        bytes(100),
        b"\x06\x00\x00\x00\xa1\x00\x07\x00\x00\x00",
        b"\x0a\x00\x00\x00\xff\x00\x00\x00\x00\x00\xc1\xc1\xc1\xc1",
    ],
)
@pytest.mark.parametrize("op", [Op.APPEND, Op.FETCH, Op.STATE, Op.OPEN])
def test_hostile_bytes_are_a_clear_error(client: topicd.Client, server: FakeServer, garbage: bytes, op: int) -> None:
    client.publish("known", b"x")
    server.fault = lambda r: garbage if r.op == op else None
    name = "known" if op != Op.OPEN else "unknown"
    calls: dict[int, Callable[[], object]] = {
        Op.APPEND: lambda: client.publish(name, b"y"),
        Op.FETCH: lambda: client.fetch(name),
        Op.STATE: lambda: client.state(name),
        Op.OPEN: lambda: client.publish(name, b"y"),
    }
    with pytest.raises((FormatError, ConnectionLost)):
        calls[op]()
    server.fault = lambda r: None
    assert client.fetch("known").payloads() == [b"x"]


def test_frames_that_are_malformed_are_a_clear_error(client: topicd.Client, server: FakeServer) -> None:
    client.publish("t", b"x" * 100)
    stored = server.topics["t"].records[0]
    server.topics["t"].records[0] = stored._replace(frame=stored.frame[:20] + b"\xff" * 100)
    with pytest.raises(FormatError, match="malformed"):
        client.fetch("t").payloads()


def test_threads_publish_side_by_side_without_losing_anything(client: topicd.Client, server: FakeServer) -> None:
    def work(n: int) -> None:
        for i in range(50):
            client.publish("t", b"%d-%d" % (n, i))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stored = server.payloads("t")
    assert len(stored) == len(set(stored)) == 400
    for n in range(8):
        mine = [p for p in stored if p.startswith(b"%d-" % n)]
        assert mine == [b"%d-%d" % (n, i) for i in range(50)]


def test_a_closed_client_says_so(server: FakeServer) -> None:
    client = topicd.connect(server.path)
    client.publish("t", b"x")
    client.close()
    client.close()
    for call in (lambda: client.publish("t", b"x"), lambda: client.fetch("t"), lambda: client.watch("t")):
        with pytest.raises(InvalidRequest, match="closed"):
            call()
