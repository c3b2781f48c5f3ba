"""One request of an HTTP/1.1 connection, and the ways of answering it without an end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from topicd.gateway.web.messages import Accepted, Head, Headers, Reply, no_op


class Connection(Protocol):
    """What a stream needs of the connection that carries it."""

    paused: bool

    @property
    def buffered(self) -> int: ...

    def begin_stream(self, request: Incoming, headers: Headers) -> Http1Stream: ...

    def begin_raw(self, headers: Headers, receive: Callable[[bytes], None]) -> Http1Stream: ...

    def write(self, data: bytes) -> None: ...

    def abort(self) -> None: ...

    def limit_buffer(self, high: int) -> None: ...

    def pause_reading(self, paused: bool) -> None: ...

    def end_stream(self, tail: bytes) -> None: ...


class Incoming:
    """A request while it arrives."""

    __slots__ = ("accepted", "body", "head", "keep_alive", "reply", "size")

    def __init__(self) -> None:
        self.head: Head | None = None
        self.accepted: Accepted | None = None
        self.reply: Reply | None = None  # it is refused with this
        self.body: list[bytes] = []
        self.size = 0
        self.keep_alive = True


class Http1Exchange:
    __slots__ = ("_connection", "_request")

    def __init__(self, connection: Connection, request: Incoming) -> None:
        self._connection = connection
        self._request = request

    def room(self, size: int) -> None:
        return None  # one answer at a time

    def stream(self, headers: Headers) -> Http1Stream:
        return self._connection.begin_stream(self._request, headers)

    def upgrade(self, headers: Headers, receive: Callable[[bytes], None]) -> Http1Stream:
        return self._connection.begin_raw(headers, receive)


class Http1Stream:
    def __init__(self, connection: Connection, chunked: bool) -> None:
        self._connection = connection
        self._chunked = chunked
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.on_writable: Callable[[], None] = no_op

    @property
    def writable(self) -> bool:
        return not self._connection.paused and not self.gone.done()

    @property
    def buffered(self) -> int:
        return self._connection.buffered

    def abort(self) -> None:
        self._connection.abort()

    def send_at_once(self) -> None:
        self._connection.limit_buffer(0)

    def pause_reading(self, paused: bool) -> None:
        self._connection.pause_reading(paused)

    def write(self, data: bytes) -> None:
        if not self.gone.done() and data:
            self._connection.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def close(self) -> None:
        if not self.gone.done():
            self.gone.set_result(None)
            self._connection.end_stream(b"0\r\n\r\n" if self._chunked else b"")

    def lost(self) -> None:
        if not self.gone.done():
            self.gone.set_result(None)
