from __future__ import annotations

import pytest

from topicd.bench.stats import latency, percentile, spread, throughput


def test_percentile_is_a_value_that_occurred():
    ordered = list(range(1, 101))
    assert percentile(ordered, 50) == 50
    assert percentile(ordered, 99) == 99
    assert percentile(ordered, 100) == 100
    assert percentile([7], 99) == 7
    assert percentile([1, 2], 0) == 1


def test_percentile_of_nothing_is_refused():
    with pytest.raises(ValueError, match="nothing"):
        percentile([], 50)


def test_spread_is_half_the_distance_of_the_extremes():
    found = spread([90.0, 100.0, 130.0])
    assert (found.median, found.low, found.high, found.rounds) == (100.0, 90.0, 130.0, 3)
    assert found.percent == pytest.approx(20.0)
    assert spread([0.0]).percent == 0.0


def test_latency_sorts_and_is_in_microseconds():
    assert latency([3000, 1000, 2000]) == {"p50": 2.0, "p99": 3.0, "p999": 3.0, "records": 3}


def test_throughput_counts_records_and_bytes():
    assert throughput(1000, 0.5, 100) == {"rate": 2000.0, "mb_s": pytest.approx(0.2), "records": 1000}
