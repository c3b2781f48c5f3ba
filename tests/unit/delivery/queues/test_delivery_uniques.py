"""Keys that one job holds."""

from __future__ import annotations

from topicd.shards.delivery.queues.uniques import DONE, START, TIME, UniqueKeys


def test_held_until_done_or_until_started() -> None:
    keys = UniqueKeys()
    keys.hold("a", 1, DONE, 0)
    keys.hold("b", 2, START, 0)
    keys.started(1)
    keys.started(2)
    assert keys.holder("a", 0) is not None and keys.holder("b", 0) is None
    keys.ended(1)
    assert keys.holder("a", 0) is None and len(keys) == 0


def test_held_for_a_time_whatever_becomes_of_the_job() -> None:
    keys = UniqueKeys()
    keys.hold("a", 1, TIME, 1_000)
    keys.ended(1)
    held = keys.holder("a", 999)
    assert held is not None and held.seq == 1
    assert keys.holder("a", 1_000) is None


def test_a_key_that_changes_hands_is_not_freed_by_the_one_before() -> None:
    keys = UniqueKeys()
    keys.hold("a", 1, DONE, 0)
    keys.hold("a", 2, DONE, 0)
    keys.ended(1)
    held = keys.holder("a", 0)
    assert held is not None and held.seq == 2


def test_rows_of_what_is_stored_give_the_same_again() -> None:
    keys = UniqueKeys()
    keys.hold("a", 1, DONE, 0)
    keys.hold("b", 9, DONE, 0)
    again = UniqueKeys()
    again.restore(keys.rows(visible=5))
    assert again.holder("a", 0) == keys.holder("a", 0) and again.holder("b", 0) is None


def test_those_whose_time_is_over_go() -> None:
    keys = UniqueKeys()
    keys.hold("a", 1, TIME, 10)
    keys.hold("b", 2, TIME, 20)
    keys.expire(10)
    assert len(keys) == 1 and keys.key_of(2) == "b" and keys.key_of(1) == ""
