"""Hybrid time: 48 bits of milliseconds, 16 bits that count within one. Promise: packed stamps sort as time does, also
as big-endian bytes; a clock gives each stamp once and never one below a stamp it has seen, whatever the wall clock
does.
"""

from __future__ import annotations

from collections.abc import Callable

from topicd.errors import InvalidRequest

LOGICAL_BITS = 16
MAX_LOGICAL = (1 << LOGICAL_BITS) - 1
MAX_MS = (1 << 48) - 1
MAX_STAMP = (MAX_MS << LOGICAL_BITS) | MAX_LOGICAL
ZERO = 0
AHEAD_MS = 24 * 3_600_000  # stamps of others may lie so far ahead of this clock


def pack(ms: int, logical: int) -> int:
    if not 0 <= ms <= MAX_MS or not 0 <= logical <= MAX_LOGICAL:
        raise InvalidRequest(f"a hybrid time has 48 bits of milliseconds and 16 beside them, not {ms} and {logical}")
    return ms << LOGICAL_BITS | logical


def physical_ms(stamp: int) -> int:
    return stamp >> LOGICAL_BITS


def logical(stamp: int) -> int:
    return stamp & MAX_LOGICAL


class HybridClock:
    """`now_ms` is the wall clock; `last` the highest stamp that was given or seen."""

    def __init__(self, now_ms: Callable[[], int], last: int = ZERO) -> None:
        self._now_ms = now_ms
        self.last = last

    def stamp(self) -> int:
        """A new one. When a millisecond's 65,536 are used up, the next millisecond begins early."""
        self.last = max(self._now_ms() << LOGICAL_BITS, self.last + 1)
        if self.last > MAX_STAMP:
            raise InvalidRequest("time has come to its end")
        return self.last

    def stamps(self, count: int) -> int:
        """The first of so many that follow each other."""
        first = self.stamp()
        self.last += count - 1
        return first

    def saw(self, stamp: int) -> None:
        """From now on all stamps are above this one."""
        self.last = max(self.last, stamp)

    def too_far(self, stamp: int) -> bool:
        """Would taking this one over carry the clock away?"""
        return physical_ms(stamp) > self._now_ms() + AHEAD_MS
