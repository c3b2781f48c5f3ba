"""How long to wait before the next attempt: each time twice as long, up to a limit."""

from __future__ import annotations


class Pauses:
    def __init__(self, longest: float = 0.5, first: float = 0.01) -> None:
        self._first = first
        self._longest = longest
        self._next = first

    def next(self) -> float:
        pause, self._next = self._next, min(self._longest, 2 * self._next)
        return pause

    def reset(self) -> None:
        self._next = self._first
