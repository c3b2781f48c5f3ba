"""How much of the time routers take."""

from __future__ import annotations

import pytest

from topicd.shards.delivery.routing import share as module
from topicd.shards.delivery.routing.share import Share


def after(seconds: float, *, came: int, passed: int, spent: float, share: Share | None = None) -> Share:
    """A hundred times a second for so long: came and passed and spent are of one second."""
    share = share or Share()
    now = 0.0 if share._at is None else share._at
    for n in range(1, round(100 * seconds) + 1):
        share.note(now + n / 100, spent / 100, came // 100, passed // 100)
    return share


def test_whoever_keeps_up_has_its_whole_share() -> None:
    share = after(2, came=10_000, passed=10_000, spent=0.05)
    assert share.needed == pytest.approx(0.05 * module._WHOLE, rel=0.05)
    assert share.taken == module._FAIR


def test_what_is_needed_does_not_depend_on_what_is_taken() -> None:
    for part in (1, 10):
        share = after(2, came=100_000, passed=100_000 // part, spent=0.1 / part)
        assert share.needed == pytest.approx(0.1 * module._WHOLE, rel=0.05)


def test_the_more_there_is_to_copy_the_less_is_taken() -> None:
    shares = [after(2, came=round(n * 100_000), passed=100_000, spent=0.05) for n in (1, 1.9, 4, 8, 1_000)]
    taken = [share.taken for share in shares]
    assert taken[:2] == [module._FAIR] * 2
    assert taken[2:] == sorted(taken[2:], reverse=True)
    assert taken[2] < module._FAIR / 2
    assert taken[3] < module._FAIR / 10
    assert taken[4] == module._LEAST


def test_a_flood_after_a_long_rest_is_seen_at_once() -> None:
    share = Share()
    share.note(1.0, 0.0001, 0, 10)
    share.note(1_000.0, 0.0001, 0, 10)
    flooded = after(0.2, came=10_000_000, passed=100_000, spent=0.1, share=share)
    assert flooded.taken < module._FAIR / 10


def test_a_flood_that_is_over_is_forgotten() -> None:
    share = after(2, came=10_000_000, passed=100_000, spent=0.1)
    assert share.taken == module._LEAST
    assert after(5, came=100, passed=1_000_000, spent=0.2, share=share).taken == module._FAIR


def test_pauses_leave_the_rest_of_the_time_and_a_small_share_has_short_slices() -> None:
    share = Share()
    assert share.rest(0.001) == pytest.approx(0.001 * module._WHOLE * (1 - module._FAIR) / module._FAIR)
    assert share.slice(0.002, 0.1) == 0.002
    flooded = after(2, came=10_000_000, passed=100_000, spent=0.1)
    assert flooded.rest(0.001) > 1
    assert 0 < flooded.slice(0.002, 0.1) < 0.0001
