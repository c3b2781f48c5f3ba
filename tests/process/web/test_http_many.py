"""Many streams at once, on connections of their own and on one: none is closed, none waits for all of another."""

from __future__ import annotations

import json
import selectors
import socket
import time

import h2.settings

from tests.process.procstat import pss_bytes
from tests.support.h2wire import H2Wire
from tests.support.web import Web
from topicd.limits import MIB

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
        assert max(came) < 1.5 * sum(came) / len(came), came  # nobody has the turns of others


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
        wire.patient = True
        for _ in range(150):
            wire.h2.reset_stream(wire.ask("POST", f"/v0/topics/{topic}/diff", {"wait_ms": 30_000}))
        wire.patient = False
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


def gateway_memory(web: Web) -> int:
    return pss_bytes(web.daemon.pids()["gateway-00"], "Pss_Anon")


def memory_at_rest(web: Web, topic: str) -> int:
    """While others go on to be served, when what is made for those who do not take it has come to an end."""
    before, now = -MIB, gateway_memory(web)
    end = time.monotonic() + 60
    while now - before > MIB // 2 and time.monotonic() < end:
        for _ in range(20):
            assert web("POST", f"/v0/topics/{topic}/diff", {"limit": 90}).status == 200
        before, now = now, gateway_memory(web)
    return now


def test_who_asks_and_does_not_take_the_answers_costs_little(web1: Web, topic: str) -> None:
    web1.write(topic, *["z" * 10_000] * 90)
    body = json.dumps({"limit": 90}).encode()
    head = f"POST /v0/topics/{topic}/diff HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    asked = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    before = gateway_memory(web1)
    with socket.create_connection(("127.0.0.1", web1.port), timeout=30) as sock:
        sock.sendall(asked * 150)
        assert memory_at_rest(web1, topic) - before < 30 * MIB
        answers, rest, mark = 0, b"", b"HTTP/1.1 200 OK\r\n"
        while answers < 150:
            piece = sock.recv(1 << 20)
            assert piece, f"closed behind {answers} answers"
            rest = rest[1 - len(mark) :] + piece
            answers += rest.count(mark)


def test_streams_without_a_window_are_begun_only_as_answers_are_taken(web1: Web, topic: str) -> None:
    web1.write(topic, *["z" * 10_000] * 90)
    before = gateway_memory(web1)
    with H2Wire(web1.port) as wire:
        wire.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})
        wire.flush()
        asked = [wire.ask("POST", f"/v0/topics/{topic}/diff", {"limit": 90}) for _ in range(100)]
        assert memory_at_rest(web1, topic) - before < 30 * MIB
        wire.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 1 << 20})
        wire.flush()
        for number in asked:
            status, raw = wire.answer(number)
            assert (status, len(json.loads(raw)["records"])) == (200, 90)


def test_answers_that_wait_for_small_windows_are_bounded_in_bytes(web1: Web, topic: str) -> None:
    web1.write(topic, *["z" * 10_000] * 90)
    before = gateway_memory(web1)
    with H2Wire(web1.port) as wire:
        wire.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 8_192})
        wire.flush()
        asked = [wire.ask("POST", f"/v0/topics/{topic}/diff", {"limit": 90}) for _ in range(200)]
        assert memory_at_rest(web1, topic) - before < 50 * MIB  # they have 180
        wire.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 1 << 20})
        wire.flush()
        for number in asked:
            status, raw = wire.answer(number)
            assert (status, len(json.loads(raw)["records"])) == (200, 90)


def test_long_polls_of_one_connection_take_no_room_from_its_other_requests(web1: Web, topic: str) -> None:
    head = web1.write(topic, "old")["head_seq"]
    wait = {"from_seq": head, "wait_ms": 30_000, "max_batch_bytes": 8 * MIB}
    with H2Wire(web1.port) as wire:
        polls = [wire.ask("POST", f"/v0/topics/{topic}/diff", wait) for _ in range(50)]
        assert wire.answer(wire.ask("POST", f"/v0/topics/{topic}/diff", {}))[0] == 200
        assert wire.answer(wire.ask("POST", f"/v0/topics/{topic}", {"records": [{"data": "new"}]}))[0] == 200
        for number in polls:
            status, raw = wire.answer(number)
            assert (status, [one["data"] for one in json.loads(raw)["records"]]) == (200, ["new"])


def test_what_was_asked_before_bytes_that_are_no_request_is_answered(web1: Web, topic: str) -> None:
    with socket.create_connection(("127.0.0.1", web1.port), timeout=30) as sock:
        sock.sendall(f"GET /v0/topics/{topic} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() * 5 + b"nonsense\r\n\r\n")
        answer = b""
        while piece := sock.recv(65_536):
            answer += piece
    assert [answer.count(b"HTTP/1.1 404 "), answer.count(b"HTTP/1.1 400 ")] == [5, 1]
    assert answer.count(b"Connection: close") == 1
