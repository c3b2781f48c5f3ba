"""A blocking connection: one request, one answer. Used by one thread at a time.

Timeouts are the kernel's (SO_RCVTIMEO), so that a call is one send and one receive and nothing else. A
connection whose answer did not come is closed: the answer to an old request is never taken for that to a
new one.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import struct
from typing import TypeVar

from topicd._native import claim_next, exchange
from topicd._native.interface import Next
from topicd.client.core import requests
from topicd.client.core.address import Address, explained
from topicd.client.core.requests import Request
from topicd.client.core.sockets import open_socket
from topicd.errors import ConnectionLost, FormatError, Internal, TopicdError
from topicd.ipc.protocol.codec import (
    ACK,
    ACK_LENGTH,
    ACK_OP,
    CONFLICT_FLAG,
    COPY_FLAG,
    DEDUPED_FLAG,
    ERROR_OP,
    JOIN_UP_TO,
    Appended,
    Hello,
    answer_map,
    append_head,
    error_of,
    parse_ack,
)
from topicd.ipc.protocol.cutter import Arrived, Cutter
from topicd.ipc.protocol.wire import ANSWER, HEADER, LENGTH_FIELD, MIN_LENGTH, OP_CLAIMED, message
from topicd.limits import MIB

T = TypeVar("T")

_TIMEVAL = struct.Struct("@ll")
_SEND_BUFFER = 2 * MIB


def dial(target: str | os.PathLike[str] | Address, timeout: float, token: str | None = None) -> Connection:
    """Connected, greeted and ready. Raises ConnectionLost or what the daemon refused with."""
    connection = Connection(open_socket(target, timeout), timeout)
    try:
        connection.greet(token)
    except TopicdError as exc:
        connection.close()
        raise explained(target, exc) from None
    except BaseException:
        connection.close()
        raise
    return connection


class Connection:
    def __init__(self, sock: socket.socket, timeout: float) -> None:
        # Blocking for Python, bounded by the kernel.
        sock.settimeout(None)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        self.sock = sock
        self.cutter = Cutter()
        self.closed = False
        self.hello: Hello | None = None
        self._request_id = 0
        self._timeout = 0.0
        self._timeout_ms = -1
        self.set_timeout(timeout)

    def set_timeout(self, seconds: float | None) -> None:
        """How long a send or a receive may take; None: for ever."""
        wanted = 0.0 if seconds is None else max(0.001, seconds)
        if wanted == self._timeout:
            return
        self._timeout = wanted
        self._timeout_ms = math.ceil(wanted * 1_000) or -1
        raw = _TIMEVAL.pack(int(wanted), int(wanted % 1 * 1_000_000))
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, raw)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, raw)

    def greet(self, token: str | None) -> None:
        wanted = requests.hello(token)
        request_id = self.next_id()
        # Who does not let us in says so and hangs up, perhaps before our first word.
        with contextlib.suppress(OSError):
            self.sock.sendall(message(wanted.op, request_id, wanted.body))
        self.hello = wanted.parse(answer_map(self.answer(request_id, wanted.op | ANSWER).body()))

    def next_id(self) -> int:
        self._request_id = self._request_id % 0xFFFFFFFF + 1
        return self._request_id

    def ask(self, request: Request[T]) -> T:
        return request.parse(answer_map(self.exchange(request.op, request.body).body()))

    def exchange(self, op: int, body: bytes, flags: int = 0) -> Arrived:
        """The answer's bytes are valid until the next use of the connection. Raises the daemon's error."""
        request_id = self.next_id()
        try:
            self.send(message(op, request_id, body, flags))
            return self.answer(request_id, op | ANSWER)
        except TopicdError:
            raise
        except BaseException:
            # Interrupted in between: the answer may still come and would be taken for the next one's.
            self.close()
            raise

    def exchange_small(self, op: int, body: bytes, flags: int = 0) -> tuple[bytearray, int, int]:
        """`exchange` the short way, for requests of which there are many: (buffer, start, end) of the answer's body,
        valid until the next use of the connection."""
        request_id = self._request_id = self._request_id % 0xFFFFFFFF + 1
        try:
            cutter = self.cutter
            size = self._exchange(HEADER.pack(MIN_LENGTH + len(body), op, flags, request_id) + body)
            if size >= HEADER.size:
                length, answer, _, answered = HEADER.unpack_from(cutter.buffer)
                if length + LENGTH_FIELD == size and answer == op | ANSWER and answered == request_id:
                    return cutter.buffer, HEADER.size, size
            self._received(size)
            arrived = self.answer(request_id, op | ANSWER)
            return arrived.buffer, arrived.start, arrived.end
        except OSError as exc:
            raise self._lost(exc) from exc
        except TopicdError:
            raise
        except BaseException:
            # Interrupted in between: the answer may still come and would be taken for the next one's.
            self.close()
            raise

    def next_job(self, request: bytes, seq: int, lease: int) -> Next | Arrived:
        """A CLAIM that finishes one job: the next one, or whatever else was answered. `request` is the whole message,
        without its id and the row of the job."""
        if claim_next is None:
            raise Internal("there is no C core")
        request_id = self._request_id = self._request_id % 0xFFFFFFFF + 1
        try:
            window = self.cutter.window()
            found = claim_next(self.sock.fileno(), request, request_id, seq, lease, window, self._timeout_ms)
            if not isinstance(found, int):
                return found
            self._received(found)
            return self.answer(request_id, OP_CLAIMED)
        except OSError as exc:
            raise self._lost(exc) from exc
        except TopicdError:
            raise
        except BaseException:
            self.close()
            raise

    def _exchange(self, request: bytes) -> int:
        """Sends it, if it is not empty, and receives what comes first: how much. Raises OSError."""
        if exchange is None:
            if request:
                self.sock.sendall(request)
            return self.sock.recv_into(self.cutter.window())
        return exchange(self.sock.fileno(), request, self.cutter.window(), self._timeout_ms)

    def append(
        self,
        topic_id: int,
        producer_id: int,
        number: int,
        count: int,
        frames: bytearray,
        key: bytes = b"",
        flags: int = 0,
        options: bytes = b"",
    ) -> Appended:
        request_id = self._request_id = self._request_id % 0xFFFFFFFF + 1
        head = append_head(request_id, topic_id, producer_id, number, count, len(frames), key, flags, options)
        try:
            cutter = self.cutter
            if len(frames) <= JOIN_UP_TO:
                size = self._exchange(head + frames)
            else:
                self.send_parts([head, frames])
                size = self._exchange(b"")
            if size == ACK.size:
                length, op, flags, answered, first_seq, stored, head_seq = ACK.unpack_from(cutter.buffer)
                if op == ACK_OP and length == ACK_LENGTH and answered == request_id:
                    deduped, conflict = flags & DEDUPED_FLAG != 0, flags & CONFLICT_FLAG != 0
                    return Appended(first_seq, stored, head_seq, deduped, None, conflict)
            self._received(size)
            arrived = self.answer(request_id, ACK_OP)
            return parse_ack(arrived.flags, arrived.buffer, arrived.start, arrived.end)
        except OSError as exc:
            raise self._lost(exc) from exc
        except TopicdError:
            raise
        except BaseException:
            self.close()
            raise

    def start_append(
        self, topic_id: int, producer_id: int, number: int, records: int, frames: list[memoryview], *, flags: int = 0
    ) -> int:
        """Sends frames as they are, in any number of pieces, and does not wait; the id for `finish_append`."""
        request_id = self.next_id()
        head = append_head(request_id, topic_id, producer_id, number, records, sum(map(len, frames)), flags=flags)
        try:
            self.send_parts([head, *frames])
        except OSError as exc:
            raise self._lost(exc) from exc
        return request_id

    def start_copy(
        self, topic_id: int, producer_id: int, number: int, records: int, ranges: bytes, *, flags: int = 0
    ) -> int:
        """Like start_append, of records that the daemon has already: packed COPIED."""
        request_id = self.next_id()
        head = append_head(request_id, topic_id, producer_id, number, records, len(ranges), flags=COPY_FLAG | flags)
        self.send(head + ranges)
        return request_id

    def finish_append(self) -> tuple[int, Appended | TopicdError]:
        """The next answer to an append that was started, whichever it is: its id, and what became of it."""
        arrived = self.receive()
        if arrived.op == ERROR_OP:
            error = self._error(arrived)
            if arrived.request_id == 0:
                self.close()
                raise error
            return arrived.request_id, error
        if arrived.op != ACK_OP:
            self.close()
            raise FormatError(f"the daemon answered op 0x{arrived.op:02x} to an append")
        return arrived.request_id, parse_ack(arrived.flags, arrived.buffer, arrived.start, arrived.end)

    def send(self, data: bytes) -> None:
        try:
            self.sock.sendall(data)
        except OSError as exc:
            raise self._lost(exc) from exc

    def send_parts(self, parts: list[bytes | bytearray | memoryview]) -> None:
        """Everything of every part, without joining them. Raises OSError."""
        sent = self.sock.sendmsg(parts)
        for part in parts:
            if sent >= len(part):
                sent -= len(part)
                continue
            self.sock.sendall(memoryview(part)[sent:])
            sent = 0

    def receive(self) -> Arrived:
        """The next message, whatever it is; blocks until it is there or the timeout has passed."""
        while (arrived := self._take()) is None:
            self.cutter.received(self.receive_some())
        return arrived

    def receive_some(self) -> int:
        """Bytes into an empty buffer: how many. Whoever does not use them up there and then tells the cutter."""
        try:
            size = self._exchange(b"")
        except OSError as exc:
            raise self._lost(exc) from exc
        if not size:
            raise self._lost(None)
        return size

    def answer(self, request_id: int, op: int) -> Arrived:
        arrived = self.receive()
        if arrived.op == ERROR_OP and arrived.request_id in (request_id, 0):
            error = self._error(arrived)
            if arrived.request_id == 0:
                self.close()
            raise error
        if arrived.op != op or arrived.request_id != request_id:
            self.close()
            raise FormatError(
                f"the daemon answered op 0x{arrived.op:02x} of request {arrived.request_id} "
                f"where op 0x{op:02x} of request {request_id} was due"
            )
        return arrived

    def _error(self, arrived: Arrived) -> TopicdError:
        try:
            return error_of(arrived.body())
        except FormatError:
            self.close()
            raise

    def _take(self) -> Arrived | None:
        try:
            return self.cutter.take()
        except FormatError:
            self.close()
            raise

    def _received(self, size: int) -> None:
        if not size:
            raise self._lost(None)
        self.cutter.received(size)

    def _lost(self, exc: OSError | None) -> ConnectionLost:
        self.close()
        if exc is None:
            return ConnectionLost("the daemon closed the connection")
        if isinstance(exc, BlockingIOError):
            return ConnectionLost(f"the daemon did not answer within {self._timeout:g} s")
        return ConnectionLost(f"the connection to the daemon broke: {exc.strerror or exc}")

    def abandon(self) -> None:
        """Lets go of it without ending it: another process uses it."""
        self.closed = True
        self.sock.close()

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        with contextlib.suppress(OSError):
            # Wakes a thread that is blocked in receive.
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()
