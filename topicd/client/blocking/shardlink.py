"""A connection to one shard and the sender it serves. Whoever drives it calls `turn` when the socket is ready or
`wake_at` has come; reconnecting is part of a turn. `start` says how a dial is made: a turn blocks for one only if that
does (see dialing).
"""

from __future__ import annotations

import contextlib
import select
import socket
from collections import deque
from itertools import islice

from topicd.client.blocking.caller import Caller
from topicd.client.blocking.connection import Connection
from topicd.client.blocking.dialing import Attempt, Start, at_once
from topicd.client.core.options import DIAL_S
from topicd.errors import ConnectionLost, TopicdError, WrongShard
from topicd.ipc.protocol.cutter import Cutter
from topicd.ipc.protocol.retry import Backoff
from topicd.ipc.protocol.sender import Sender, joined

PIECES_AT_ONCE = 256
_READS_PER_TURN = 16


class ShardLink:
    def __init__(self, caller: Caller, shard: int, sender: Sender, start: Start = at_once) -> None:
        self.shard = shard
        self.sender = sender
        self.moved = False  # topics must be looked up anew before this link goes on
        self._caller = caller
        self._now = caller.tempo.monotonic
        self._sock: socket.socket | None = None
        self._poll = select.poll()
        self._cutter = Cutter()
        self._out: deque[bytes | bytearray | memoryview] = deque()
        self._backoff = Backoff(caller.tempo.random)
        self._start = start
        self._dial_at = 0.0
        self._dialing: Attempt[Connection] | None = None
        self._closing = False

    @property
    def connected(self) -> bool:
        return self._sock is not None

    @property
    def wants_write(self) -> bool:
        return bool(self._out)

    def fileno(self) -> int:
        return -1 if self._sock is None else self._sock.fileno()

    def wake_at(self) -> float | None:
        """When to turn although the socket is silent and no dial has ended."""
        now = self._now()
        due = self.sender.wake_at(blocked=bool(self._out))
        if due is not None and self._sock is None and self._dialing is None:
            due = min(due, max(self._dial_at, now))
        return due

    def turn(self) -> None:
        """Sends and receives whatever can be without waiting."""
        now = self._now()
        self.sender.expire(now)
        if self.sender.idle:
            # Whoever comes next has not waited yet.
            self._backoff.reset()
            self._dial_at = 0.0
        if self._sock is None and not self._dial(now):
            return
        self.flush()
        self.receive()
        self.flush()

    def wait(self, timeout: float | None) -> bool:
        """Until the socket is ready, a timer is due or the timeout has passed: False if nothing happened."""
        due = self.wake_at()
        if due is not None:
            left = max(0.0, due - self._now())
            timeout = left if timeout is None else min(timeout, left)
        if self._sock is None:
            self._caller.tempo.sleep(timeout or 0.0)
            return False
        self._poll.modify(self._sock, select.POLLIN | select.POLLOUT if self._out else select.POLLIN)
        return bool(self._poll.poll(None if timeout is None else timeout * 1000 + 1))

    # ---- bytes ----

    def flush(self) -> None:
        while self._sock is not None:
            if not self._out and self.sender.ready:
                self._out.extend(joined(self.sender.output(self._now())))
            if not self._out or not self._send(self._sock):
                return

    def _send(self, sock: socket.socket) -> bool:
        """False once the socket takes no more."""
        out = self._out
        try:
            sent = sock.send(out[0]) if len(out) == 1 else sock.sendmsg(list(islice(out, PIECES_AT_ONCE)))
        except BlockingIOError:
            return False
        except OSError as exc:
            self.lose(ConnectionLost(f"the connection to the daemon broke: {exc.strerror or exc}"))
            return False
        while sent:
            piece = self._out[0]
            if sent < len(piece):
                self._out[0] = memoryview(piece)[sent:]
                return True
            sent -= len(piece)
            self._out.popleft()
        return True

    def receive(self) -> None:
        for _ in range(_READS_PER_TURN):
            if self._sock is None:
                return
            window = self._cutter.window()
            try:
                size = self._sock.recv_into(window)
            except BlockingIOError:
                return
            except OSError as exc:
                self.lose(ConnectionLost(f"the connection to the daemon broke: {exc.strerror or exc}"))
                return
            if not size:
                self.lose(ConnectionLost("the daemon closed the connection"))
                return
            self._cutter.received(size)
            full = size == len(window)
            if not self._feed() or not full:
                return

    def _feed(self) -> bool:
        try:
            self.sender.feed(self._cutter, self._now())
        except TopicdError as exc:
            self.lose(exc)
        self._backoff.reset()
        if self.sender.misplaced:
            self.lose(WrongShard("topics have moved to other shards"))
        return self._sock is not None

    # ---- connection ----

    def _dial(self, now: float) -> bool:
        if self._dialing is None:
            if now < self._dial_at or self.moved or self.sender.idle:
                return False
            self._dialing = self._start(lambda: self._caller.dial(self.shard, DIAL_S))
        if not self._dialing.done:
            return False
        attempt, self._dialing = self._dialing, None
        try:
            connection = attempt.result()
        except TopicdError as exc:
            self.lose(exc)
            return False
        connection.sock.setblocking(False)
        self._sock = connection.sock
        self._poll = select.poll()
        self._poll.register(self._sock, select.POLLIN)
        self._cutter = connection.cutter
        self._out.clear()
        self.sender.connect()
        return True

    def lose(self, why: TopicdError) -> None:
        if not self._closing:
            self._caller.events.lost(self.shard, why)
        if self._sock is not None:
            with contextlib.suppress(OSError):
                self._sock.close()
            self._sock = None
        self._out.clear()
        if isinstance(why, WrongShard):
            self.moved = True
        now = self._now()
        self._dial_at = now + self._backoff.next()
        self.sender.disconnect(why, now)
        if not why.retriable:
            # A peer that speaks something else, or does not let us in, will do so the next time as well.
            self.sender.fail_all(why)

    def close(self) -> None:
        self._closing = True
        if self._dialing is not None:
            self._dialing.give_up()
            self._dialing = None
        if self._sock is not None:
            self.lose(ConnectionLost("the client is closed"))

    def forked(self) -> None:
        """In the child: the thread that dials is the parent's, and may hold its locks."""
        self._dialing = None
        self.close()
