"""Jobs that are not plain: which of them belong to which lane. Neighbours that are alike are one run, however many.

Promise: a run is known until the last of its jobs is done; then it costs nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from topicd.shards.delivery.queues.lanes import Lane

_EMPTY_KEPT = 64  # runs without jobs that may lie about


class PlacedRun:
    __slots__ = ("first", "lane", "last", "left")

    def __init__(self, first: int, last: int, lane: Lane) -> None:
        self.first = first
        self.last = last
        self.lane = lane
        self.left = last - first + 1  # jobs that are not done


class Placed:
    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._runs: list[PlacedRun] = []
        self._empty = 0

    def __len__(self) -> int:
        return len(self._runs) - self._empty

    def __iter__(self) -> Iterator[PlacedRun]:
        return (run for run in self._runs if run.left)

    def add(self, first: int, last: int, lane: Lane) -> None:
        """Behind all that are there."""
        lane.jobs += last - first + 1
        if self._runs:
            newest = self._runs[-1]
            if newest.lane is lane and newest.last + 1 == first and newest.left:
                newest.last = last
                newest.left += last - first + 1
                return
        self._firsts.append(first)
        self._runs.append(PlacedRun(first, last, lane))

    def find(self, seq: int) -> PlacedRun | None:
        """None: a plain job."""
        at = bisect_right(self._firsts, seq) - 1
        if at < 0:
            return None
        run = self._runs[at]
        return run if seq <= run.last else None

    def lane_of(self, seq: int) -> Lane | None:
        run = self.find(seq)
        return None if run is None else run.lane

    def between(self, first: int, last: int) -> Iterator[PlacedRun]:
        """Runs that have a job in first..last, in order."""
        at = max(0, bisect_right(self._firsts, first) - 1)
        while at < len(self._runs) and self._runs[at].first <= last:
            run = self._runs[at]
            if run.last >= first:
                yield run
            at += 1

    def done(self, first: int, last: int) -> list[Lane]:
        """These jobs are done; lanes that have no jobs any more."""
        ended: list[Lane] = []
        for run in self.between(first, last):
            count = min(last, run.last) - max(first, run.first) + 1
            count = min(count, run.left)
            run.left -= count
            run.lane.jobs -= count
            if count and not run.left:
                self._empty += 1
            if count and not run.lane.jobs:
                ended.append(run.lane)
        if self._empty > _EMPTY_KEPT and self._empty * 2 > len(self._runs):
            self._runs = [run for run in self._runs if run.left]
            self._firsts = [run.first for run in self._runs]
            self._empty = 0
        return ended
