"""The thread between a TLS connection and the client's plain socket, against a TLS peer in this process."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.certs import Authority
from topicd.client.core import tlspump

PATIENCE_S = 30.0
Pair = tuple[socket.socket, ssl.SSLSocket]


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    authority = Authority(tmp_path_factory.mktemp("ca"))
    made = authority.issue("server")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(made.cert, made.key)
    return server, ssl.create_default_context(cafile=Path(authority.own.cert))


@pytest.fixture
def pair(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> Iterator[Pair]:
    """(the client's plain side, the peer's end of the TLS connection)."""
    there, here = socket.socketpair()
    for sock in (there, here):
        sock.settimeout(PATIENCE_S)
    greeted: list[ssl.SSLSocket] = []
    greeting = threading.Thread(target=lambda: greeted.append(contexts[0].wrap_socket(there, server_side=True)))
    greeting.start()
    secured = contexts[1].wrap_socket(here, server_hostname="localhost")
    greeting.join()
    ours = tlspump.start(secured)
    ours.settimeout(PATIENCE_S)
    yield ours, greeted[0]
    ours.close()
    greeted[0].close()


def all_of(sock: socket.socket, size: int | None = None) -> bytes:
    """So many bytes, or everything until the end."""
    found = bytearray()
    while size is None or len(found) < size:
        piece = sock.recv(1 << 20)
        if not piece:
            break
        found += piece
    return bytes(found)


def test_bytes_arrive_whole_in_both_directions_at_once(pair: Pair) -> None:
    ours, peer = pair
    one, other = os.urandom(5_000_000), os.urandom(5_000_000)
    got: list[bytes] = []
    threads = [
        threading.Thread(target=ours.sendall, args=(one,)),
        threading.Thread(target=lambda: got.append(all_of(ours, len(other)))),
    ]
    for thread in threads:
        thread.start()
    # One thread at a time may use a TLS connection.
    assert all_of(peer, len(one)) == one
    peer.sendall(other)
    for thread in threads:
        thread.join(PATIENCE_S)
    assert got == [other]


def test_what_was_written_before_the_client_left_is_sent_on(pair: Pair) -> None:
    ours, peer = pair
    data = os.urandom(150_000)
    ours.sendall(data)
    ours.shutdown(socket.SHUT_RDWR)
    ours.close()
    assert all_of(peer, len(data)) == data


def test_the_end_of_the_peer_is_the_end_for_the_client(pair: Pair) -> None:
    ours, peer = pair
    peer.sendall(b"last words")
    peer.close()
    assert all_of(ours) == b"last words"


def test_a_client_that_does_not_read_still_sends(pair: Pair) -> None:
    ours, peer = pair
    flood = os.urandom(2_000_000)
    flooding = threading.Thread(target=peer.sendall, args=(flood,))
    flooding.start()
    ours.sendall(b"hello")
    assert all_of(ours, len(flood)) == flood
    flooding.join(PATIENCE_S)
    assert all_of(peer, 5) == b"hello"


def test_the_thread_ends_with_the_connection(pair: Pair) -> None:
    ours, _ = pair
    pumps = [thread for thread in threading.enumerate() if thread.name == "topicd-tls"]
    assert pumps
    ours.close()
    for pump in pumps:
        pump.join(PATIENCE_S)
        assert not pump.is_alive()
