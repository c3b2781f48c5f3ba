"""The metrics server under well-meaning and other clients."""

from __future__ import annotations

import re
import selectors
import socket
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest

from tests.support.ports import free_ports
from tests.support.promtext import Exposition
from tests.unit.cli import samples
from topicd import metrics
from topicd.ipc.protocol import unixsock
from topicd.supervisor import metrics_server
from topicd.supervisor.metrics_server import MAX_CONNECTIONS, MAX_REQUEST, MetricsServer, Page

GET = b"GET /page HTTP/1.1\r\nHost: x\r\n\r\n"


class Served:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.selector = selectors.DefaultSelector()
        self.body = "hello\n"
        pages = {"/page": lambda: Page(HTTPStatus.OK, self.body), "/broken": self.broken}
        self.server = MetricsServer(self.selector, pages)
        self.server.open(path, 0o600, 0)

    def broken(self) -> Page:
        raise RuntimeError("a bug")

    def turn(self, times: int = 10) -> None:
        for _ in range(times):
            for key, mask in self.selector.select(0):
                key.data(mask)

    def client(self, raw: bytes = b"") -> socket.socket:
        sock = unixsock.connect(self.path, 5)
        sock.sendall(raw)
        self.turn()
        return sock

    def ask(self, raw: bytes) -> str:
        with self.client(raw) as sock:
            return received(sock)

    @property
    def visits(self) -> int:
        return len(self.selector.get_map()) - 1


def over_tcp(served: Served, host: str) -> str:
    port = free_ports(1)
    served.server._listen(metrics_server._loopback(port))
    with socket.create_connection(("127.0.0.1", port), 5) as sock:
        sock.sendall(f"GET /page HTTP/1.1\r\n{host}\r\n\r\n".encode())
        served.turn()
        return received(sock)


@pytest.mark.fault("NET-05")
@pytest.mark.parametrize(
    "host",
    ["Host: localhost", "host: LocalHost:9100", "Host: 127.0.0.1:80", "Host:[::1]:80", "Host: [::1]", "Accept: *"],
)
def test_the_port_answers_to_the_names_of_this_machine(served: Served, host: str) -> None:
    assert over_tcp(served, host).startswith("HTTP/1.1 200 ")


@pytest.mark.fault("NET-05")
@pytest.mark.parametrize(
    "host",
    [
        *("Host: evil.example", "Host: evil.example:9100", "Host: localhost.evil.example", "Host: 127.0.0.1.evil"),
        *("Host: ", "Host: localhost\r\nHost: evil.example", "HOST: 10.0.0.1", "Host: 127.0.0.1:80@evil"),
    ],
)
def test_the_port_answers_to_no_other_name(served: Served, host: str) -> None:
    answer = over_tcp(served, host)
    assert answer.startswith("HTTP/1.1 421 ")
    assert served.body not in answer


def received(sock: socket.socket) -> str:
    sock.setblocking(False)
    found = b""
    while piece := sock.recv(65536):
        found += piece
    return found.decode()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path / "metrics.sock")
    yield made
    made.server.close()
    assert not made.selector.get_map()
    assert not made.path.exists()


def test_one_get_is_answered_and_the_connection_closed(served: Served) -> None:
    assert served.ask(GET).splitlines()[0] == "HTTP/1.1 200 OK"
    assert served.ask(GET).endswith("Connection: close\r\n\r\nhello\n")
    assert served.visits == 0


def test_head_is_get_without_the_body(served: Served) -> None:
    whole, head = served.ask(GET), served.ask(GET.replace(b"GET", b"HEAD"))
    assert head == whole.removesuffix(served.body) and f"Content-Length: {len(served.body)}\r\n" in head


def test_no_series_has_a_label_that_the_scraper_sets_itself() -> None:
    text = metrics.render(samples.status())
    assert "topicd_serving" in text
    assert not re.search(r'[{,](?:instance|job)="', text)


def test_a_request_may_come_in_pieces(served: Served) -> None:
    with served.client(GET[:7]) as sock:
        sock.sendall(GET[7:-2])
        served.turn()
        sock.sendall(GET[-2:])
        served.turn()
        assert "200 OK" in received(sock)


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GET /other HTTP/1.1\r\n\r\n", 404),
        (b"PUT /page HTTP/1.1\r\n\r\n", 404),
        (b"GET /broken HTTP/1.1\r\n\r\n", 500),
        (b"GET /page SPDY/3\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"\xff\xfe \x80 HTTP/1.1\r\n\r\n", 404),
    ],
)
def test_anything_else_is_refused(served: Served, raw: bytes, status: int) -> None:
    assert served.ask(raw).startswith(f"HTTP/1.1 {status} ")
    assert served.visits == 0


def test_a_request_that_never_ends_is_refused_at_a_bound(served: Served) -> None:
    with served.client() as sock:
        sock.sendall(b"x" * (MAX_REQUEST + 1))
        served.turn()
        assert received(sock).startswith("HTTP/1.1 431 ")


def test_who_does_not_read_holds_nobody_up_and_gets_everything_later(served: Served) -> None:
    served.body = "x" * 5_000_000
    with served.client(GET) as slow:
        served.body = "hello\n"
        assert served.ask(GET).endswith("hello\n")
        slow.setblocking(False)
        found = 0
        while served.visits:
            found += len(slow.recv(1 << 20))
            served.turn(1)
        assert found + len(received(slow)) > 5_000_000


def test_who_is_silent_goes_after_a_while(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    with served.client(b"GET /pa"):
        served.server.tick()
        assert served.visits == 1
        monkeypatch.setattr(metrics_server, "PATIENCE_S", -1.0)
        served.server.tick()
        assert served.visits == 0


def test_the_oldest_makes_room(served: Served) -> None:
    idle = [served.client() for _ in range(MAX_CONNECTIONS)]
    assert served.visits == MAX_CONNECTIONS
    assert "200 OK" in served.ask(GET)
    assert served.visits == MAX_CONNECTIONS - 1
    assert received(idle[0]) == ""
    for sock in idle:
        sock.close()


def test_a_visitor_that_left_is_forgotten(served: Served) -> None:
    served.client(b"GET").close()
    served.turn()
    assert served.visits == 0


# ---- the page ----


def status(*topics: list[object]) -> dict[str, object]:
    return {"state": "serving", "processes": [{"name": "dlv-00", "stats": {"top_topics": list(topics)}}]}


def test_labels_are_escaped() -> None:
    name = 'a"b\\c\nd}'
    found = Exposition(metrics.render(status([name, 7, 5, 100, 0, 2])))
    assert found.value("topicd_topic_consumer_lag_records", topic=name) == 2
    assert found.value("topicd_topic_head_seq", topic=name, shard="00") == 7


def test_names_cut_to_the_same_text_are_shown_once() -> None:
    found = Exposition(metrics.render(status(["a" * 64, 7, 5, 100, 0, 2], ["a" * 64, 1, 1, 1, 0, 1])))
    assert found.value("topicd_topic_head_seq", topic="a" * 64) == 7
