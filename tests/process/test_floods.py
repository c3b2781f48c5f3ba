"""Floods, stopped watchers and stopped WAL shards, small; the programs beside this measure what others notice."""

from __future__ import annotations

from pathlib import Path

from tests.process import flooding_producer, full_pressure, many_watchers


def test_one_that_waits_for_each_answer_gets_on_beside_a_flood(tmp_path: Path) -> None:
    """How much slower it is, is measured by the program: here the machine may be busy with anything."""
    found = flooding_producer.play(tmp_path, flooding_producer.Load(seconds=1.0), flood=True)
    assert 0 < found.p50 < 100_000, found
    assert found.flood_mb_s > 0
    assert found.paused > 0, found  # it leaves time to the other one


def test_stopped_watchers_cost_the_others_nothing_that_they_would_miss(tmp_path: Path) -> None:
    """That each of the others gets every record once and in order is checked by those who read."""
    load = many_watchers.Load(watchers=44, stopped=4, records=30, per_second=30, size=64 * 1024)
    found = many_watchers.play(tmp_path, load, stopped=True)
    assert found.lagging == 4, found


def test_nothing_that_was_answered_is_missing_after_full_pressure(tmp_path: Path) -> None:
    found = full_pressure.play(tmp_path, full_pressure.Load(seconds=4.0, longest_stop_s=1.5, seed=7))
    assert found.written > 0
    assert found.stops > 0
