"""Waiting a moment awake for what usually comes sooner than this process could fall asleep and be woken.

Promise: a wait takes no longer than it was allowed, and where waiting is in vain it is tried ever more seldom.
Why: docs/adr/0006.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio  # which a WAL shard does without

_MISSES_MAX = 6


class Linger:
    """One thing that is worth waiting for, or not."""

    def __init__(self, most_us: int) -> None:
        # On a single core the one to be waited for could not work meanwhile.
        self.most_ns = most_us * 1000 if len(os.sched_getaffinity(0)) > 1 else 0
        self._misses = 0
        self._pause = 0

    def worthwhile(self) -> bool:
        """Shall it be tried this time?"""
        if self._pause:
            self._pause -= 1
            return False
        return self.most_ns > 0

    def until(self, here: Callable[[], bool]) -> bool:
        """False: it did not come in time."""
        end = time.monotonic_ns() + self.most_ns
        while not here():
            if time.monotonic_ns() >= end:
                self._misses = min(self._misses + 1, _MISSES_MAX)
                self._pause = 1 << self._misses
                return False
            os.sched_yield()  # the one that is waited for may have been put on this very core
        self._misses = 0
        return True


def events_of(loop: asyncio.AbstractEventLoop) -> Any:
    """Tells whether the loop has anything to do; None: this loop does not show it."""
    backend = getattr(loop, "_get_backend_id", None)
    if backend is None:
        return None
    events = select.poll()
    events.register(backend(), select.POLLIN)
    return events
