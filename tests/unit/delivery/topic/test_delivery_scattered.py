"""Numbers in any order, each once."""

from __future__ import annotations

import pytest

from topicd.limits import SCATTERED
from topicd.shards.delivery.topic import scattered
from topicd.shards.delivery.topic.producers import SCATTERED_KEPT, ProducerTable
from topicd.shards.delivery.topic.scattered import Scattered

WHO = SCATTERED | 7


def test_each_number_is_new_once_whatever_the_order() -> None:
    table = ProducerTable()
    for at, number in enumerate((9, 3, 1_000_000, 4), start=1):
        assert table.is_next(WHO, number)
        table.assign(WHO, number, at, 1)
        assert not table.is_next(WHO, number) and table.lookup(WHO, number) == (number, at, 1)
    assert table.is_next(WHO, 5) and table.expected(WHO, 10) == 1_000_001


def test_a_million_neighbours_are_one_range() -> None:
    one = Scattered()
    for number in range(1, 100_001):
        one.add(number, number, 1)
    assert len(one._numbers) == 1 and len(one._answers) == 1_024
    assert one.answer(1) == (1, 0, 1) and one.knows(1)


def test_what_was_not_stored_may_be_sent_again_and_a_snapshot_does_not_hold_it() -> None:
    table = ProducerTable()
    table.assign(WHO, 1, 1, 2)
    table.assign(WHO, 5, 3, 1)
    again = ProducerTable()
    again.restore(table.to_snapshot(visible=2))
    assert not again.is_next(WHO, 1) and again.is_next(WHO, 5) and again.lookup(WHO, 1) == (1, 1, 2)
    table.take_back(WHO, 5)
    assert table.is_next(WHO, 5) and not table.is_next(WHO, 1)


def test_replayed_it_is_there_once() -> None:
    table = ProducerTable()
    table.replay_batch(WHO, 7, 1, 1)
    table.replay_batch(WHO, 7, 9, 1)
    assert table.lookup(WHO, 7) == (7, 1, 1)


def test_of_too_many_ranges_the_lowest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scattered, "RANGES_KEPT", 2_000)
    one = Scattered()
    for number in range(0, 4_002, 2):
        one.add(number, 1, 1)
    assert not one.knows(0) and one.knows(4_000) and len(one._numbers) <= 2_000


def test_producers_are_bounded_too() -> None:
    table = ProducerTable()
    for n in range(SCATTERED_KEPT + 5):
        table.assign(SCATTERED | n, 1, n + 1, 1)
    assert len(table) == SCATTERED_KEPT and table.is_next(SCATTERED, 1)
