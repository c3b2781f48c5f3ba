"""When routers work. Promise: copying keeps the loop for a few milliseconds at most; while clients write, copying takes
a small share of the time unless somebody waits for it, and nobody is left out.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from topicd.shards.delivery.counters import Counters

_SLICE_S = 0.002
_POLITE = 6.0  # while clients write: so many times the time that was spent is left to them
_PAUSE_MAX_S = 0.05


class Worker(Protocol):
    @property
    def urgent(self) -> bool:
        """Does anybody wait for it?"""

    def run(self) -> None:
        """One batch."""


class Pump:
    def __init__(self, loop: asyncio.AbstractEventLoop, counters: Counters) -> None:
        self._loop = loop
        self._counters = counters
        self._ready: dict[Worker, None] = {}
        self._urgent: dict[Worker, None] = {}
        self._timer: asyncio.Handle | None = None
        self._paused = False
        self.polite = _POLITE
        self._written = 0  # by clients, when it was last looked at
        self.forwarded = 0  # of the shard's appended records, those that routers brought

    def add(self, forwarder: Worker) -> None:
        (self._urgent if forwarder.urgent else self._ready)[forwarder] = None
        self._schedule(0.0)

    def hurry(self, forwarder: Worker) -> None:
        """Somebody waits for it."""
        if forwarder in self._ready:
            del self._ready[forwarder]
            self.add(forwarder)

    def forget(self, forwarder: Worker) -> None:
        self._ready.pop(forwarder, None)
        self._urgent.pop(forwarder, None)

    def _schedule(self, pause: float) -> None:
        if self._timer is not None:
            if not (self._paused and self._urgent):
                return
            self._timer.cancel()
        self._paused = pause > 0
        self._timer = self._loop.call_later(pause, self._run) if pause else self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._timer = None
        began = now = time.monotonic()
        while (self._urgent or self._ready) and now < began + _SLICE_S:
            queue = self._urgent or self._ready
            forwarder = next(iter(queue))
            del queue[forwarder]
            forwarder.run()
            now = time.monotonic()
        written = self._counters.records - self.forwarded
        busy, self._written = written != self._written, written
        if self._urgent:
            self._schedule(0.0)
        elif busy:
            self._schedule(min(self.polite * (now - began), _PAUSE_MAX_S))
        elif self._ready:
            self._schedule(0.0)
