"""Each damaged place is said and counted once, whoever meets it however often."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from topicd.errors import StorageCorrupt
from topicd.shards.delivery import damage
from topicd.shards.delivery.counters import Counters
from topicd.shards.delivery.damage import DamageLog
from topicd.shards.storage.segment.info import SegmentDamage


def corrupt(first: int, last: int, segment: str = "/a.data") -> StorageCorrupt:
    return StorageCorrupt(f"{first}..{last}", segment=segment, first_seq=first, last_seq=last)


def test_a_place_counts_once_however_much_of_it_is_met(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    counters = Counters()
    met = DamageLog(counters)
    for first, last in ((10, 12), (10, 12), (11, 11), (10, 40), (38, 50)):
        met.met("orders", corrupt(first, last))
    assert counters.damage == ["topic orders: 10..12"]
    met.met("orders", corrupt(60, 60))
    met.met("orders", corrupt(10, 12, "/b.data"))
    met.sealed(SegmentDamage(Path("/b.data"), 12, 13, "frames cannot be read"))
    met.sealed(SegmentDamage(Path("/b.data"), 20, 20, "frames cannot be read"))
    assert len(counters.damage) == counters.page()["damage"] == len(caplog.records) == 4


def test_the_list_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damage, "_PLACES_MAX", 3)
    counters = Counters()
    met = DamageLog(counters)
    for seq in range(1, 20, 2):
        met.met("orders", corrupt(seq, seq))
    assert len(counters.damage) == 3


def test_status_is_told_the_first_places_and_not_more_than_its_page_holds() -> None:
    counters = Counters()
    met = DamageLog(counters)
    for seq in range(1, 60, 2):
        met.met("orders", corrupt(seq, seq, "/" + "x" * 1_000))
    told = counters.told()
    assert counters.page()["damage"] == 30 and told[0].startswith("topic orders: 1..1")
    assert len(told) < 10 and max(map(len, told)) < 300
