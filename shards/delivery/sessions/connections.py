"""All connections of the shard. Promise: their number is bounded, those of this machine and those of others each by
itself; strangers do not get in, and one that sends half a message, or no hello, does not stay.
"""

from __future__ import annotations

import socket

from topicd.clock import SystemClock
from topicd.errors import Forbidden, InvalidRequest, Throttled, TopicdError, Unauthorized
from topicd.ipc.protocol.unixsock import peer_credentials
from topicd.shards.delivery.place import Place
from topicd.shards.delivery.sessions.connection import Connection
from topicd.shards.delivery.sessions.strangers import PATIENCE_S, Strangers
from topicd.tokens import Rights, TokenFile

_STALLED_MESSAGE_S = 30.0
_SLOWEST_BYTES_S = 1 << 20  # a long message may take longer, if it comes at this pace


class Connections:
    def __init__(self, place: Place) -> None:
        self._place = place
        self.open: set[Connection] = set()
        self.strangers = Strangers(place)
        self._remote = 0  # of those that are open
        self.tokens: TokenFile | None = None
        self.tcp_ports: list[int] = []

    def admit(self, connection: Connection, sock: socket.socket) -> TopicdError | None:
        limit = self._place.settings.max_connections
        local = sock.family == socket.AF_UNIX
        if (len(self.open) - self._remote if local else self._remote) >= limit:
            return Throttled(f"{limit} connections are open already", limit="max_connections", retry_after_ms=1_000)
        if local:
            _, uid, _ = peer_credentials(sock)
            if uid not in self._place.settings.uids:
                return Forbidden(f"uid {uid} may not connect; see the setting allowed_uids", uid=uid)
        else:
            connection.needs_token = True
            self._remote += 1
        self.open.add(connection)
        return None

    def forget(self, connection: Connection) -> None:
        """It is gone."""
        if connection in self.open:
            self.open.remove(connection)
            self._remote -= connection.needs_token
        if connection.guest is not None:
            self.strangers.leave(connection.guest)

    def authorize(self, secret: str | None) -> Rights:
        """The rights of a connection that no user id vouches for."""
        if self.tokens is None:
            raise Unauthorized("this daemon knows no tokens")
        try:
            return self.tokens.authorize(secret, SystemClock().now_ms())
        except Unauthorized as exc:
            self.strangers.say(exc.message)
            raise

    def close_stalled(self) -> None:
        """Once a second."""
        now = self._place.clock.monotonic()
        self.strangers.tick()
        for connection in list(self.open):
            patience = _STALLED_MESSAGE_S + connection.incomplete_bytes / _SLOWEST_BYTES_S
            if connection.needs_token and not connection.greeted:
                patience = PATIENCE_S
            if connection.waiting_since and now - connection.waiting_since > patience:
                connection.refused(0, InvalidRequest(f"no complete message within {patience:.0f} s"))
                connection.close()
            else:
                connection.relax()

    def close(self) -> None:
        for connection in list(self.open):
            connection.close()
