"""Latency in buckets that double, for the stats page: bounded, cheap to note, good enough for p99."""

from __future__ import annotations

from bisect import bisect_left

BOUNDS_US = (50, 100, 250, 500, 1_000, 5_000, 10_000, 50_000, 100_000)  # as HTTP tells it, then infinity
BOUNDS_S = tuple(50e-6 * 2**i for i in range(12))  # 50 µs … 102 ms, then infinity


class Histogram:
    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.by_us = [0] * (len(BOUNDS_US) + 1)
        self.total_s = 0.0

    def note(self, seconds: float) -> None:
        self.total_s += seconds
        self.by_us[bisect_left(BOUNDS_US, seconds * 1e6)] += 1
        for i, bound in enumerate(BOUNDS_S):
            if seconds <= bound:
                self.counts[i] += 1
                return
        self.counts[-1] += 1
