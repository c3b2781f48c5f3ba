"""So many in a second, and when the next one."""

from __future__ import annotations

import pytest

from topicd.shards.delivery.queues.rates import Rate


def started(per_s: int, ms: int) -> int:
    """How many start if somebody takes what there is, millisecond by millisecond."""
    rate, count = Rate(), 0
    for now in range(1_000_000, 1_000_000 + ms):
        room = rate.room(now, per_s)
        rate.take(room, now, per_s)
        count += room
    return count


@pytest.mark.parametrize("per_s", [1, 3, 10, 100, 5_000])
def test_never_much_more_and_not_less(per_s: int) -> None:
    assert per_s <= started(per_s, 1_000) <= per_s * 1.1 + 1
    assert 5 * per_s <= started(per_s, 5_000) <= 5 * per_s + per_s * 0.1 + 1


def test_it_says_when_there_is_room_again() -> None:
    rate = Rate()
    assert rate.room(1_000, 2) == 1
    rate.take(1, 1_000, 2)
    assert rate.room(1_000, 2) == 0
    at = rate.free_at(2)
    assert rate.room(at - 2, 2) == 0 and rate.room(at, 2) == 1
    assert 1_499 <= at <= 1_501


def test_what_was_not_used_is_not_saved_up() -> None:
    rate = Rate()
    rate.take(1, 1_000, 10)
    assert rate.room(1_000_000, 10) == 1


@pytest.mark.parametrize("per_s", [1, 7, 1_000])
def test_a_clock_that_is_set_back_holds_nobody_up(per_s: int) -> None:
    rate, now = Rate(), 10_000_000
    rate.take(rate.room(now, per_s), now, per_s)
    assert rate.room(now - 3_600_000, per_s) >= 1
    rate.take(1, now - 3_600_000, per_s)
    assert rate.free_at(per_s) <= now - 3_600_000 + 1_001
