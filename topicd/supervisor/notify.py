"""What systemd wants to hear, and the sockets it hands over. Without systemd every call does nothing."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import MutableMapping
from contextlib import suppress

_LISTEN_FDS_START = 3
log = logging.getLogger(__name__)


class Notifier:
    """Talks to $NOTIFY_SOCKET. Takes systemd's variables out of the environment: children have none."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        self._address = environ.pop("NOTIFY_SOCKET", "")
        self.watchdog_s = _watchdog_interval(environ)
        self._sock: socket.socket | None = None
        self._status = ""
        self._pinged = float("-inf")

    def open(self) -> None:
        if self._address:
            self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._sock.setblocking(False)

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def ready(self) -> None:
        self._send("READY=1")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def reloading(self) -> None:
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def more_time(self, seconds: float) -> None:
        """Recovery goes on: the start timeout shall not strike within this time."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1_000_000)}")

    def status(self, text: str) -> None:
        """Sent only when it changed."""
        if text != self._status:
            self._status = text
            self._send(f"STATUS={text}")

    def alive(self, now: float) -> None:
        """The watchdog ping, as often as systemd wants it; call only while every heartbeat is fresh."""
        if self.watchdog_s and now - self._pinged >= self.watchdog_s:
            self._pinged = now
            self._send("WATCHDOG=1")

    def _send(self, text: str) -> None:
        if self._sock is None:
            return
        # A leading @ stands for the zero byte of an abstract address.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            self._sock.sendto(text.encode(), address)
        except OSError as exc:
            log.warning("systemd cannot be told", extra={"text": text, "error": exc})


def _watchdog_interval(environ: MutableMapping[str, str]) -> float:
    """A third of the time systemd waits, 0 if it does not watch us."""
    usec, pid = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
    if not usec.isdigit() or (pid and pid != str(os.getpid())):
        return 0.0
    return int(usec) / 3_000_000


def inherited_sockets(environ: MutableMapping[str, str]) -> list[socket.socket]:
    """Listening sockets of socket activation, in the order of the unit file."""
    count, pid = environ.pop("LISTEN_FDS", ""), environ.pop("LISTEN_PID", "")
    environ.pop("LISTEN_FDNAMES", None)
    if not count.isdigit() or pid != str(os.getpid()):
        return []
    found = []
    for fd in range(_LISTEN_FDS_START, _LISTEN_FDS_START + int(count)):
        os.set_inheritable(fd, False)
        sock = socket.socket(fileno=fd)
        with suppress(OSError):
            sock.setblocking(False)
        found.append(sock)
    return found
