"""Where HTTP is listened: TLS, a port that systemd hands over, the Unix socket; and which web pages may ask."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.process.conftest import SETTINGS
from tests.process.web.conftest import ENVIRON
from tests.support.certs import Authority
from tests.support.daemon import Daemon, wait_until
from tests.support.h2wire import H2Wire
from tests.support.web import Web

PAGE = "https://page.example"


def curl(*line: str) -> tuple[int, str]:
    ran = subprocess.run(["curl", "-s", "-m", "30", *line], capture_output=True, text=True, check=False, timeout=60)
    return ran.returncode, ran.stdout


def read_until(sock: socket.socket, mark: bytes) -> bytes:
    sock.settimeout(30)
    data = b""
    while mark not in data:
        piece = sock.recv(65_536)
        assert piece, data
        data += piece
    return data


# ---- TLS ----


class Secure:
    def __init__(self, root: Path) -> None:
        self.authority = Authority(root)
        made = self.authority.issue("server")
        settings = {**SETTINGS, "tls_cert": made.cert, "tls_key": made.key}
        self.daemon = Daemon(root / "d", env={**ENVIRON, "TOPICD_HTTP_TLS": "true"}, **settings)

    @property
    def port(self) -> int:
        return int(self.daemon.run.http_port.read_text())

    def trusted(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.authority.own.cert))

    def connect(self) -> ssl.SSLSocket:
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        return self.trusted().wrap_socket(plain, server_hostname="localhost")


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    site = Secure(tmp_path_factory.mktemp("tls"))
    with site.daemon:
        yield site


@pytest.mark.parametrize("how", ["--http1.1", "--http2-prior-knowledge"])
def test_requests_over_tls(secure: Secure, how: str, topic: str) -> None:
    url = f"https://localhost:{secure.port}"
    trust = ["--cacert", str(secure.authority.own.cert), how]
    body = ["-H", "Content-Type: application/json", "-d", json.dumps({"records": [{"data": "x" * 90_000}]})]
    code, text = curl(*trust, *body, f"{url}/v0/topics/{topic}")
    assert (code, json.loads(text)["created"]) == (0, True)
    code, text = curl(*trust, "-X", "POST", f"{url}/v0/topics/{topic}/diff")
    assert (code, len(json.loads(text)["records"][0]["data"])) == (0, 90_000)
    assert f"https://127.0.0.1:{secure.port}" in secure.daemon.log


def test_streams_and_sockets_over_tls(secure: Secure, topic: str) -> None:
    def ask(method: str, path: str, body: Any, sock: ssl.SSLSocket) -> Any:
        raw = json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        sock.sendall(f"{head}Content-Length: {len(raw)}\r\n\r\n".encode() + raw)
        return json.loads(read_until(sock, b"}}").split(b"\r\n\r\n", 1)[1])

    with secure.connect() as sock, secure.connect() as ws, secure.connect() as writer:
        ask("PUT", f"/v0/topics/{topic}", {}, writer)
        url = ask("POST", "/v0/watch", {"topics": {topic: {}}}, sock)["stream_url"]
        sock.sendall(f"GET {url} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        read_until(sock, b"caught-up")
        upgrade = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        ws.sendall(f"GET /v0/ws HTTP/1.1\r\nHost: localhost\r\n{upgrade}{key}\r\n".encode())
        assert b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in read_until(ws, b"\r\n\r\n")
        ask("POST", f"/v0/topics/{topic}", {"records": [{"data": "over tls"}]}, writer)
        assert b"over tls" in read_until(sock, b"over tls")


def streams(secure: Secure) -> int:
    return int(secure.daemon.stats("gateway-00")["streams"])


def test_who_leaves_a_stream_over_tls_is_noticed(secure: Secure) -> None:
    wait_until(lambda: streams(secure) == 0, "earlier streams to be gone")
    with secure.connect() as sock:
        sock.sendall(b"GET /v0/stats HTTP/1.1\r\nHost: localhost\r\n\r\n")
        read_until(sock, b"event: stats")
        wait_until(lambda: streams(secure) == 1, "the stream to be counted")
    wait_until(lambda: streams(secure) == 0, "the stream to be gone")


def test_who_does_not_speak_tls_or_does_not_trust_gets_nowhere(secure: Secure) -> None:
    with socket.create_connection(("127.0.0.1", secure.port), timeout=30) as sock:
        sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert b"HTTP/1.1" not in sock.recv(1_000)
    assert curl(f"https://localhost:{secure.port}/healthz")[0] == 60  # not trusted
    assert curl("--tls-max", "1.1", "-k", f"https://localhost:{secure.port}/healthz")[0] != 0
    assert curl("-k", f"https://localhost:{secure.port}/healthz")[0] == 0


@pytest.mark.parametrize("broken", ["missing", "nonsense", "other key"])
def test_a_certificate_that_cannot_be_used_refuses_the_start(tmp_path: Path, broken: str) -> None:
    authority = Authority(tmp_path)
    made = authority.issue("server")
    cert, key = made.cert, made.key
    if broken == "missing":
        key = tmp_path / "none.key"
    elif broken == "nonsense":
        cert = tmp_path / "nonsense.pem"
        cert.write_text("nonsense")
    else:
        key = authority.issue("other").key
    daemon = Daemon(tmp_path / "d", env={**ENVIRON, "TOPICD_HTTP_TLS": "true"}, tls_cert=cert, tls_key=key, **SETTINGS)
    try:
        daemon.start()
        wait_until(lambda: not daemon.running, "the daemon to leave", 30)
        assert daemon.exit_code == 1
        assert "and tls_key cannot be used" in daemon.log and "Traceback" not in daemon.log
    finally:
        daemon.close()


# ---- a port that is handed over ----


def activated(root: Path, listener: socket.socket, env: dict[str, str]) -> Daemon:
    """As systemd starts a service with a socket unit: descriptor 3 listens."""

    class Activated(Daemon):
        def start(self) -> Activated:
            self.root.mkdir(parents=True, exist_ok=True)
            code = "import os, sys; os.dup2(int(sys.argv[1]), 3); os.environ.update(LISTEN_PID=str(os.getpid()), "
            code += "LISTEN_FDS='1'); os.execv(sys.executable, [sys.executable, '-m', 'topicd', *sys.argv[2:]])"
            flags = [f"--data-dir={self.data.root}", f"--run-dir={self.run.root}"]
            flags += [f"--{name.replace('_', '-')}={value}" for name, value in SETTINGS.items()]
            with self.log_path.open("ab") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", code, str(listener.fileno()), *flags],
                    env={**os.environ, **env},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=[listener.fileno()],
                    start_new_session=True,
                )
            return self

    return Activated(root, env=env)


def test_a_port_that_systemd_holds_is_served_also_before_and_after_the_daemon(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=16) as listener:
        port = listener.getsockname()[1]
        early: list[tuple[int, str]] = []
        asked = threading.Thread(target=lambda: early.append(curl(f"http://127.0.0.1:{port}/healthz")))
        asked.start()  # before anybody serves: it waits in the queue of the socket
        # http_listen names a port that would be refused: the one that is handed over counts.
        with activated(tmp_path, listener, {**ENVIRON, "TOPICD_HTTP_LISTEN": "127.0.0.1:1"}) as daemon:
            asked.join(60)
            assert early[0][0] == 0 and json.loads(early[0][1])["status"] == "ok"
            web = Web(daemon)
            assert web.port == port and web.write("a", 1)["created"]
            old = daemon.kill("gateway-00")
            daemon.wait_replaced("gateway-00", old)
            wait_until(lambda: web("GET", "/readyz").status == 200, "the new gateway on the same port")
            web.close()
            assert daemon.stop().code == 0
        # The socket is systemd's: whoever comes now waits for the next start.
        socket.create_connection(("127.0.0.1", port), timeout=5).close()


def test_a_port_beyond_this_machine_is_not_taken_over_without_tokens(tmp_path: Path) -> None:
    with socket.create_server(("0.0.0.0", 0)) as listener:
        daemon = activated(tmp_path, listener, ENVIRON)
        try:
            daemon.start()
            wait_until(lambda: not daemon.running, "the daemon to leave", 30)
            assert daemon.exit_code == 2
            assert "is not a loopback address: tokens_file is needed" in daemon.log
        finally:
            daemon.close()
        with activated(tmp_path / "open", listener, {**ENVIRON, "TOPICD_HTTP_OPEN": "true"}) as daemon:
            assert Web(daemon)("GET", "/healthz").status == 200


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0"])
def test_a_bind_beyond_this_machine_without_tokens_refuses_the_start(tmp_path: Path, listen: str) -> None:
    daemon = Daemon(tmp_path, env={**ENVIRON, "TOPICD_HTTP_LISTEN": listen}, **SETTINGS)
    try:
        daemon.start()
        wait_until(lambda: not daemon.running, "the daemon to leave", 30)
        assert daemon.exit_code == 2 and "tokens_file is needed, or http_open" in daemon.log
    finally:
        daemon.close()


# ---- the Unix socket ----


def test_the_unix_socket_speaks_both_versions_and_streams(http_daemon: Daemon, topic: str) -> None:
    where = ["--unix-socket", os.fspath(http_daemon.run.http_socket)]
    assert http_daemon.run.http_socket.stat().st_mode & 0o007 == 0
    for how in ("--http1.1", "--http2-prior-knowledge"):
        code, text = curl(*where, how, "-X", "PUT", f"http://localhost/v0/topics/{topic}")
        assert code == 0 and json.loads(text)["topic"] == topic
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(os.fspath(http_daemon.run.http_socket))
        sock.sendall(b"GET /v0/stats HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"text/event-stream" in read_until(sock, b"event: stats")


# ---- web pages ----


@pytest.fixture(scope="module")
def paged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    env = {**ENVIRON, "TOPICD_HTTP_ORIGINS": f"{PAGE}, http://other.example:8080"}
    with Daemon(tmp_path_factory.mktemp("cors"), env=env, **SETTINGS) as daemon:
        yield daemon


@pytest.mark.parametrize("version", ["1.1", "2"])
def test_pages_of_configured_origins_may_ask(paged: Daemon, version: str) -> None:
    web = Web(paged, version)
    web.write("a", 1)
    asks = {"Origin": PAGE, "Access-Control-Request-Method": "POST"}
    allowed = web("OPTIONS", "/v0/topics/a", None, asks)
    assert (allowed.status, allowed.headers["access-control-allow-origin"]) == (204, PAGE)
    assert "POST" in allowed.headers["access-control-allow-methods"]
    assert {"Authorization", "Content-Type", "Idempotency-Key", "Last-Event-ID"} <= {
        *allowed.headers["access-control-allow-headers"].split(", ")
    }
    assert "content-length" not in allowed.headers
    for path in ("/v0/topics/a", "/v0/topics/none", "/no/such", "/healthz"):
        assert web("GET", path, None, {"Origin": PAGE}).headers["access-control-allow-origin"] == PAGE
        other = web("GET", path, None, {"Origin": "https://evil.example"})
        assert "access-control-allow-origin" not in other.headers and other.headers["vary"] == "Origin"
    with web.events(web.session({"a": {}}), {"Origin": PAGE}) as events:
        assert events.answer.headers["access-control-allow-origin"] == PAGE
    assert web("OPTIONS", "/v0/topics/a", None, {**asks, "Origin": "https://evil.example"}).status == 405
    web.close()


def test_without_origins_no_page_may_ask(web: Web, topic: str) -> None:
    asks = {"Origin": PAGE, "Access-Control-Request-Method": "POST"}
    refused = web("OPTIONS", f"/v0/topics/{topic}", None, asks)
    assert (refused.status, refused.code) == (405, "method_not_allowed")
    answer = web("GET", "/healthz", None, {"Origin": PAGE})
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize("host", ["evil.example", "evil.example:4000", "localhost.evil.example"])
def test_a_name_that_was_made_to_mean_this_machine_is_refused(web: Web, host: str) -> None:
    refused = web("GET", "/v0/topics", None, {"Host": host})
    assert (refused.status, refused.code) == (403, "forbidden")


def test_h2_frames_over_tls(secure: Secure) -> None:
    with H2Wire(secure.port, secure.trusted()) as wire:
        status, raw = wire.answer(wire.ask("GET", "/healthz"))
        assert (status, json.loads(raw)["status"]) == (200, "ok")
