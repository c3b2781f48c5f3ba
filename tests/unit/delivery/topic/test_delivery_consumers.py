"""Named consumers: what a change does, whenever it comes."""

from __future__ import annotations

from typing import Any

import pytest

from topicd.frames import FrameType
from topicd.shards.delivery.topic.consumers import ConsumerTable, NamedConsumer


def change(table: ConsumerTable, action: str, name: str, acked: int | None, ts: int = 5) -> int | None:
    table.replay(FrameType.CURSOR, {"action": action, "name": name, "acked": acked}, ts)
    consumer = table.get(name)
    return None if consumer is None else consumer.acked


def table(**acked: int) -> ConsumerTable:
    made = ConsumerTable()
    for name, seq in acked.items():
        change(made, "open", name, seq)
    return made


def test_the_first_to_open_wins() -> None:
    assert change(table(c=3), "open", "c", 9) == 3


@pytest.mark.parametrize(("seq", "acked"), [(2, 3), (3, 3), (4, 4)])
def test_an_acknowledgement_only_goes_forward(seq: int, acked: int) -> None:
    assert change(table(c=3), "ack", "c", seq) == acked


def test_an_acknowledgement_does_not_bring_a_removed_consumer_back() -> None:
    made = table(c=3)
    assert change(made, "remove", "c", None) is None
    assert change(made, "ack", "c", 9) is None
    assert len(made) == 0


def test_a_reset_goes_anywhere() -> None:
    assert change(table(c=3), "reset", "c", 1) == 1


def test_removing_twice_is_removing_once() -> None:
    made = table(c=3)
    for _ in range(2):
        assert change(made, "remove", "c", None) is None


def test_acked_by_all_is_what_the_slowest_has() -> None:
    assert table().acked_by_all == 0
    assert table(a=5, b=2, c=9).acked_by_all == 2


@pytest.mark.parametrize(
    ("acked", "visible", "earliest", "lag"),
    [(0, 10, 1, 10), (4, 10, 1, 6), (4, 10, 8, 3), (10, 10, 1, 0), (10, 10, 11, 0), (12, 10, 1, 0)],
)
def test_lag_counts_what_can_still_be_read(acked: int, visible: int, earliest: int, lag: int) -> None:
    assert ConsumerTable.lag(NamedConsumer("c", acked, 0), visible, earliest) == lag


def test_the_figure_is_the_lag_of_the_one_furthest_behind() -> None:
    assert table().figures(10, 1) == (0,)
    assert table(a=9, b=2).figures(10, 1) == (8,)


def test_a_snapshot_brings_all_of_it_back() -> None:
    made, other = table(a=1, b=2), ConsumerTable()
    change(made, "ack", "b", 7, ts=42)
    body: list[Any] = made.to_snapshot(10)
    other.restore(body)
    assert list(other) == [NamedConsumer("a", 1, 5), NamedConsumer("b", 7, 42)]
