"""Longer each time, up to a limit."""

from __future__ import annotations

from topicd.shards.delivery.routing.pauses import Pauses


def test_pauses_double_and_begin_again() -> None:
    pauses = Pauses(longest=0.05, first=0.01)
    assert [pauses.next() for _ in range(5)] == [0.01, 0.02, 0.04, 0.05, 0.05]
    pauses.reset()
    assert pauses.next() == 0.01
