"""Bytes from a socket, cut into messages. Promise: small messages cost no copy, large ones are received in
place.

Small messages lie in one reused buffer: what `take` returns is valid until the next `window`. A message
that has not arrived whole and exceeds LARGE gets a buffer of its own, filled straight from the socket and
given away with it: it belongs to whoever holds the message, and nothing is ever written into it again.
"""

from __future__ import annotations

from typing import NamedTuple

from topicd.errors import FormatError
from topicd.ipc.protocol.codec import ACK, ACK_LENGTH, ACK_OP, OTHERS, Fetched, parse_fetched
from topicd.ipc.protocol.wire import BULK_OPS, HEADER, LENGTH_FIELD, MIN_LENGTH
from topicd.limits import KIB, MAX_CONTROL_MESSAGE, MAX_MESSAGE

BUFFER = 128 * KIB
LARGE = 16 * KIB


class Arrived(NamedTuple):
    """One message; its body is buffer[start:end]."""

    op: int
    flags: int
    request_id: int
    buffer: bytearray
    start: int
    end: int

    def body(self) -> bytes:
        return bytes(memoryview(self.buffer)[self.start : self.end])


class Cutter:
    """The receiving end of one connection, without the connection."""

    def __init__(self, size: int = BUFFER) -> None:
        self.buffer = bytearray(size)
        self._view = memoryview(self.buffer)
        self._at = 0
        self._end = 0
        self._large: bytearray | None = None
        self._large_head = (0, 0, 0)
        self._large_at = 0

    @property
    def pending(self) -> int:
        """Bytes received that belong to no complete message yet."""
        return self._large_at if self._large is not None else self._end - self._at

    def window(self) -> memoryview:
        """Where the next bytes belong; never empty. What `take` returned before is no longer valid."""
        if self._large is not None:
            return memoryview(self._large)[self._large_at :]
        if self._at == self._end:
            self._at = self._end = 0
        elif self._at:
            rest = self._end - self._at
            self.buffer[:rest] = self.buffer[self._at : self._end]
            self._at, self._end = 0, rest
        return self._view[self._end :]

    def received(self, size: int) -> None:
        if self._large is not None:
            self._large_at += size
        else:
            self._end += size

    def take(self) -> Arrived | None:
        """The next complete message. Raises FormatError when the bytes cannot be the protocol's."""
        if self._large is not None:
            return self._take_large()
        have = self._end - self._at
        if have < HEADER.size:
            return None
        length, op, flags, request_id = HEADER.unpack_from(self.buffer, self._at)
        check_length(length, op)
        start = self._at + HEADER.size
        if have - LENGTH_FIELD < length:
            if length > LARGE:
                self._begin_large((op, flags, request_id), start, length - MIN_LENGTH)
            return None
        self._at += LENGTH_FIELD + length
        return Arrived(op, flags, request_id, self.buffer, start, self._at)

    def take_acks(self) -> list[tuple[int, ...]]:
        """Neighbouring plain append answers, each (length, op, flags, request id, first seq, count, head
        seq)."""
        found: list[tuple[int, ...]] = []
        if self._large is not None:
            return found
        buffer, at, last = self.buffer, self._at, self._end - ACK.size
        while at <= last:
            ack = ACK.unpack_from(buffer, at)
            if ack[0] != ACK_LENGTH or ack[1] != ACK_OP or ack[3] >= OTHERS:
                break
            found.append(ack)
            at += ACK.size
        self._at = at
        return found

    def fetched(self, arrived: Arrived) -> Fetched:
        """The fetch answer or push in a message that was taken. Bytes in the reused buffer are copied, others are
        taken over: the result stays valid."""
        if arrived.buffer is self.buffer:
            body = arrived.body()
            return parse_fetched(arrived.flags, body, 0, len(body))
        return parse_fetched(arrived.flags, arrived.buffer, arrived.start, arrived.end)

    def _begin_large(self, head: tuple[int, int, int], start: int, body: int) -> None:
        self._large = large = bytearray(body)
        self._large_head = head
        self._large_at = self._end - start
        large[: self._large_at] = self._view[start : self._end]
        self._at = self._end = 0

    def _take_large(self) -> Arrived | None:
        large = self._large
        if large is None or self._large_at < len(large):
            return None
        self._large = None
        return Arrived(*self._large_head, large, 0, len(large))


def check_length(length: int, op: int) -> None:
    allowed = MAX_MESSAGE if op in BULK_OPS else MAX_CONTROL_MESSAGE
    if not MIN_LENGTH <= length <= allowed:
        raise FormatError(
            f"the peer does not speak the topicd protocol: length {length} for op 0x{op:02x}, "
            f"allowed are {MIN_LENGTH} to {allowed}"
        )
