"""Strangers on TCP: however many come and whatever they say, clients of this machine and those with a token get in."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.process.test_tcp import Site
from tests.process.wire import packed
from tests.support.daemon import wait_until
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import PROTOCOL_VERSION, MessageReader
from topicd.shards.delivery.sessions.strangers import PATIENCE_S

ALLOWED = 40
ELSEWHERE = "127.0.0.2"


@pytest.fixture(scope="module", params=["tls", "tcp"])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("x"), tls=request.param == "tls")
    made.daemon.settings |= {"max_connections": 60, "max_unauthenticated": ALLOWED}
    with made.daemon:
        yield made
    made.close()


def arrive(site: Site, count: int, source: str = "127.0.0.1") -> list[socket.socket]:
    """Connections that say nothing."""
    return [socket.create_connection(("127.0.0.1", site.port), 10, source_address=(source, 0)) for _ in range(count)]


def still_open(socks: list[socket.socket]) -> int:
    found = 0
    for sock in socks:
        sock.setblocking(False)
        try:
            found += sock.recv(100) != b""
        except BlockingIOError:
            found += 1
        except OSError:
            pass
    return found


def descriptors(site: Site) -> int:
    return len(os.listdir(f"/proc/{site.daemon.pids()['dlv-00']}/fd"))


@pytest.mark.fault("NET-01")
def test_connections_that_say_nothing_keep_nobody_out(site: Site) -> None:
    before = descriptors(site)
    crowd = arrive(site, 150)
    began = time.monotonic()
    try:
        wait_until(lambda: still_open(crowd) <= ALLOWED // 2, "the others to be turned away")
        assert descriptors(site) <= before + ALLOWED + 5
        clients = [site.daemon.client() for _ in range(20)]
        for client in clients:
            assert client.ping() < 30
        # Half of the places are for other addresses.
        for sock in arrive(site, 5, ELSEWHERE):
            with sock:
                assert still_open([sock]) == 1
        wait_until(lambda: still_open(crowd) == 0, "the rest to be sent away")
        assert time.monotonic() - began < 3 * PATIENCE_S
    finally:
        for sock in crowd:
            sock.close()
    with site.client("shop") as client:
        assert client.ping() < 30


def hello(token: str) -> bytes:
    return packed(Op.HELLO, 1, {"version": PROTOCOL_VERSION, "token": token})


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("g"), tls=False)
    with made.daemon:
        yield made
    made.close()


@pytest.mark.fault("NET-02")
def test_whoever_guesses_tokens_is_slow_and_fills_no_log(plain: Site) -> None:
    """On as many connections as he likes, as fast as he can, for a few seconds."""
    until, tries = time.monotonic() + 3.0, []

    def guess() -> None:
        while time.monotonic() < until:
            try:
                with socket.create_connection(("127.0.0.1", plain.port), 10) as sock:
                    sock.sendall(b"".join(hello(f"guess {number}") for number in range(100)))
                    reader = MessageReader()
                    while piece := sock.recv(4096):
                        tries.extend(reader.feed(piece))
            except OSError:
                continue

    threads = [threading.Thread(target=guess) for _ in range(32)]
    for thread in threads:
        thread.start()
    took = []
    while time.monotonic() < until:
        began = time.monotonic()
        with plain.client("shop") as client:
            client.ping()
        took.append(time.monotonic() - began)
        time.sleep(0.05)
    for thread in threads:
        thread.join()
    assert 0 < len(tries) < 250, len(tries)
    assert all(message.op == Op.ERROR for message in tries)
    assert min(took) < 1.0  # who has a valid token does not wait with them
    assert plain.daemon.log.count("connection refused") <= 2 * 10  # of two shards


@pytest.mark.fault("NET-03")
def test_a_stranger_cannot_make_a_shard_keep_what_it_sends(plain: Site) -> None:
    with socket.create_connection(("127.0.0.1", plain.port), 10) as sock:
        head = packed(Op.APPEND, 1, b"")
        sock.sendall((30 << 20).to_bytes(4, "little") + head[4:])
        answer = sock.recv(4096)
        assert b"the first message must be HELLO" in answer
        assert sock.recv(4096) == b""
