"""The supervisor's socket: HELLO with the shard map, PING, STATUS. Bytes: ipc/protocol/wire.py.

Promise: a client can only ask; however it behaves, memory stays bounded and the loop never waits for it.
A peer whose uid is not allowed gets one error. When all places are taken, whoever was idle longest makes
room.
"""

from __future__ import annotations

import logging
import selectors
import socket
import time
from collections.abc import Callable
from typing import Any

from topicd.errors import Internal, InvalidRequest, Throttled, TopicdError
from topicd.ipc.protocol import unixsock
from topicd.ipc.protocol import wire as protocol
from topicd.ipc.protocol.wire import OP_HELLO, Message, MessageReader
from topicd.limits import KIB, MAX_CONTROL_MESSAGE, MIB

MAX_CONNECTIONS = 256
IDLE_S = 10.0
MAX_REQUEST = 64 * KIB
MAX_OUTBOX = 2 * MIB
_NOTED, _NOTED_S = 1_024, 60.0  # users whose refusal is in the log, and for how long that is enough
_PIECE = 4 * KIB  # so many requests at most before others have their turn
_ACCEPTS = 64  # per turn: a burst of clients does not keep the loop from its children

Answer = Callable[[int, dict[str, Any]], dict[str, Any]]
log = logging.getLogger(__name__)


class Visitor:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.reader = MessageReader(MAX_REQUEST, MAX_REQUEST)
        self.out = bytearray()
        self.greeted = False
        self.closing = False
        self.active_at = time.monotonic()


class Front:
    def __init__(self, selector: selectors.BaseSelector, answer: Answer, uids: frozenset[int]) -> None:
        self._selector = selector
        self._answer = answer
        self._listener: socket.socket | None = None
        self._visitors: dict[int, Visitor] = {}
        self._noted: dict[int, float] = {}
        self._paused = False
        self.uids = uids

    def open(self, listener: socket.socket) -> None:
        self._listener = listener
        self._selector.register(listener, selectors.EVENT_READ, self._accept)

    def close(self) -> None:
        for visitor in list(self._visitors.values()):
            self._drop(visitor)
        if self._listener is not None:
            if not self._paused:
                self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None

    def resume(self) -> None:
        """Once a second: accept again after a failure."""
        if self._paused and self._listener is not None:
            self._paused = False
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def _accept(self, mask: int) -> None:
        for _ in range(_ACCEPTS):
            if self._listener is None or self._paused or not self._accept_one(self._listener):
                return

    def _accept_one(self, listener: socket.socket) -> bool:
        """False if nobody waits."""
        try:
            sock, _ = listener.accept()
        except BlockingIOError:
            return False
        except OSError as exc:
            # Out of descriptors, for example: the listener stays readable, so look away until resume().
            log.warning("connection not accepted", extra={"error": exc})
            self._selector.unregister(listener)
            self._paused = True
            return False
        sock.setblocking(False)
        visitor = Visitor(sock)
        self._visitors[sock.fileno()] = visitor
        self._selector.register(sock, selectors.EVENT_READ, lambda mask: self._serve(visitor, mask))
        pid, uid, _ = unixsock.peer_credentials(sock)
        if uid not in self.uids:
            self._note_refused(pid, uid)
            self._refuse(visitor, unixsock.not_welcome(uid, self.uids))
        elif len(self._visitors) > MAX_CONNECTIONS and not self._make_room(visitor):
            self._refuse(visitor, Throttled("too many connections", limit=MAX_CONNECTIONS, retry_after_ms=1000))
        return True

    def _note_refused(self, pid: int, uid: int) -> None:
        """Once a minute for each user."""
        now = time.monotonic()
        if now - self._noted.get(uid, -_NOTED_S) < _NOTED_S:
            return
        if len(self._noted) >= _NOTED:
            self._noted.clear()
        self._noted[uid] = now
        log.warning("connection refused", extra={"uid": uid, "pid": pid, "setting": "allowed_uids"})

    def _make_room(self, newcomer: Visitor) -> bool:
        idlest = min((s for s in self._visitors.values() if s is not newcomer), key=lambda s: s.active_at)
        if newcomer.active_at - idlest.active_at < IDLE_S:
            return False
        self._drop(idlest)
        return True

    def _serve(self, visitor: Visitor, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            self._flush(visitor)
        if mask & selectors.EVENT_READ and not visitor.closing:
            self._read(visitor)

    def _read(self, visitor: Visitor) -> None:
        try:
            piece = visitor.sock.recv(_PIECE)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if not piece:
            self._drop(visitor)
            return
        visitor.active_at = time.monotonic()
        try:
            for message in visitor.reader.feed(piece):
                visitor.out += self._reply(visitor, message)
                if len(visitor.out) > MAX_OUTBOX:
                    # It asks much faster than it reads.
                    self._drop(visitor)
                    return
        except InvalidRequest as exc:
            self._refuse(visitor, exc)
            return
        self._flush(visitor)

    def _reply(self, visitor: Visitor, message: Message) -> bytes:
        try:
            body = protocol.unpack_map(message.body) if len(message.body) else {}
            if message.op != OP_HELLO and not visitor.greeted:
                raise InvalidRequest("a connection begins with HELLO")
            found = self._answer(message.op, body)
            visitor.greeted = True
            raw = protocol.map_message(message.op | protocol.ANSWER, message.request_id, found)
            if len(raw) > MAX_CONTROL_MESSAGE:
                raise Internal("the answer is too long; ask with stats: false", bytes=len(raw))
            return raw
        except TopicdError as exc:
            return protocol.error_message(message.request_id, exc)
        except Exception:
            log.exception("request failed", extra={"op": message.op})
            return protocol.error_message(message.request_id, Internal("the supervisor's log says what failed"))

    def _refuse(self, visitor: Visitor, error: TopicdError) -> None:
        visitor.out += protocol.error_message(0, error)
        visitor.closing = True
        self._flush(visitor)

    def _flush(self, visitor: Visitor) -> None:
        try:
            while visitor.out:
                del visitor.out[: visitor.sock.send(visitor.out)]
        except BlockingIOError:
            pass
        except OSError:
            visitor.out.clear()
            visitor.closing = True
        if visitor.closing and not visitor.out:
            self._drop(visitor)
            return
        # Somebody who asks and does not read gets nothing more, and is not listened to, until it reads.
        events = selectors.EVENT_WRITE if visitor.out else selectors.EVENT_READ
        key = self._selector.get_key(visitor.sock)
        if key.events != events:
            self._selector.modify(visitor.sock, events, key.data)

    def _drop(self, visitor: Visitor) -> None:
        if self._visitors.pop(visitor.sock.fileno(), None) is not None:
            self._selector.unregister(visitor.sock)
            visitor.sock.close()
