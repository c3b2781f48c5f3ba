"""Connections as they come in: counted, and given to HTTP/1.1 or HTTP/2 by their first bytes. Promise: the 24 bytes of
the preface open HTTP/2, anything else is HTTP/1.1; a connection that says nothing is closed.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

from topicd.gateway.web.http1 import HEAD_S, Http1
from topicd.gateway.web.messages import Application, BodyRoom
from topicd.gateway.web.turns import Turns

if TYPE_CHECKING:
    from topicd.gateway.web.http2 import Http2

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_IDLE_S = 30


class Door:
    """All connections of the process."""

    def __init__(self, app: Application, room: BodyRoom, limit: int) -> None:
        self.app = app
        self.room = room
        self.limit = limit
        self.turns = Turns(asyncio.get_running_loop())
        self.refused = 0
        self.open: set[Http1 | Http2] = set()
        self.fresh: set[Fresh] = set()

    def welcome(self) -> Fresh:
        return Fresh(self)

    @property
    def full(self) -> bool:
        return len(self.open) + len(self.fresh) > self.limit

    def ended(self, connection: Any) -> None:
        self.open.discard(connection)

    def shutdown(self) -> None:
        for fresh in list(self.fresh):
            fresh.close()
        for connection in list(self.open):
            connection.shutdown()


class Fresh(asyncio.Protocol):
    """A connection that has not said what it speaks."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._transport: asyncio.Transport | None = None
        self._data = b""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # A peer that vanished without a word is noticed also while nothing is sent.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _IDLE_S // 3)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        self._door.fresh.add(self)
        if self._door.full:
            self._door.refused += 1
            self.close()
            return
        self._timer = asyncio.get_running_loop().call_later(HEAD_S, self.close)

    def data_received(self, data: bytes) -> None:
        self._data += data
        if self._data[: len(PREFACE)] == PREFACE[: len(self._data)]:
            if len(self._data) < len(PREFACE):
                return
            from topicd.gateway.web.http2 import Http2

            self._hand_over(Http2(self._door.app, self._door.room, self._door.turns, self._door.ended))
        else:
            self._hand_over(Http1(self._door.app, self._door.room, self._door.turns, self._door.ended))

    def _hand_over(self, protocol: Http1 | Http2) -> None:
        transport, data = self._transport, self._data
        if transport is None:
            return
        self._leave()
        self._door.open.add(protocol)
        transport.set_protocol(protocol)  # type: ignore[arg-type]
        protocol.connection_made(transport)
        protocol.data_received(data)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _leave(self) -> None:
        self._door.fresh.discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._transport = None
