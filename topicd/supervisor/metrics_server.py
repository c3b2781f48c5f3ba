"""Metrics and health over HTTP/1.1 on a Unix socket and, if wanted, a loopback port: one GET per connection.

Promise: however a client behaves, memory stays bounded and the loop never waits for it. A connection has PATIENCE_S
for its request and its answer; when all places are taken, the oldest one makes room. On the port only requests to a
name of this machine are answered: a web page whose name was made to mean 127.0.0.1 learns nothing.
"""

from __future__ import annotations

import logging
import re
import selectors
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple

from topicd.config import ConfigError
from topicd.ipc.protocol import unixsock
from topicd.limits import KIB

LOOPBACK = "127.0.0.1"
_OWN_NAMES = frozenset({b"localhost", b"127.0.0.1", b"[::1]"})
MAX_CONNECTIONS = 32
MAX_REQUEST = 8 * KIB
PATIENCE_S = 10.0
_BACKLOG = 16
_ACCEPTS = 16  # per turn
_PIECE = 4 * KIB
_PORT = re.compile(rb":\d*$")
_PLAIN = "text/plain; charset=utf-8"

log = logging.getLogger(__name__)


class Page(NamedTuple):
    status: HTTPStatus
    body: str
    content_type: str = _PLAIN


Pages = dict[str, Callable[[], Page]]  # path -> what is there


class _Visit:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.request = bytearray()
        self.out = memoryview(b"")
        self.came_at = time.monotonic()


class MetricsServer:
    def __init__(self, selector: selectors.BaseSelector, pages: Pages) -> None:
        self._selector = selector
        self._pages = pages
        self._listeners: list[socket.socket] = []
        self._paused: list[socket.socket] = []
        self._visits: dict[int, _Visit] = {}  # by descriptor, oldest first
        self._path: Path | None = None

    def open(self, path: Path, mode: int, port: int) -> None:
        """Port 0: the socket only."""
        self._listen(unixsock.listen(path, mode, _BACKLOG))
        self._path = path
        if port:
            try:
                self._listen(_loopback(port))
            except OSError as exc:
                raise ConfigError(f"metrics_port: cannot listen on {LOOPBACK}:{port}: {exc.strerror}") from None

    def _listen(self, listener: socket.socket) -> None:
        self._listeners.append(listener)
        self._selector.register(listener, selectors.EVENT_READ, lambda mask: self._accept(listener))

    def close(self) -> None:
        for visit in list(self._visits.values()):
            self._drop(visit)
        for listener in self._listeners:
            if listener not in self._paused:
                self._selector.unregister(listener)
            listener.close()
        self._listeners, self._paused = [], []
        if self._path is not None:
            unixsock.remove(self._path)
            self._path = None

    def tick(self) -> None:
        """Once a second: slow visitors go, and a listener that failed is tried again."""
        oldest = time.monotonic() - PATIENCE_S
        for visit in [visit for visit in self._visits.values() if visit.came_at < oldest]:
            self._drop(visit)
        paused, self._paused = self._paused, []
        for listener in paused:
            self._listeners.remove(listener)
            self._listen(listener)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTS):
            try:
                sock, _ = listener.accept()
            except BlockingIOError:
                return
            except OSError as exc:
                # Out of descriptors, for example: the listener stays readable, so look away until tick().
                log.warning("metrics connection not accepted", extra={"error": exc})
                self._selector.unregister(listener)
                self._paused.append(listener)
                return
            self._welcome(sock)

    def _welcome(self, sock: socket.socket) -> None:
        if len(self._visits) >= MAX_CONNECTIONS:
            self._drop(next(iter(self._visits.values())))
        sock.setblocking(False)
        visit = self._visits[sock.fileno()] = _Visit(sock)
        self._selector.register(sock, selectors.EVENT_READ, lambda mask: self._serve(visit))

    def _serve(self, visit: _Visit) -> None:
        try:
            if visit.out:
                self._send(visit)
            else:
                self._receive(visit)
        except BlockingIOError:
            pass
        except OSError:
            self._drop(visit)

    def _receive(self, visit: _Visit) -> None:
        piece = visit.sock.recv(_PIECE)
        visit.request += piece
        if b"\r\n\r\n" in visit.request:
            page = self._page(bytes(visit.request), anybody=visit.sock.family != socket.AF_UNIX)
        elif len(visit.request) > MAX_REQUEST:
            page = Page(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the request is too long\n")
        elif not piece:
            self._drop(visit)
            return
        else:
            return
        visit.out = memoryview(_response(page, body=not visit.request.startswith(b"HEAD ")))
        self._selector.modify(visit.sock, selectors.EVENT_WRITE, self._selector.get_key(visit.sock).data)
        self._send(visit)

    def _send(self, visit: _Visit) -> None:
        while visit.out:
            visit.out = visit.out[visit.sock.send(visit.out) :]
        with suppress(OSError):
            # What the client still says is of no interest, but an unread byte would turn the end into a reset.
            visit.sock.shutdown(socket.SHUT_WR)
            visit.sock.recv(_PIECE)
        self._drop(visit)

    def _page(self, request: bytes, *, anybody: bool) -> Page:
        """anybody: a web page in this machine's browser could have sent it."""
        words = request.split(b"\r\n", 1)[0].split()
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return Page(HTTPStatus.BAD_REQUEST, "this is no HTTP/1.1 request\n")
        if anybody and not _to_this_machine(request):
            return Page(HTTPStatus.MISDIRECTED_REQUEST, "this port answers to localhost and 127.0.0.1 only\n")
        make = self._pages.get(words[1].split(b"?", 1)[0].decode("latin-1"))
        if words[0] not in (b"GET", b"HEAD") or make is None:
            return Page(HTTPStatus.NOT_FOUND, f"there is {', '.join(f'GET {path}' for path in self._pages)}\n")
        try:
            return make()
        except Exception:
            log.exception("metrics failed")
            return Page(HTTPStatus.INTERNAL_SERVER_ERROR, "the supervisor's log says what failed\n")

    def _drop(self, visit: _Visit) -> None:
        if self._visits.pop(visit.sock.fileno(), None) is not None:
            self._selector.unregister(visit.sock)
            visit.sock.close()


def _to_this_machine(request: bytes) -> bool:
    """By its Host; a request without one was made by hand, not by a browser."""
    hosts = [
        value.strip().lower()
        for name, colon, value in (line.partition(b":") for line in request.split(b"\r\n\r\n")[0].split(b"\r\n")[1:])
        if colon and name.lower() == b"host"
    ]
    return all(_PORT.sub(b"", host) in _OWN_NAMES for host in hosts)


def _loopback(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((LOOPBACK, port))
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def _response(page: Page, *, body: bool = True) -> bytes:
    """Without its body for who asked with HEAD."""
    content = page.body.encode()
    head = [
        f"HTTP/1.1 {page.status.value} {page.status.phrase}",
        f"Content-Type: {page.content_type}",
        f"Content-Length: {len(content)}",
        "Cache-Control: no-store",
        "Connection: close",
    ]
    return "\r\n".join([*head, "", ""]).encode() + (content if body else b"")
