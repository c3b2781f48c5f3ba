"""Medians, percentiles and spread; no dependency, exact on small samples."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

NS_PER_US = 1_000


class Spread(NamedTuple):
    median: float
    low: float
    high: float
    rounds: int

    @property
    def percent(self) -> float:
        """Half the distance between the extremes, as a share of the median."""
        return 100 * (self.high - self.low) / 2 / abs(self.median) if self.median else 0.0


def spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values), len(values))


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Nearest rank of values that are sorted already: a value that occurred, never an interpolation."""
    if not ordered:
        raise ValueError("percentile of nothing")
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, min(len(ordered), int(rank)) - 1)]


def latency(samples_ns: Sequence[int]) -> dict[str, float]:
    """p50 and p99 in microseconds."""
    ordered = sorted(samples_ns)
    return {"p50": percentile(ordered, 50) / NS_PER_US, "p99": percentile(ordered, 99) / NS_PER_US}


def throughput(records: int, seconds: float, size: int) -> dict[str, float]:
    rate = records / seconds
    return {"rate": rate, "mb_s": rate * size / 1e6}
