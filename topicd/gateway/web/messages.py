"""A request and its answer, whatever the version of HTTP. Promise: what an application is given has been received whole
and within its limits; what it answers is sent whole, or the peer is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol
from urllib.parse import unquote_plus, unquote_to_bytes

Headers = list[tuple[bytes, bytes]]

JSON = b"application/json"
LINGER_S = 1.0  # a connection that ends is kept for so long, so that its last words arrive


LISTS = (b"accept", b"accept-encoding")  # headers that may come in several lines, as one list


def collect(headers: dict[bytes, bytes], name: bytes, value: bytes) -> None:
    """One more header, its name in lower case; of those that come twice the first counts, unless they are a list."""
    if name not in headers:
        headers[name] = value
    elif name in LISTS:
        headers[name] += b", " + value


class Head:
    """Everything of a request before its body."""

    __slots__ = ("headers", "method", "path", "peer", "query", "version")

    def __init__(self, method: str, target: bytes, headers: dict[bytes, bytes], version: str, peer: str) -> None:
        path, _, query = target.partition(b"?")
        self.method = method
        self.path = path
        self.query = query
        self.headers = headers  # made by `collect`
        self.version = version  # "1.0", "1.1" or "2"
        self.peer = peer

    def segments(self) -> list[str]:
        """The path's parts, percent-decoded; bytes that are no UTF-8 become signs that no name has."""
        if b"%" not in self.path:
            return self.path.decode("utf-8", "replace").split("/")[1:]
        return [unquote_to_bytes(part).decode("utf-8", "replace") for part in self.path.split(b"/")[1:]]

    def params(self) -> dict[str, str]:
        """The query, form-decoded; of those that come twice the first."""
        found: dict[str, str] = {}
        if not self.query:
            return found
        for pair in self.query.decode("utf-8", "replace").split("&"):
            name, _, value = pair.partition("=")
            found.setdefault(unquote_plus(name), unquote_plus(value))
        return found


class Reply:
    """A whole answer. `close`: the connection is of no use afterwards (HTTP/1.1)."""

    __slots__ = ("body", "close", "content_type", "delay", "headers", "status")

    def __init__(
        self,
        status: int,
        body: bytes = b"",
        headers: Headers | None = None,
        *,
        content_type: bytes = JSON,
        close: bool = False,
        delay: float = 0.0,
    ) -> None:
        self.status = status
        self.body = body
        self.headers = headers or []
        self.content_type = content_type
        self.close = close
        self.delay = delay  # seconds to wait before it is sent


class Stream(Protocol):
    """An answer without an end. What is written goes out at once; `writable` turns false when the peer does not keep
    up, and `on_writable` is called when it does again. `gone` is done when the peer has left or the stream is over."""

    gone: asyncio.Future[None]
    on_writable: Callable[[], None]

    @property
    def writable(self) -> bool: ...

    @property
    def buffered(self) -> int:
        """Bytes that wait for the peer."""
        ...

    def write(self, data: bytes) -> None: ...

    def close(self) -> None:
        """The end, behind what was written."""
        ...

    def abort(self) -> None:
        """The end, now."""
        ...

    def send_at_once(self) -> None:
        """Of an upgraded connection: `writable` is false as long as anything waits."""
        ...

    def pause_reading(self, paused: bool) -> None:
        """Of an upgraded connection."""
        ...


class Exchange(Protocol):
    """The way back to whoever asked. An answer is a Reply that the application returns, or one of these."""

    def room(self, size: int) -> Awaitable[None] | None:
        """Before an answer of about that size is made: None, or something to wait for until others of the connection
        have been taken. The room of one request; 0 gives it back, and its answer does."""
        ...

    def stream(self, headers: Headers) -> Stream: ...

    def upgrade(self, headers: Headers, receive: Callable[[bytes], None]) -> Stream:
        """Of an HTTP/1.1 connection: from now on bytes, both ways."""
        ...


class Accepted(Protocol):
    """A request whose head was found good. `run` gets its body; None: it was answered by other means."""

    body_limit: int

    def run(self, body: bytes, exchange: Exchange) -> Awaitable[Reply | None]: ...

    def over(self) -> None:
        """It has ended, however that came about. Called once."""
        ...


class Application(Protocol):
    def begin(self, head: Head) -> Accepted | Reply:
        """Judges a head: an answer at once, or what is done when its body is here."""
        ...

    def malformed(self, message: str) -> Reply:
        """The answer to bytes that are no request."""
        ...

    def too_large(self, limit: int) -> Reply: ...

    def crowded(self) -> Reply:
        """There is no room for the body at present."""
        ...


class BodyRoom:
    """Bytes of bodies that wait to be complete, of all connections together."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.used = 0

    def take(self, size: int) -> bool:
        if self.used + size > self._limit:
            return False
        self.used += size
        return True

    def give_back(self, size: int) -> None:
        self.used -= size


def no_op() -> None:
    return


STATUS_TEXT: Mapping[int, bytes] = {
    101: b"Switching Protocols",
    200: b"OK",
    201: b"Created",
    204: b"No Content",
    304: b"Not Modified",
    400: b"Bad Request",
    401: b"Unauthorized",
    403: b"Forbidden",
    404: b"Not Found",
    405: b"Method Not Allowed",
    406: b"Not Acceptable",
    409: b"Conflict",
    413: b"Content Too Large",
    415: b"Unsupported Media Type",
    422: b"Unprocessable Content",
    429: b"Too Many Requests",
    500: b"Internal Server Error",
    503: b"Service Unavailable",
}


BODILESS = (204, 304)  # what has no body has no length and no type


def consumed(task: asyncio.Task[Any]) -> None:
    """For tasks whose outcome nobody waits for; they report their own failures."""
    if not task.cancelled():
        task.exception()
