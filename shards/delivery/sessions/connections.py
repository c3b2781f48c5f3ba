"""All connections of the shard. Promise: their number is bounded, strangers do not get in, and one that sends half a
message, or no hello, does not stay.
"""

from __future__ import annotations

import logging
import socket

from topicd.clock import SystemClock
from topicd.errors import Forbidden, InvalidRequest, Throttled, TopicdError, Unauthorized
from topicd.ipc.protocol.unixsock import peer_credentials
from topicd.shards.delivery.place import Place
from topicd.shards.delivery.sessions.connection import Connection
from topicd.tokens import Rights, TokenFile

log = logging.getLogger(__name__)

_STALLED_MESSAGE_S = 30.0
_SLOWEST_BYTES_S = 1 << 20  # a long message may take longer, if it comes at this pace


class Connections:
    def __init__(self, place: Place) -> None:
        self._place = place
        self.open: set[Connection] = set()
        self.tokens: TokenFile | None = None
        self.tcp_ports: list[int] = []

    def admit(self, connection: Connection, sock: socket.socket) -> TopicdError | None:
        limit = self._place.settings.max_connections
        if len(self.open) >= limit:
            return Throttled(f"{limit} connections are open already", limit="max_connections", retry_after_ms=1_000)
        if sock.family == socket.AF_UNIX:
            _, uid, _ = peer_credentials(sock)
            if uid not in self._place.settings.uids:
                return Forbidden(f"uid {uid} may not connect; see the setting allowed_uids", uid=uid)
        else:
            connection.needs_token = True
        self.open.add(connection)
        return None

    def authorize(self, secret: str | None) -> Rights:
        """The rights of a connection that no user id vouches for."""
        if self.tokens is None:
            raise Unauthorized("this daemon knows no tokens")
        try:
            return self.tokens.authorize(secret, SystemClock().now_ms())
        except Unauthorized as exc:
            log.warning("connection refused", extra={"reason": exc.message})
            raise

    def close_stalled(self) -> None:
        """Once a second."""
        now = self._place.clock.monotonic()
        for connection in list(self.open):
            patience = _STALLED_MESSAGE_S + connection.incomplete_bytes / _SLOWEST_BYTES_S
            if connection.waiting_since and now - connection.waiting_since > patience:
                connection.refused(0, InvalidRequest(f"no complete message within {patience:.0f} s"))
                connection.close()
            else:
                connection.relax()

    def close(self) -> None:
        for connection in list(self.open):
            connection.close()
