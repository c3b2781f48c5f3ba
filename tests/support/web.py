"""HTTP as a plain client speaks it: requests over HTTP/1.1 and HTTP/2, event streams, WebSockets."""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, Message, Pong, RejectConnection, Request, TextMessage
from wsproto.events import Ping as WsPing

from tests.support.daemon import Daemon

JSON = {"Content-Type": "application/json"}
WAIT_S = 30.0
SILENCE_S = 75.0


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.raw)

    @property
    def error(self) -> dict[str, Any]:
        assert set(self.body) == {"error"}
        error: dict[str, Any] = self.body["error"]
        assert {"code", "message"} <= set(error) <= {"code", "message", "detail"}
        assert error["message"]
        return error

    @property
    def code(self) -> str:
        return str(self.error["code"])


class Web:
    """One client; `version` is "1.1" or "2"."""

    def __init__(self, daemon: Daemon, version: str = "1.1", key: str = "") -> None:
        self.daemon = daemon
        self.version = version
        self.key = key
        two = version == "2"
        self.http = httpx.Client(http1=not two, http2=two, timeout=WAIT_S, trust_env=False)

    @property
    def port(self) -> int:
        return int(self.daemon.run.http_port.read_text())

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        self.http.close()

    def as_key(self, key: str) -> Web:
        return Web(self.daemon, self.version, key)

    def __call__(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, **more: Any
    ) -> Answer:
        raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        sent = headers if headers is not None else (JSON if raw is not None else {})
        sent = {"Accept-Encoding": "identity", **self._auth(), **sent}
        found = self.http.request(method, self.base + path, content=raw, headers=sent, **more)
        assert found.http_version == ("HTTP/2" if self.version == "2" else "HTTP/1.1")
        return Answer(found.status_code, dict(found.headers), found.content)

    def _auth(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}

    # ---- shorthands ----

    def write(self, topic: str, *data: Any, **more: Any) -> Any:
        answer = self("POST", f"/v0/topics/{topic}", {"records": [{"data": one} for one in data], **more})
        assert answer.status in (200, 201), answer.raw
        return answer.body

    def session(self, topics: dict[str, Any], **options: Any) -> str:
        answer = self("POST", "/v0/watch", {"topics": topics, **options})
        assert answer.status == 200, answer.raw
        return str(answer.body["stream_url"])

    def events(self, url: str, headers: dict[str, str] | None = None) -> Events:
        return Events(self, url, {**self._auth(), **(headers or {})})

    def watch(self, topics: dict[str, Any], **options: Any) -> Events:
        return self.events(self.session(topics, **options))

    def socket(self) -> Socket:
        return Socket(self.port, self.key)


class Event(NamedTuple):
    name: str  # "" for a comment or the retry block
    id: str
    text: str

    @property
    def data(self) -> Any:
        return json.loads(self.text)


class Events:
    """A stream that is read by a thread of its own, frame by frame, and strictly."""

    def __init__(self, web: Web, url: str, headers: dict[str, str]) -> None:
        two = web.version == "2"
        # A stream is silent for a heartbeat at most.
        self._client = httpx.Client(
            http1=not two, http2=two, timeout=httpx.Timeout(WAIT_S, read=SILENCE_S), trust_env=False
        )
        request = self._client.build_request("GET", web.base + url, headers=headers)
        self.answer = self._client.send(request, stream=True)
        self.status = self.answer.status_code
        self._found: queue.Queue[Event | None] = queue.Queue()
        self.last_id = ""
        if self.status == 200:
            threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        rest = b""
        try:
            for piece in self.answer.iter_raw():
                *frames, rest = (rest + piece).split(b"\n\n")
                for one in frames:
                    self._found.put(_parsed(one))
        except (httpx.HTTPError, httpx.StreamError, OSError, RuntimeError, KeyError):
            pass
        self._found.put(None)

    def raw(self, timeout: float = WAIT_S) -> Event | None:
        """The next frame, comments included; None at the end."""
        found = self._found.get(timeout=timeout)
        if found is not None and found.id:
            self.last_id = found.id
        return found

    def next(self, timeout: float = WAIT_S) -> Event:
        """The next named frame."""
        end = time.monotonic() + timeout
        while True:
            found = self.raw(max(0.01, end - time.monotonic()))
            assert found is not None, "the stream has ended"
            if found.name:
                return found

    def names(self, count: int) -> list[str]:
        return [self.next().name for _ in range(count)]

    def records(self, count: int) -> list[Any]:
        """The data of the next so many records."""
        found: list[Any] = []
        while len(found) < count:
            event = self.next()
            if event.name == "record":
                found += [record["data"] for record in event.data["records"]]
        return found

    def quiet(self, seconds: float = 0.3) -> bool:
        """Nothing named comes."""
        try:
            self.next(seconds)
        except (queue.Empty, AssertionError):
            return True
        return False

    def rest(self) -> Iterator[Event]:
        while (found := self.raw()) is not None:
            yield found

    def refused(self) -> Answer:
        raw = self.answer.read()
        self.close()
        return Answer(self.status, dict(self.answer.headers), raw)

    def close(self) -> None:
        # The response first: its socket, which the reading thread waits for, goes with it.
        stream = self.answer.extensions.get("network_stream")
        sock = stream.get_extra_info("socket") if stream is not None else None
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._client.close()

    def __enter__(self) -> Events:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _parsed(frame: bytes) -> Event:
    assert b"\r" not in frame
    lines = frame.decode().split("\n")
    if lines[0].startswith((":", "retry:")):
        assert len(lines) == 1
        return Event("", "", lines[0])
    fields = dict(line.split(": ", 1) for line in lines)
    order = [line.split(":", 1)[0] for line in lines]
    assert order in (["id", "event", "data"], ["event", "data"]), order
    return Event(fields["event"], fields.get("id", ""), fields["data"])


class Socket:
    """A WebSocket client."""

    def __init__(self, port: int, key: str = "", path: str = "/v0/ws", *, buffer: int = 0) -> None:
        self._sock = socket.socket()
        if buffer:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self._sock.settimeout(WAIT_S)
        self._sock.connect(("127.0.0.1", port))
        self._ws = WSConnection(ConnectionType.CLIENT)
        headers = [(b"Authorization", f"Bearer {key}".encode())] if key else []
        self._sock.sendall(self._ws.send(Request(host="127.0.0.1", target=path, extra_headers=headers)))
        self._messages: list[Any] = []
        self._text = ""
        self.status = 0
        self.closed: int | None = None
        self.pongs = 0
        while not self.status:
            self._receive()

    def _receive(self) -> None:
        data = self._sock.recv(1 << 18)
        assert data or (self.status and self.closed is None), "the socket has ended"
        self._ws.receive_data(data or None)
        for event in self._ws.events():
            if isinstance(event, AcceptConnection):
                self.status = 101
            elif isinstance(event, RejectConnection):
                self.status = event.status_code
            elif isinstance(event, TextMessage):
                self._text += event.data
                if event.message_finished:
                    self._messages.append(json.loads(self._text))
                    self._text = ""
            elif isinstance(event, Pong):
                self.pongs += 1
            elif isinstance(event, CloseConnection):
                self.closed = int(event.code)

    def send(self, body: Any) -> None:
        text = body if isinstance(body, str) else json.dumps(body)
        self._sock.sendall(self._ws.send(Message(data=text)))

    def send_bytes(self, data: bytes) -> None:
        self._sock.sendall(self._ws.send(Message(data=data)))

    def ping(self) -> None:
        self._sock.sendall(self._ws.send(WsPing()))
        while not self.pongs:
            self._receive()

    def next(self) -> Any:
        while not self._messages:
            assert self.closed is None, "the socket is closed"
            self._receive()
        return self._messages.pop(0)

    def ask(self, body: dict[str, Any]) -> Any:
        """The reply to it; what comes before is dropped."""
        self.send(body)
        while (found := self.next()).get("request_id") != body.get("request_id") or "request_id" not in found:
            pass
        return found

    def until(self, op: str) -> Any:
        while (found := self.next())["op"] != op:
            pass
        return found

    def until_closed(self) -> int:
        while self.closed is None:
            self._receive()
        return self.closed

    def close(self) -> None:
        self._sock.close()

    def __enter__(self) -> Socket:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
