"""Two checkouts in one run: which figures count, and which way a ratio points."""

from __future__ import annotations

from benchmarks import cases
from benchmarks.compare import figures_of, ratios, render


def test_a_ratio_above_one_means_that_this_checkout_is_better() -> None:
    lower, higher = ("A.durable.100", "", "p50"), ("B.durable.100", "", "rate")
    here = [{lower: 100.0, higher: 50.0}, {lower: 110.0, higher: 60.0}, {lower: 500.0, higher: 1.0}]
    other = [{lower: 220.0, higher: 100.0}] * 3
    found = {(row.case, row.figure): row.ratio for row in ratios(here, other)}
    assert found == {("A.durable.100", "p50"): 2.0, ("B.durable.100", "rate"): 0.5}
    assert "0.50 **below**" in render(ratios(here, other))


def test_figures_that_one_side_lacks_do_not_count() -> None:
    case = next(iter(cases.all_cases())).id
    assert ratios([{(case, "", "p50"): 1.0}], [{}]) == []


def test_only_our_own_figures_are_compared() -> None:
    rows = [
        {"peer": "topicd", "variant": "v", "figures": {"p50": {"median": 3.0}}},
        {"peer": "redis", "variant": "", "figures": {"p50": {"median": 9.0}}},
    ]
    assert figures_of({"cases": [{"id": "A", "results": rows}]}) == {("A", "v", "p50"): 3.0}
