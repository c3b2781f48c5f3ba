"""The numbers of a topic's changes. Promise: replay knows which of them a snapshot holds already."""

from __future__ import annotations


class Changes:
    __slots__ = ("_under_way", "newest")

    def __init__(self) -> None:
        self.newest = 0  # stored or under way
        self._under_way: set[int] = set()

    def begin(self) -> int:
        self.newest += 1
        self._under_way.add(self.newest)
        return self.newest

    def end(self, number: int) -> None:
        self._under_way.discard(number)

    @property
    def settled(self) -> int:
        """Every change up to this number is done, or was refused."""
        return min(self._under_way, default=self.newest + 1) - 1

    def is_new(self, number: int) -> bool:
        """At a start: does the log tell of a change that the snapshot does not hold?"""
        if number <= self.newest:
            return False
        self.newest = number
        return True
