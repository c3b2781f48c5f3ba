"""How much of a shard's time its routers take while clients write. Promise: where keeping up costs little they keep up;
where clients write more than can be copied beside it, the more there is to copy the less is taken.
"""

from __future__ import annotations

import math

_WHOLE = 2.5  # what a copy costs in all: as much again and more goes into its arrival and its checkpoint
_FAIR = 0.25  # so much of the time is theirs if they keep up with it
_LEAST = 0.001
_MEMORY_S = 0.5  # what was longer ago counts little


class Share:
    def __init__(self) -> None:
        self._at: float | None = None
        self._spent = 0.0  # of the last _MEMORY_S, as the others
        self._came = 0.0  # records of the sources
        self._passed = 0.0  # of those, copied or left out

    def note(self, now: float, spent: float, came: int, passed: int) -> None:
        """Routers have worked until now."""
        kept = math.exp(-(spent if self._at is None else now - self._at) / _MEMORY_S)
        self._at = now
        self._spent = kept * self._spent + spent
        self._came = kept * self._came + came
        self._passed = kept * self._passed + passed

    @property
    def needed(self) -> float:
        """Of the time, to copy what comes as it comes; above 1 where that cannot be."""
        return _WHOLE * self._spent / _MEMORY_S * self._came / self._passed if self._passed else 0.0

    @property
    def taken(self) -> float:
        needed = self.needed
        return _FAIR if needed <= _FAIR else max(_LEAST, _FAIR * (_FAIR / needed) ** 3)

    def slice(self, longest: float, pause: float) -> float:
        """So long they may work at a time, with pauses of at most that length."""
        return min(longest, pause * self.taken / _WHOLE)

    def rest(self, spent: float) -> float:
        """So long the time is the others' after this."""
        return spent * _WHOLE * (1 - self.taken) / self.taken
