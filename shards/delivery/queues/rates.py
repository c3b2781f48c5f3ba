"""How many jobs may start now, where so many may start in a second. Promise: in no second more than the rate and a
tenth of it, and nobody has to ask again and again: it says when the next one may.
"""

from __future__ import annotations

_BURST_MS = 100.0  # so much of the rate may start at once
_FAR_MS = 1_000.0  # the next one is never so far away, whatever the rate


class Rate:
    __slots__ = ("_next_ms",)

    def __init__(self) -> None:
        self._next_ms = 0.0  # when the next one would start if all kept the same distance

    def room(self, now_ms: int, per_s: int) -> int:
        """How many may start now."""
        interval = 1000.0 / per_s
        slack = max(0.0, _BURST_MS - interval)
        ahead = max(self._next_ms, float(now_ms)) - now_ms
        if ahead > slack + max(interval, _FAR_MS):
            self._next_ms, ahead = float(now_ms), 0.0  # the clock was set back
        return 0 if ahead > slack else int((slack - ahead) // interval) + 1

    def take(self, count: int, now_ms: int, per_s: int) -> None:
        self._next_ms = max(self._next_ms, float(now_ms)) + count * 1000.0 / per_s

    def free_at(self, per_s: int) -> int:
        """When there is room again, in ms; in the past: there is."""
        slack = max(0.0, _BURST_MS - 1000.0 / per_s)
        return int(self._next_ms - slack) + 1
