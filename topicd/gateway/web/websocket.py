"""A WebSocket on an HTTP/1.1 connection; what comes is parsed by wsproto. Promise: messages arrive whole and within
their limit, at most WAITING messages wait to be sent, and whoever sends one has room for it before it is made.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import struct
from collections import deque
from collections.abc import Callable

from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from topicd.gateway.web.messages import BodyRoom, Head, Headers, Stream

WAITING = 4
_EVENT = 3  # messages that one event of a subscription may be
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_CLOSE_S = 2.0
NORMAL, GOING_AWAY, PROTOCOL_ERROR, POLICY, TOO_BIG, INTERNAL = 1000, 1001, 1002, 1008, 1009, 1011


def accepts(head: Head) -> Headers | None:
    """The headers that accept an upgrade; None if it is none."""
    given = head.headers
    wanted = [word.strip() for word in given.get(b"connection", b"").lower().split(b",")]
    key = given.get(b"sec-websocket-key", b"")
    try:
        sound = len(base64.b64decode(key, validate=True)) == 16
    except ValueError:
        sound = False
    if (
        head.version != "1.1"
        or head.method != "GET"
        or b"upgrade" not in wanted
        or given.get(b"upgrade", b"").lower() != b"websocket"
        or given.get(b"sec-websocket-version") != b"13"
        or not sound
    ):
        return None
    answer = base64.b64encode(hashlib.sha1(key + _GUID, usedforsecurity=False).digest())
    return [(b"Upgrade", b"websocket"), (b"Connection", b"Upgrade"), (b"Sec-WebSocket-Accept", answer)]


def text_frame(text: bytes) -> bytes:
    """A whole message of UTF-8, as a server sends it."""
    size = len(text)
    if size < 126:
        return struct.pack("!BB", 0x81, size) + text
    if size < 1 << 16:
        return struct.pack("!BBH", 0x81, 126, size) + text
    return struct.pack("!BBQ", 0x81, 127, size) + text


class WebSocket:
    """`on_message` gets whole messages (None: one that was no text), `on_room` is called when something may be sent."""

    def __init__(self, room: BodyRoom, limit: int) -> None:
        self._room = room
        self._limit = limit
        self._frames = Connection(ConnectionType.SERVER)
        self._stream: Stream | None = None
        self._pieces: list[str] = []
        self._size = 0
        self._out: deque[bytes] = deque()
        self._senders: deque[asyncio.Future[None]] = deque()
        self._closing = False
        self.on_message: Callable[[str | None], None] = lambda message: None
        self.on_room: Callable[[], None] = lambda: None

    def open(self, stream: Stream) -> None:
        self._stream = stream
        stream.send_at_once()
        stream.on_writable = self._drain

    @property
    def gone(self) -> asyncio.Future[None]:
        if self._stream is None:
            raise RuntimeError("the socket is not open")
        return self._stream.gone

    def pause(self, paused: bool) -> None:
        """Whether anything more is read."""
        if self._stream is not None:
            self._stream.pause_reading(paused)

    # ---- what comes ----

    def receive(self, data: bytes) -> None:
        if self._closing:
            return
        try:
            self._frames.receive_data(data)
            for event in self._frames.events():
                self._take(event)
        except (RemoteProtocolError, LocalProtocolError, UnicodeDecodeError):
            self.close(PROTOCOL_ERROR)

    def _take(self, event: object) -> None:
        if isinstance(event, TextMessage):
            self._text(event.data, event.message_finished)
        elif isinstance(event, BytesMessage):
            if event.message_finished:
                self.on_message(None)
        elif isinstance(event, Ping):
            self._control(self._frames.send(event.response()))
        elif isinstance(event, CloseConnection):
            self._control(self._frames.send(event.response()))
            self._end()

    def _text(self, piece: str, finished: bool) -> None:
        size = len(piece)
        if self._size + size > self._limit or not self._room.take(size):
            self.close(TOO_BIG)
            return
        self._pieces.append(piece)
        self._size += size
        if finished:
            message = self._pieces[0] if len(self._pieces) == 1 else "".join(self._pieces)
            self._pieces, self._size = [], 0
            self.on_message(message)  # who takes it gives its room back

    def done(self, message: str) -> None:
        """A message that was worked off."""
        self._room.give_back(len(message))

    # ---- what goes ----

    @property
    def free(self) -> bool:
        """May one more message wait?"""
        return len(self._out) < WAITING and not self._closing

    @property
    def free_for_event(self) -> bool:
        return len(self._out) + _EVENT <= WAITING and not self._closing

    async def until_free(self) -> bool:
        """False: the socket is closed."""
        while not self._closing and (self._senders or not self.free):
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._senders.append(waiter)
            await waiter
            if self.free:
                break
        return not self._closing

    def send(self, frame: bytes) -> None:
        stream = self._stream
        if stream is None or self._closing:
            return
        if stream.writable and not self._out:
            stream.write(frame)
        else:
            self._out.append(frame)

    def _control(self, frame: bytes) -> None:
        """A pong or a close: they may pass others, and a peer that asks for many does not read them."""
        if self._stream is not None and self._stream.buffered < 1 << 16:
            self._stream.write(frame)

    def _drain(self) -> None:
        stream = self._stream
        while stream is not None and self._out and stream.writable:
            stream.write(self._out.popleft())
        for _ in range(min(len(self._senders), WAITING - len(self._out))):
            waiter = self._senders.popleft()
            if not waiter.done():
                waiter.set_result(None)
        if self.free_for_event:
            self.on_room()

    # ---- the end ----

    def close(self, code: int, last: bytes = b"") -> None:
        """Say so, behind a last message."""
        if self._closing or self._stream is None:
            return
        if last:
            self._stream.write(last)
        with contextlib.suppress(LocalProtocolError):
            self._stream.write(self._frames.send(CloseConnection(code=code)))
        self._end()

    def _end(self) -> None:
        self._closing = True
        self._out.clear()
        self._room.give_back(self._size)
        self._pieces, self._size = [], 0
        self.release()
        if self._stream is not None:
            self._stream.close()
            asyncio.get_running_loop().call_later(_CLOSE_S, self._stream.abort)

    def release(self) -> None:
        """Nobody waits any more."""
        self._closing = True
        for waiter in self._senders:
            if not waiter.done():
                waiter.set_result(None)
        self._senders.clear()
