"""When routers work. Promise: copying keeps the loop for a few milliseconds at most; while clients write, here or to a
source in another shard, copying takes its share of the time (share.py) unless somebody waits for it. A router that has
been behind for long takes more and more, so that it is not left behind for good.
"""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple, Protocol

from topicd.shards.delivery.counters import Counters
from topicd.shards.delivery.routing.share import Share

_SLICE_S = 0.002
_PAUSE_MAX_S = 0.1
_CROWDED_S = 0.2  # who has written so lately writes still: a router sees it only when it asks
_PATIENT_MS = 10_000  # behind for so long a router goes on leaving it to them; after twice that it leaves nothing


class Seen(NamedTuple):
    came: int  # records of its source
    passed: int  # of those, copied or left out
    crowded: bool  # did clients write them, in another shard?


class Worker(Protocol):
    @property
    def urgent(self) -> bool:
        """Does anybody wait for it?"""

    def run(self) -> None:
        """One batch."""

    def seen(self) -> Seen:
        """What has happened since this was last asked."""

    def late_ms(self) -> int:
        """How long it has been behind."""


class Pump:
    def __init__(self, loop: asyncio.AbstractEventLoop, counters: Counters) -> None:
        self._loop = loop
        self._counters = counters
        self._ready: dict[Worker, None] = {}
        self._urgent: dict[Worker, None] = {}
        self._timer: asyncio.Handle | None = None
        self._paused = False
        self.polite = 1.0  # times the pauses
        self._share = Share()
        self._written = 0  # by clients, when it was last looked at
        self._crowded_until = 0.0
        self._left = 1.0  # of its manners
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
        if self._clients_write():
            self._crowded_until = began + _CROWDED_S
        if not (self._urgent or self._ready):
            return
        came = passed = late = 0
        polite = self._left if began < self._crowded_until and not self._urgent else 0.0
        until = began + _SLICE_S - polite * (_SLICE_S - self._share.slice(_SLICE_S, _PAUSE_MAX_S))
        while (self._urgent or self._ready) and now < until:
            queue = self._urgent or self._ready
            forwarder = next(iter(queue))
            del queue[forwarder]
            forwarder.run()
            now = time.monotonic()
            seen = forwarder.seen()
            if seen.crowded:
                self._crowded_until = now + _CROWDED_S
            came, passed = came + seen.came, passed + seen.passed
            late = max(late, forwarder.late_ms())
        self._share.note(now, now - began, came, passed)
        self._left = min(max(0.0, 2.0 - late / _PATIENT_MS), 1.0)
        if self._urgent:
            self._schedule(0.0)
        elif now < self._crowded_until:
            self._schedule(self._left * min(self.polite * self._share.rest(now - began), _PAUSE_MAX_S))
        elif self._ready:
            self._schedule(0.0)

    def _clients_write(self) -> bool:
        written = self._counters.records - self.forwarded
        busy, self._written = written != self._written, written
        return busy
