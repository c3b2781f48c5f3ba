from __future__ import annotations

import pytest

from benchmarks import bars, cases
from benchmarks.bars import BARS, Bar, Source, Verdict, judge, judge_all
from benchmarks.model import Key, Results

AT_LEAST = Bar("C", "", Source("topicd", "C", "rate"), Source("redis", "C", "rate"), 6.0, at_least=True, durable=True)
AT_MOST = Bar(
    "A",
    "",
    Source("topicd", "A", "p50"),
    Source("disk", "A", "p50", ("overwrite",)),
    2.0,
    at_least=False,
    stretch=1.5,
)
LIMIT = Bar("H", "", Source("topicd", "H", "empty"), 160.0, 1.0, at_least=False)
STEADY = Bar(
    "growth",
    "",
    Source("topicd", "growth", "p99", step="most"),
    Source("topicd", "growth", "p99", step="least"),
    1.15,
    at_least=False,
)


def results(**figures: list[tuple[str, str, str, float]]) -> Results:
    """results(rate=[("C", "redis", "Lua", 100.0)])"""
    found = Results()
    for name, rows in figures.items():
        for case, peer, variant, value in rows:
            found.add(Key(case, peer, variant), {name: value})
    return found


def test_the_best_variant_of_a_peer_is_the_reference():
    run = results(rate=[("C", "topicd", "", 600), ("C", "redis", "pipeline", 50), ("C", "redis", "Lua", 100)])
    found = judge(AT_LEAST, run, {})
    assert (found.verdict, found.reference, found.ratio) == (Verdict.MET, 100, 6.0)


def test_bar_is_missed_by_a_hair():
    run = results(rate=[("C", "topicd", "", 599), ("C", "redis", "Lua", 100)])
    assert judge(AT_LEAST, run, {}).verdict is Verdict.MISSED


def test_median_of_the_rounds_is_judged():
    rounds = [("C", "topicd", "", value) for value in (1, 700, 800)]
    run = results(rate=[*rounds, ("C", "redis", "Lua", 100)])
    assert judge(AT_LEAST, run, {}).ours == 700


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [(140, Verdict.STRETCH), (150, Verdict.STRETCH), (199, Verdict.MET), (201, Verdict.MISSED)],
)
def test_latency_is_judged_against_the_named_variant_with_stretch(ours, verdict):
    run = results(p50=[("A", "topicd", "", ours), ("A", "disk", "append", 10), ("A", "disk", "overwrite", 100)])
    assert judge(AT_MOST, run, {}).verdict is verdict


def test_absolute_limit():
    assert judge(LIMIT, results(empty=[("H", "topicd", "", 160)]), {}).verdict is Verdict.MET
    assert judge(LIMIT, results(empty=[("H", "topicd", "", 161)]), {}).verdict is Verdict.MISSED


def test_growth_compares_the_most_stored_with_the_least():
    rows = [
        ("growth", "topicd", f"{n:,} records", p99) for n, p99 in ((10_000_000, 114), (100_000, 100), (1_000_000, 500))
    ]
    found = judge(STEADY, results(p99=rows), {})
    assert (found.ours, found.reference, found.verdict) == (114, 100, Verdict.MET)
    assert judge(STEADY, results(p99=rows[:1]), {}).verdict is Verdict.UNKNOWN


def test_absent_figures_are_not_measured_and_say_whose():
    found = judge(AT_LEAST, results(rate=[("C", "redis", "", 1)]), {})
    assert (found.verdict, found.note) == (Verdict.UNKNOWN, "no figure of topicd")
    assert judge(AT_LEAST, results(rate=[("C", "topicd", "", 1)]), {}).note == "no figure of redis"


def test_peer_that_does_not_sync_is_no_reference_for_a_durable_bar():
    run = results(rate=[("C", "topicd", "", 1), ("C", "redis", "", 1)])
    assert judge(AT_LEAST, run, {"redis": False}).verdict is Verdict.UNFAIR


def test_durable_bar_is_missed_when_ours_does_not_sync():
    run = results(rate=[("C", "topicd", "", 1000), ("C", "redis", "", 1)])
    found = judge(AT_LEAST, run, {"topicd": False, "redis": True})
    assert (found.verdict, found.note) == (Verdict.MISSED, "topicd does not sync")


def test_only_bars_of_the_tests_that_ran_are_judged():
    assert {found.bar.test for found in judge_all(Results(), {}, {"A", "H"})} == {"A", "H"}


def test_every_bar_names_a_case_and_a_figure_that_exist():
    known = {case.id: {figure.name for figure in case.figures} for case in cases.all_cases()}
    for bar in BARS:
        for source in (bar.ours, bar.against):
            if isinstance(source, Source):
                assert source.figure in known[source.case], bar.text
        assert bar.test in cases.TESTS


def test_named_variants_are_those_of_the_drivers():
    from benchmarks.drivers import redis

    variants = {
        variant for test in cases.TESTS for variant in redis.drivers(test, cases.select([test], quick=False)[0].full)
    }
    assert {bars.ASYNCIO, bars.REWRITTEN, "XREAD"} <= variants
