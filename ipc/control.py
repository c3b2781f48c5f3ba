"""The channel between the supervisor and one child: a socket pair with msgpack maps, `u32 length | map`.

Promise: messages arrive whole and in order; sending never blocks; a dead peer is an EOFError. What travels:

    supervisor -> child   the BootInfo, then {"event": "start"} (the kinds of processes that it waits for serve),
                          {"event": "ids", start, end}, {"event": "reload", settings}, {"event": "stop"}
    child -> supervisor   {"event": "progress", percent, what}, {"event": "serving"}, {"event": "need_ids"},
                          {"event": "failed", message}: fatal, the daemon stops
"""

from __future__ import annotations

import os
import select
import socket
import struct
from collections import deque
from typing import Any, NamedTuple

import msgpack

from topicd.errors import FormatError
from topicd.limits import MAX_CONTROL_MESSAGE

CONTROL_FD_ENV = "TOPICD_CONTROL_FD"
BOOT_TIMEOUT_S = 30.0
_LENGTH = struct.Struct("<I")
_PIECE = 65536


def process_name(kind: str, index: int) -> str:
    return f"{kind}-{index:02d}"


class BootInfo(NamedTuple):
    """What any child is told first."""

    kind: str
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    instance: str  # 16 hex characters
    run: int
    settings: dict[str, Any]  # Settings.from_wire reads it
    extras: dict[str, Any]  # what its kind needs beside; for shards ipc/shardboot.py

    @property
    def name(self) -> str:
        return process_name(self.kind, self.index)

    def to_wire(self) -> dict[str, Any]:
        return self._asdict()

    @classmethod
    def from_wire(cls, body: dict[str, Any]) -> BootInfo:
        try:
            return cls(**body)
        except TypeError as exc:
            raise FormatError(f"boot message: {exc}") from None


class ControlChannel:
    """One end. For event loops: wait on fileno(), then receive(); call flush() when wants_write is true."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._in = bytearray()
        self._out = bytearray()
        self._messages: deque[dict[str, Any]] = deque()

    @classmethod
    def pair(cls) -> tuple[ControlChannel, socket.socket]:
        """(the supervisor's end, the socket a child inherits)."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return cls(ours), theirs

    def fileno(self) -> int:
        return self._sock.fileno()

    @property
    def wants_write(self) -> bool:
        return bool(self._out)

    def send(self, body: dict[str, Any]) -> None:
        """Queue and send what the socket takes. EOFError: the peer is gone. FormatError: body is too large.
        BufferError: the peer has not read for so long that the queue is full."""
        packed = msgpack.packb(body, use_bin_type=True)
        if len(packed) > MAX_CONTROL_MESSAGE:
            raise FormatError(f"control message of {len(packed)} bytes, at most {MAX_CONTROL_MESSAGE} are allowed")
        if len(self._out) > MAX_CONTROL_MESSAGE:
            raise BufferError("the peer does not read its control channel")
        self._out += _LENGTH.pack(len(packed)) + packed
        self.flush()

    def flush(self) -> None:
        while self._out:
            try:
                sent = self._sock.send(self._out)
            except BlockingIOError:
                return
            except OSError:
                self._out.clear()
                raise EOFError("control channel closed by the peer") from None
            del self._out[:sent]

    def receive(self) -> list[dict[str, Any]]:
        """All messages that are here, without waiting. EOFError once the peer closed and all were taken."""
        closed = self._drain()
        found = list(self._messages)
        self._messages.clear()
        if closed and not found:
            raise EOFError("control channel closed by the peer")
        return found

    def receive_one(self, timeout: float) -> dict[str, Any] | None:
        """The next message, waiting up to timeout seconds; None if none came."""
        if not self._messages and not self._wait_readable(timeout):
            return None
        closed = self._drain()
        if self._messages:
            return self._messages.popleft()
        if closed:
            raise EOFError("control channel closed by the peer")
        return None

    def close(self) -> None:
        self._sock.close()

    def _wait_readable(self, timeout: float) -> bool:
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(timeout * 1000))

    def _drain(self) -> bool:
        """Move whole messages to the queue; True if the peer closed."""
        closed = False
        while not closed:
            try:
                piece = self._sock.recv(_PIECE)
            except BlockingIOError:
                break
            except OSError:
                piece = b""
            closed = not piece
            self._in += piece
            self._cut()
        return closed

    def _cut(self) -> None:
        at = 0
        while len(self._in) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._in, at)
            if length > MAX_CONTROL_MESSAGE:
                raise FormatError(f"control message of {length} bytes, at most {MAX_CONTROL_MESSAGE} are allowed")
            end = at + _LENGTH.size + length
            if len(self._in) < end:
                break
            body = _unpack(bytes(self._in[at + _LENGTH.size : end]))
            self._messages.append(body)
            at = end
        del self._in[:at]


def _unpack(raw: bytes) -> dict[str, Any]:
    try:
        body = msgpack.unpackb(raw, raw=False)
    except Exception as exc:
        raise FormatError(f"control message is not msgpack: {exc}") from None
    if not isinstance(body, dict):
        raise FormatError(f"control message must be a map, not {type(body).__name__}")
    return body


def attach_child() -> tuple[ControlChannel, BootInfo]:
    """The child's end and what the supervisor said first. For the start of a child's main()."""
    fd = os.environ.pop(CONTROL_FD_ENV, "")
    if not fd.isdigit():
        raise FormatError(f"{CONTROL_FD_ENV} is not set; this program is started by the supervisor only")
    channel = ControlChannel(socket.socket(fileno=int(fd)))
    os.set_inheritable(int(fd), False)
    body = channel.receive_one(BOOT_TIMEOUT_S)
    if body is None:
        raise FormatError(f"the supervisor sent no boot message within {BOOT_TIMEOUT_S:g} s")
    return channel, BootInfo.from_wire(body)
