"""A set of seqs kept as sorted, disjoint, inclusive ranges: small however many seqs it covers."""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator


class Ranges:
    __slots__ = ("_covered", "_firsts", "_lasts", "_packed")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self._covered = 0
        self._packed: bytes | None = None
        self.update(ranges)

    @classmethod
    def unpack(cls, packed: bytes | memoryview) -> Ranges:
        """The inverse of packed(), which is believed to be sorted and disjoint."""
        ranges = cls()
        bounds = list(struct.unpack(f"<{len(packed) // 8}Q", packed))
        ranges._firsts, ranges._lasts = bounds[0::2], bounds[1::2]
        ranges._covered = sum(ranges._lasts) - sum(ranges._firsts) + len(ranges._firsts)
        return ranges

    def __reduce__(self) -> tuple[type[Ranges], tuple[list[tuple[int, int]]]]:
        """For processes of Spark: machine code and source do not understand each other's attributes."""
        return Ranges, (list(self),)

    @property
    def covered(self) -> int:
        """How many seqs are in the set."""
        return self._covered

    @property
    def bounds(self) -> tuple[int, int]:
        """The lowest and the highest seq; not of an empty set."""
        return self._firsts[0], self._lasts[-1]

    def add(self, first: int, last: int | None = None) -> int:
        """Put first..last in; the number of seqs that were not there before."""
        last = first if last is None else last
        if first > last:
            raise ValueError(f"range {first}..{last} runs backwards")
        if not self._lasts or first > self._lasts[-1] + 1:
            # Behind all the others: the usual case when marks are read back.
            self._firsts.append(first)
            self._lasts.append(last)
            self._covered += last - first + 1
            self._packed = None
            return last - first + 1
        if first == self._lasts[-1] + 1:
            # Just behind them: what is done in order.
            self._lasts[-1] = last
            self._covered += last - first + 1
            self._packed = None
            return last - first + 1
        # Neighbours merge: [1..3] and [4..5] become [1..5].
        low = bisect_left(self._lasts, first - 1)
        high = bisect_right(self._firsts, last + 1)
        swallowed = sum(self._lasts[i] - self._firsts[i] + 1 for i in range(low, high))
        if low < high:
            first = min(first, self._firsts[low])
            last = max(last, self._lasts[high - 1])
        self._firsts[low:high] = [first]
        self._lasts[low:high] = [last]
        added = last - first + 1 - swallowed
        if added:
            self._covered += added
            self._packed = None
        return added

    def update(self, ranges: Iterable[tuple[int, int]]) -> int:
        return sum(self.add(first, last) for first, last in ranges)

    def __contains__(self, seq: object) -> bool:
        if not isinstance(seq, int):
            return False
        at = bisect_left(self._lasts, seq)
        return at < len(self._lasts) and self._firsts[at] <= seq

    def within(self, first: int, last: int) -> list[tuple[int, int]]:
        """The parts of first..last that are in the set."""
        low = bisect_left(self._lasts, first)
        high = bisect_right(self._firsts, last)
        return [(max(first, self._firsts[i]), min(last, self._lasts[i])) for i in range(low, high)]

    def touches(self, first: int, last: int) -> bool:
        """Is any of first..last in the set?"""
        at = bisect_left(self._lasts, first)
        return at < len(self._lasts) and self._firsts[at] <= last

    def last_of(self, seq: int) -> int:
        """The last seq of the range that holds it; 0: none does."""
        at = bisect_left(self._lasts, seq)
        return self._lasts[at] if at < len(self._lasts) and self._firsts[at] <= seq else 0

    def missing(self, first: int, last: int) -> list[tuple[int, int]]:
        """The parts of first..last that are not in the set."""
        found: list[tuple[int, int]] = []
        for a, b in self.within(first, last):
            if first < a:
                found.append((first, a - 1))
            first = b + 1
        if first <= last:
            found.append((first, last))
        return found

    def count_within(self, first: int, last: int) -> int:
        return sum(b - a + 1 for a, b in self.within(first, last))

    def packed(self) -> bytes:
        """Little-endian u64 pairs, ascending: what core.select_frames takes as `dead`."""
        if self._packed is None:
            flat = [bound for pair in self for bound in pair]
            self._packed = struct.pack(f"<{len(flat)}Q", *flat)
        return self._packed

    def copy(self) -> Ranges:
        twin = Ranges()
        twin._firsts = self._firsts.copy()
        twin._lasts = self._lasts.copy()
        twin._covered = self._covered
        twin._packed = self._packed
        return twin

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._firsts, self._lasts, strict=True)

    def __len__(self) -> int:
        """How many ranges, not how many seqs."""
        return len(self._firsts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ranges) and self._firsts == other._firsts and self._lasts == other._lasts

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"Ranges({list(self)})"
