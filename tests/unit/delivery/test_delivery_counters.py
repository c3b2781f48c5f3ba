"""Counters and their page."""

from __future__ import annotations

from topicd import metrics
from topicd.shards.delivery.counters import Counters


def test_each_name_on_the_page_is_a_metric() -> None:
    assert set(Counters().page()) <= set(metrics.DELIVERY)


def test_each_counter_is_on_the_page_under_its_own_name() -> None:
    counters = Counters()
    names = [name for name in vars(counters) if name not in ("bytes_taken", "damage")]
    for number, name in enumerate(names, 1):
        setattr(counters, name, number)
    page = counters.page()
    assert {name: page[name] for name in names} == {name: number for number, name in enumerate(names, 1)}


def test_of_damage_the_page_has_the_number_of_places() -> None:
    counters = Counters()
    counters.damage = ["here", "there"]
    assert counters.page()["damage"] == 2
