"""One request of an HTTP/2 connection and its answer. Promise: what waits to be sent is held as it came, not copied; a
stream that was left or has ended takes nothing more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol

from topicd.gateway.web.messages import Accepted, Headers, Reply, no_op
from topicd.limits import KIB

STREAM_HIGH = 256 * KIB  # bytes that wait for a window before a stream is not writable any more
STREAM_LOW = 16 * KIB  # the same on a connection that is full
_FORBIDDEN = (b"connection", b"keep-alive", b"transfer-encoding", b"upgrade")


class Carrier(Protocol):
    """What a stream needs of the connection that carries it."""

    paused: bool

    @property
    def full(self) -> bool: ...

    def hold(self, stream: Http2Stream, data: bytes) -> None: ...

    def flush_soon(self, stream: Http2Stream) -> None: ...

    def send_headers(self, stream: Http2Stream, headers: Headers, *, end: bool) -> None: ...

    def reset(self, stream: Http2Stream) -> None: ...

    async def promise(self, stream: Http2Stream, size: int) -> None: ...

    def keep(self, stream: Http2Stream) -> None: ...


class Http2Stream:
    def __init__(self, connection: Carrier, number: int) -> None:
        self._connection = connection
        self.number = number
        self.without_body = False  # HEAD: the answer is its headers
        self.accepted: Accepted | None = None
        self.reply: Reply | None = None
        self.body: list[bytes] = []
        self.size = 0
        self.task: asyncio.Task[None] | None = None
        self.out: deque[memoryview] = deque()
        self.buffered = 0  # bytes of `out`
        self.promised = 0  # bytes of an answer that is being made
        self.ended = False  # nothing follows what is in `out`
        self.streaming = False
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.on_writable: Callable[[], None] = no_op

    @property
    def writable(self) -> bool:
        high = STREAM_LOW if self._connection.full else STREAM_HIGH
        return self.buffered < high and not self._connection.paused and not self.gone.done()

    def put(self, data: bytes) -> None:
        self.out.append(memoryview(data))
        self.buffered += len(data)

    def take(self, most: int) -> bytes:
        """Off the front of what waits."""
        if self.out and len(self.out[0]) >= most:
            piece = bytes(self.out[0][:most])
            self._advance(most)
        else:
            pieces: list[memoryview] = []
            while self.out and most:
                pieces.append(self.out[0][:most])
                most -= len(pieces[-1])
                self._advance(len(pieces[-1]))
            piece = b"".join(pieces)
        self.buffered -= len(piece)
        return piece

    def _advance(self, size: int) -> None:
        if size == len(self.out[0]):
            self.out.popleft()
        else:
            self.out[0] = self.out[0][size:]

    def clear(self) -> int:
        """Nothing waits any more; how much did."""
        size, self.buffered = self.buffered, 0
        self.out.clear()
        return size

    # ---- as Stream ----

    def abort(self) -> None:
        self._connection.reset(self)

    def write(self, data: bytes) -> None:
        if not self.gone.done() and data:
            self._connection.hold(self, data)
            self._connection.flush_soon(self)

    def close(self) -> None:
        if not self.gone.done():
            self.gone.set_result(None)
            self.ended = True
            self._connection.flush_soon(self)

    def send_at_once(self) -> None:
        raise NotImplementedError("HTTP/2 connections are not upgraded")

    def pause_reading(self, paused: bool) -> None:
        raise NotImplementedError("HTTP/2 connections are not upgraded")

    # ---- as Exchange ----

    def room(self, size: int) -> Awaitable[None] | None:
        self._connection.keep(self)
        return self._connection.promise(self, size) if size else None

    def stream(self, headers: Headers) -> Http2Stream:
        self.streaming = True
        self._connection.send_headers(self, [(b":status", b"200"), *allowed(headers)], end=False)
        return self

    def upgrade(self, headers: Headers, receive: Callable[[bytes], None]) -> Http2Stream:
        raise NotImplementedError("HTTP/2 connections are not upgraded")


def allowed(headers: Headers) -> Headers:
    """As HTTP/2 has them: lower case, and none that speaks of the connection."""
    return [(name.lower(), value) for name, value in headers if name.lower() not in _FORBIDDEN]
