"""All connections of the shard. Promise: their number is bounded, those of this machine and those of others each by
itself; strangers do not get in, and one that sends half a message, or no hello, or does not read what waits for it,
does not stay.
"""

from __future__ import annotations

import logging
import os
import socket

from topicd.clock import SystemClock
from topicd.errors import InvalidRequest, Throttled, TopicdError, Unauthorized
from topicd.ipc.protocol.unixsock import not_welcome, peer_credentials
from topicd.shards.delivery.place import Place
from topicd.shards.delivery.sessions.connection import Connection
from topicd.shards.delivery.sessions.strangers import PATIENCE_S, Strangers
from topicd.tokens import Rights, TokenFile

log = logging.getLogger(__name__)

_STALLED_MESSAGE_S = 30.0
_UNREAD_S = 30.0  # without taking a byte of what waits for it
_LAST_WORDS_S = 5.0
_SLOWEST_BYTES_S = 1 << 20  # a long message may take longer, if it comes at this pace


def _is_shard(pid: int) -> bool:
    """Another child of the same supervisor, which asks on its own behalf."""
    if pid == os.getpid():
        return False
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return int(stat.read().rpartition(b")")[2].split()[1]) == os.getppid()
    except (OSError, ValueError, IndexError):
        return False


def peer_name(sock: socket.socket) -> str:
    try:
        host, port, *_ = sock.getpeername()
    except OSError:
        return "another machine"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Connections:
    def __init__(self, place: Place) -> None:
        self._place = place
        self.open: set[Connection] = set()
        self.strangers = Strangers(place)
        self.cut_off = 0  # so many did not read what waited for them
        self._remote = 0  # of those that are open
        self._shards = 0  # of these, other shards and this one itself
        self.tokens: TokenFile | None = None
        self.tcp_ports: list[int] = []

    @property
    def clients(self) -> int:
        """Open ones that are not other shards."""
        return len(self.open) - self._shards

    def admit(self, connection: Connection, sock: socket.socket) -> TopicdError | None:
        limit = self._place.settings.max_connections
        local = sock.family == socket.AF_UNIX
        # Other shards take no client's place.
        pid, uid, _ = peer_credentials(sock) if local else (0, 0, 0)
        connection.trusted = connection.trusted or (local and _is_shard(pid))
        held = len(self.open) - self._remote - self._shards if local else self._remote
        if held >= limit and not connection.trusted:
            return Throttled(f"{limit} connections are open already", limit="max_connections", retry_after_ms=1_000)
        if local:
            connection.who = f"process {pid} of uid {uid}"
            if uid not in self._place.settings.uids and not connection.trusted:
                self.strangers.say(f"uid {uid} may not connect", connection.who)
                return not_welcome(uid, self._place.settings.uids)
            connection.uid = uid
        else:
            connection.needs_token = True
            connection.who = peer_name(sock)
            self._remote += 1
        connection.since_ms = self._place.clock.now_ms()
        self._shards += connection.trusted
        self.open.add(connection)
        return None

    def forget(self, connection: Connection) -> None:
        """It is gone."""
        if connection in self.open:
            self.open.remove(connection)
            self._remote -= connection.needs_token
            self._shards -= connection.trusted
        if connection.guest is not None:
            self.strangers.leave(connection.guest)

    def authorize(self, secret: str | None, who: str = "") -> Rights:
        """The rights of a connection that no user id vouches for."""
        if self.tokens is None:
            raise Unauthorized("this daemon knows no tokens")
        try:
            return self.tokens.authorize(secret, SystemClock().now_ms())
        except Unauthorized as exc:
            self.strangers.say(exc.message, who)
            raise

    def end_revoked(self) -> None:
        """The tokens were loaded anew: who was let in with one that is gone hears so and is let go."""
        now = SystemClock().now_ms()
        for connection in list(self.open):
            if connection.token and (self.tokens is None or not self.tokens.knows(connection.token, now)):
                name = connection.rights.name
                log.info("token revoked, connection ended", extra={"token": name, "peer": connection.who})
                connection.refused(0, Unauthorized(f"token {name!r} was revoked or has expired", token=name))
                connection.close()

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
            elif connection.unread_s(now) > _UNREAD_S:
                self._cut_off(connection)
            else:
                connection.relax()

    def _cut_off(self, connection: Connection) -> None:
        message = f"this connection has read nothing for {_UNREAD_S:.0f} s; read on from your cursor"
        if connection.cut_off(Throttled(message, limit="outbox_bytes", retry_after_ms=100), _LAST_WORDS_S):
            self.cut_off += 1
            log.warning("connection closed that does not read", extra={"seconds": round(_UNREAD_S)})

    def close(self) -> None:
        for connection in list(self.open):
            connection.close()
