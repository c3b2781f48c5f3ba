"""The numbers of changes: what a snapshot holds, and what replay does again."""

from __future__ import annotations

import itertools

import pytest

from topicd.shards.delivery.topic.changes import Changes


def test_settled_ends_before_the_oldest_change_under_way() -> None:
    changes = Changes()
    assert changes.settled == 0
    first, second, third = changes.begin(), changes.begin(), changes.begin()
    changes.end(second)
    assert changes.settled == first - 1
    changes.end(first)
    assert changes.settled == second
    changes.end(third)
    assert changes.settled == third


@pytest.mark.parametrize("order", list(itertools.permutations([1, 2, 3])))
def test_no_order_of_ends_settles_what_is_under_way(order: tuple[int, ...]) -> None:
    changes = Changes()
    for _ in order:
        changes.begin()
    left = set(order)
    for number in order:
        changes.end(number)
        left.discard(number)
        assert not any(number <= changes.settled for number in left)
    assert changes.settled == 3


def test_what_has_no_number_may_end() -> None:
    changes = Changes()
    changes.begin()
    changes.end(0)
    assert changes.settled == 0


def test_replay_does_what_the_snapshot_does_not_hold_and_each_once() -> None:
    changes = Changes()
    changes.newest = 5
    assert [changes.is_new(number) for number in (4, 5, 6, 6, 7)] == [False, False, True, False, True]
    assert changes.settled == 7
