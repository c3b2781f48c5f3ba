"""Medians, percentiles and spread; no dependency, exact on small samples."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

NS_PER_US = 1_000
PERCENTILES = {"p50": 50.0, "p99": 99.0, "p999": 99.9}


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
    """p50, p99 and p99.9 in microseconds, and of how many."""
    ordered = sorted(samples_ns)
    found = {name: percentile(ordered, percent) / NS_PER_US for name, percent in PERCENTILES.items()}
    return {**found, "records": len(ordered)}


def throughput(records: int, seconds: float, size: int) -> dict[str, float]:
    rate = records / seconds
    return {"rate": rate, "mb_s": rate * size / 1e6, "records": records}
