"""Signals as a queue. A handler only leaves its number in a pipe; the loop takes them out when it is
ready to.
"""

from __future__ import annotations

import signal
import socket
from contextlib import suppress
from types import FrameType
from typing import Any

STOP = (signal.SIGTERM, signal.SIGINT)
CAUGHT = (*STOP, signal.SIGHUP, signal.SIGCHLD)


class SignalQueue:
    """Wait on fileno(), then take(). For the main thread only."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._before: dict[int, Any] = {}
        self._wakeup = -1

    def open(self) -> None:
        self._wakeup = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in CAUGHT:
            self._before[number] = signal.signal(number, _ignore)

    def close(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._before:
            signal.set_wakeup_fd(self._wakeup)
        self._before = {}
        self._reader.close()
        self._writer.close()

    def fileno(self) -> int:
        return self._reader.fileno()

    def take(self) -> list[int]:
        """Numbers caught since the last call."""
        found = bytearray()
        with suppress(BlockingIOError):
            while piece := self._reader.recv(4096):
                found += piece
        return list(found)


def _ignore(number: int, frame: FrameType | None) -> None:
    """The wake-up descriptor has the number already; a handler must exist so that the signal is not fatal."""
