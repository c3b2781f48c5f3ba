"""Batch numbers that come in any order. Promise: each is stored once, as long as it is remembered; neighbours cost no
more than one of them, and of what lies far apart RANGES_KEPT ranges are remembered, the highest.
"""

from __future__ import annotations

from typing import Any

from topicd.shards.storage.ranges import Ranges

RANGES_KEPT = 65_536
_FORGOTTEN = 1_024  # ranges at once
_ANSWERS_KEPT = 1_024


class Scattered:
    __slots__ = ("_answers", "_numbers", "highest", "newest")

    def __init__(self) -> None:
        self._numbers = Ranges()  # stored, or under way
        self._answers: dict[int, tuple[int, int]] = {}  # by number, newest last: first seq, records
        self.highest = 0
        self.newest = 0  # seq at which its last batch begins

    def knows(self, number: int) -> bool:
        return number in self._numbers

    def answer(self, number: int) -> tuple[int, int, int]:
        """(number, first seq, records); a seq of 0: it is stored, and nobody knows where any more."""
        first_seq, count = self._answers.get(number, (0, 1))
        return number, first_seq, count

    def add(self, number: int, first_seq: int, count: int) -> None:
        self._numbers.add(number)
        self._answers[number] = (first_seq, count)
        if len(self._answers) > _ANSWERS_KEPT:
            del self._answers[next(iter(self._answers))]
        self.newest = max(self.newest, first_seq)
        self.highest = max(self.highest, number)
        if len(self._numbers) > RANGES_KEPT:
            self._numbers = Ranges(list(self._numbers)[_FORGOTTEN:])

    def take_back(self, number: int) -> None:
        self._answers.pop(number, None)
        one = Ranges([(number, number)])
        self._numbers = Ranges([part for first, last in self._numbers for part in one.missing(first, last)])

    def stored(self, visible: int) -> tuple[bytes, list[list[int]]]:
        """(numbers as Ranges.packed has them, [number, first seq, records]) of what is not merely under way."""
        flying = [number for number, (first, count) in self._answers.items() if first + count - 1 > visible]
        answers = [[number, *rest] for number, rest in self._answers.items() if number not in flying]
        if not flying:
            return self._numbers.packed(), answers
        away = Ranges([(number, number) for number in sorted(flying)])
        return Ranges([part for a, b in self._numbers for part in away.missing(a, b)]).packed(), answers

    def restore(self, numbers: bytes, answers: Any) -> None:
        self._numbers = Ranges.unpack(numbers)
        self._answers = {number: (first, count) for number, first, count in answers}
        self.newest = max((first for first, _ in self._answers.values()), default=0)
        self.highest = max((last for _, last in self._numbers), default=0)
