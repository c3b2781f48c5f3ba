"""A time by which something must have come, moved often and reached seldom. Promise: to move it costs no timer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Deadline:
    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, late: Callable[[], None]) -> None:
        self._loop = loop
        self._seconds = seconds
        self._late = late
        self._due = 0.0  # 0: nothing is awaited
        self._timer: asyncio.TimerHandle | None = None

    def arm(self) -> None:
        self._due = self._loop.time() + self._seconds
        if self._timer is None:
            self._timer = self._loop.call_later(self._seconds, self._look)

    def disarm(self) -> None:
        # The timer stays: to set one for every request costs more than one that finds nothing to do.
        self._due = 0.0

    def close(self) -> None:
        self._due = 0.0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if not self._due:
            return
        left = self._due - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
        else:
            self._due = 0.0
            self._late()
