"""Connections from other machines, accepted one by one. Promise: one is counted from the moment it is accepted, through
the handshake of TLS, until it has shown a valid token; one too many is closed before it costs anything, and a lack of
descriptors ends nothing.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from topicd.shards.delivery.sessions.session import Session
from topicd.shards.delivery.sessions.strangers import PATIENCE_S, Guest, Strangers

log = logging.getLogger(__name__)

_ACCEPTS = 64  # per turn
_PAUSE_S = 1.0  # after an accept that failed


class Door:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listener: socket.socket,
        strangers: Strangers,
        session: Callable[[Guest], Session],
        context: ssl.SSLContext | None,
    ) -> None:
        self._loop = loop
        self._listener = listener
        self._strangers = strangers
        self._session = session
        self._context = context
        self._welcoming: set[asyncio.Task[None]] = set()
        self._again: asyncio.TimerHandle | None = None

    def open(self) -> None:
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener.fileno(), self._accept)

    def close(self) -> None:
        if self._again is not None:
            self._again.cancel()
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener.fileno())
            self._listener.close()
        for task in self._welcoming:
            task.cancel()

    def _accept(self) -> None:
        for _ in range(_ACCEPTS):
            try:
                sock, peer = self._listener.accept()
            except BlockingIOError:
                return
            except ConnectionError:
                continue  # it was gone before its turn came
            except OSError as exc:
                # Out of descriptors, for example: the listener stays readable, so look away for a moment.
                self._strangers.say(f"cannot be accepted: {exc}")
                self._loop.remove_reader(self._listener.fileno())
                self._again = self._loop.call_later(_PAUSE_S, self.open)
                return
            guest = self._strangers.admit(peer[0])
            if guest is None:
                sock.close()
                continue
            task = self._loop.create_task(self._welcome(sock, guest))
            self._welcoming.add(task)
            task.add_done_callback(self._welcoming.discard)

    async def _welcome(self, sock: socket.socket, guest: Guest) -> None:
        sock.setblocking(False)
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        patience = PATIENCE_S if self._context is not None else None

        def session() -> asyncio.BaseProtocol:
            return cast(asyncio.BaseProtocol, self._session(guest))

        try:
            await self._loop.connect_accepted_socket(session, sock, ssl=self._context, ssl_handshake_timeout=patience)
        except (OSError, EOFError, asyncio.CancelledError):  # ssl.SSLError and TimeoutError are OSErrors
            self._strangers.leave(guest)
            sock.close()
        except Exception:
            self._strangers.leave(guest)
            sock.close()
            log.exception("connection not taken")


def listen(host: str, port: int, backlog: int) -> list[socket.socket]:
    """A listening socket for each address that the host name stands for. Raises OSError."""
    found: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(
            socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        ):
            sock = socket.socket(family, kind, protocol)
            found.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(address)
            sock.listen(backlog)
    except OSError:
        for sock in found:
            sock.close()
        raise
    return found
