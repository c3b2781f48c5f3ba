"""Many streams at once, on connections of their own and on one: none is closed, none waits for all of another."""

from __future__ import annotations

import json
import selectors
import socket
import time

from tests.support.h2wire import H2Wire
from tests.support.web import Web

WATCHERS = 300


def opened(port: int, url: str) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=30)
    sock.sendall(f"GET {url} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return sock


def test_every_one_of_many_watchers_gets_every_pulse(web1: Web, topic: str) -> None:
    web1("PUT", f"/v0/topics/{topic}", {})
    urls = [web1.session({topic: {}}) for _ in range(WATCHERS)]
    socks = [opened(web1.port, url) for url in urls]
    texts = dict.fromkeys(socks, b"")
    with selectors.DefaultSelector() as selector:
        for sock in socks:
            selector.register(sock, selectors.EVENT_READ)

        def read_until(mark: bytes) -> None:
            waiting, end = set(socks), time.monotonic() + 30
            while waiting and time.monotonic() < end:
                for key, _ in selector.select(1):
                    sock = key.fileobj
                    assert isinstance(sock, socket.socket)
                    piece = sock.recv(1 << 16)
                    assert piece, f"a stream was closed behind {texts[sock][-300:]!r}"
                    texts[sock] += piece
                    if mark in texts[sock]:
                        waiting.discard(sock)
            assert not waiting, f"{len(waiting)} watchers did not get {mark!r}"

        read_until(b"event: caught-up")
        for n in range(5):
            web1.write(topic, f"pulse-{n}")
            read_until(b'"pulse-%d"' % n)
    for sock in socks:
        sock.close()
    assert all(text.count(b"event: record") == 5 for text in texts.values())


def test_streams_of_one_connection_have_their_turns(web1: Web, topic: str) -> None:
    for _ in range(10):
        web1.write(topic, *["x" * 10_000] * 100)
    with H2Wire(web1.port) as wire:
        urls = [web1.session({topic: {}}, max_batch_bytes=50_000) for _ in range(20)]
        streams = [wire.ask("GET", url) for url in urls]
        wire.until(lambda: all(b"event: record" in wire.bodies[n] for n in streams), "all of them to begin")
        before = {n: len(wire.bodies[n]) for n in streams}
        goal = sum(before.values()) + 3_000_000
        wire.until(lambda: sum(len(wire.bodies[n]) for n in streams) > goal, "some more")
        came = [len(wire.bodies[n]) - before[n] for n in streams]
        assert min(came) > 50_000, came


def test_streams_that_are_left_do_not_end_their_connection(web1: Web, topic: str) -> None:
    web1("PUT", f"/v0/topics/{topic}", {})
    with H2Wire(web1.port) as wire:
        stays = wire.ask("GET", web1.session({topic: {}}))
        url = web1.session({topic: {}})
        for _ in range(300):
            number = wire.ask("GET", url)
            wire.until(lambda number=number: b"caught-up" in wire.bodies[number], "the stream to open")
            wire.h2.reset_stream(number)
            wire.flush()
        web1.write(topic, "still here")
        wire.until(lambda: b"still here" in wire.bodies[stays], "the first stream to go on")


def test_a_peer_that_resets_what_it_asked_for_is_sent_away(web1: Web, topic: str) -> None:
    web1("PUT", f"/v0/topics/{topic}", {})
    with H2Wire(web1.port) as wire:
        for _ in range(400):
            number = wire.ask("POST", f"/v0/topics/{topic}/diff", {"wait_ms": 30_000})
            wire.h2.reset_stream(number)
        wire.flush()
        wire.until(lambda: wire.goodbye is not None, "GOAWAY")
        assert wire.goodbye == 11  # ENHANCE_YOUR_CALM
    assert web1("GET", "/healthz").status == 200


def test_large_answers_side_by_side_are_whole(web1: Web, topic: str) -> None:
    web1.write(topic, *["y" * 10_000] * 100)
    with H2Wire(web1.port) as wire:
        asked = [wire.ask("POST", f"/v0/topics/{topic}/diff", {"limit": n, "include_tags": True}) for n in range(1, 60)]
        for n, number in enumerate(asked, start=1):
            status, raw = wire.answer(number)
            assert (status, len(json.loads(raw)["records"])) == (200, n)
