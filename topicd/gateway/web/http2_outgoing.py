"""What an HTTP/2 connection has to send and may not send yet. Promise: answers that wait for the peer's windows, and
those that are being made, have at most ANSWERS_MAX bytes (or are one); streams take turns, frame by frame.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

import h2.connection
import h2.exceptions

from topicd.gateway.web.http2_stream import STREAM_HIGH, Http2Stream
from topicd.limits import KIB, MIB

ANSWERS_MAX = 16 * MIB
_HELD_HIGH = 1 * MIB  # bytes of a connection that wait: from there on it is full, and no further request is begun
_WINDOW_LOW = 4 * KIB  # a request whose answer could not even begin to be sent waits
WRITE_HIGH = 256 * KIB


class Owner(Protocol):
    """The connection."""

    paused: bool

    @property
    def closing(self) -> bool: ...

    def send(self) -> None:
        """What h2 has made of it."""
        ...

    def drop(self, stream: Http2Stream) -> None: ...

    def forget(self, stream: Http2Stream) -> None: ...


class Outgoing:
    def __init__(self, connection: h2.connection.H2Connection, owner: Owner) -> None:
        self._h2 = connection
        self._owner = owner
        self.pending: dict[int, Http2Stream] = {}  # streams with something to send
        self._held = 0  # bytes that wait for a window
        self._promised = 0  # bytes of answers that are being made
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()  # for room for an answer
        self._taken = self._taken_before = 0  # bytes that did not have to wait any more

    @property
    def full(self) -> bool:
        return self._held >= _HELD_HIGH

    def may_begin(self, stream: Http2Stream) -> bool:
        """There is room for its answer, here and at the peer."""
        try:
            return not self.full and self._h2.local_flow_control_window(stream.number) >= _WINDOW_LOW
        except h2.exceptions.ProtocolError:
            return True  # the peer has reset it: that is noticed in a moment

    @property
    def stuck(self) -> bool:
        """Since this was asked last the peer has taken nothing of the answers that wait for it."""
        if self._taken == self._taken_before and any(not one.streaming for one in self.pending.values()):
            return True
        self._taken_before = self._taken if self.pending else -1
        return False

    # ---- room ----

    async def promise(self, stream: Http2Stream, size: int) -> None:
        """Returns when an answer of that size may be made: others before it have been sent, or were small."""
        if self._waiting or not self._fits(size):
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((size, future))
            try:
                await future
            except asyncio.CancelledError:
                if not future.cancelled():  # it had its room and went at the same moment
                    self._promised -= size
                    self._admit()
                raise
        else:
            self._promised += size
        stream.promised += size

    def keep(self, stream: Http2Stream) -> None:
        """The answer is there, or will never be."""
        if stream.promised:
            self._promised -= stream.promised
            stream.promised = 0
            self._admit()

    def _fits(self, size: int) -> bool:
        used = self._held + self._promised
        return not used or used + size <= ANSWERS_MAX

    def _admit(self) -> None:
        while self._waiting:
            size, future = self._waiting[0]
            if not future.cancelled():
                if not self._fits(size):
                    return
                self._promised += size
                future.set_result(None)
            self._waiting.popleft()

    # ---- what waits ----

    def hold(self, stream: Http2Stream, data: bytes) -> None:
        stream.put(data)
        self._held += len(data)

    def let_go(self, stream: Http2Stream) -> None:
        self.pending.pop(stream.number, None)
        self._held -= stream.clear()
        self._admit()

    def pump(self) -> bool:
        """Send what the windows allow: a frame of each stream in turn, so that none waits behind all of another. True:
        the connection was full and is not any more."""
        was_full = self.full
        owner, waiting = self._owner, bool(self.pending)
        while waiting and not (owner.paused or owner.closing):
            waiting, size = False, 0
            shut = self._h2.outbound_flow_control_window <= 0
            for stream in list(self.pending.values()):
                if shut and stream.buffered:
                    continue
                sent = self._pump_one(stream)
                size += sent
                waiting |= sent > 0
                if size >= WRITE_HIGH:
                    break
            owner.send()
        owner.send()
        if self._waiting:
            self._admit()
        return was_full and not self.full

    def _pump_one(self, stream: Http2Stream) -> int:
        """Bytes of it that were sent. If there were any, it is the last in turn now."""
        if stream.number not in self.pending:
            return 0  # it went while others had their turn
        was_full = stream.buffered >= STREAM_HIGH
        try:
            room = min(self._h2.local_flow_control_window(stream.number), self._h2.max_outbound_frame_size)
            if stream.buffered and room <= 0:
                return 0
            piece = stream.take(room)
            self._held -= len(piece)
            self._taken += len(piece)
            last = stream.ended and not stream.buffered
            if piece or last:
                self._h2.send_data(stream.number, piece, end_stream=last)
        except h2.exceptions.ProtocolError:
            self._owner.drop(stream)
            return 0
        if last:
            self._owner.forget(stream)
            return len(piece)
        del self.pending[stream.number]
        if stream.buffered:
            self.pending[stream.number] = stream
        if was_full and stream.writable:
            stream.on_writable()
        return len(piece)
