"""Memory that a flood of batches needed and nobody needs now. Promise: what is given back is given back in a quiet
second, never between two writes: faulting it in again is what a busy shard is spared."""

from __future__ import annotations

import logging
from collections.abc import Callable

from topicd.child import malloc_trim
from topicd.limits import MIB
from topicd.shards.delivery.counters import Counters
from topicd.shards.delivery.storing.backlog import Backlog

log = logging.getLogger(__name__)

_WORTH = 8 * MIB  # went through memory since the last time
_AGAIN = 5  # quiet seconds later: buffers of connections and of the round that stored it all have gone by then


class MemoryTrimmer:
    def __init__(self, counters: Counters, backlog: Backlog, trim: Callable[[], None] = malloc_trim) -> None:
        self._counters = counters
        self._backlog = backlog
        self._trim = trim
        self._seen = 0
        self._trimmed_at = 0
        self._again = 0  # in so many quiet seconds

    def tick(self) -> bool:
        """Once a second; True if memory was given back."""
        moved = self._counters.bytes_taken
        quiet, self._seen = moved == self._seen, moved
        if not quiet or self._backlog.tail_bytes:
            return False
        if moved - self._trimmed_at >= _WORTH:
            self._again = _AGAIN
        elif self._again:
            self._again -= 1
            if self._again:
                return False
        else:
            return False
        self._trimmed_at = moved
        self._trim()
        log.debug("memory given back")
        return True
