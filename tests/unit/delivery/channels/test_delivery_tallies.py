"""What channels count."""

from __future__ import annotations

from topicd import metrics
from topicd.metrics import DELIVERY
from topicd.shards.delivery.channels.tallies import SAVE_BOUNDS_S, Tallies


def test_c21_sixteen_buckets_that_double_from_a_tenth_of_a_millisecond() -> None:
    assert (len(SAVE_BOUNDS_S), SAVE_BOUNDS_S[0], SAVE_BOUNDS_S[1]) == (16, 0.0001, 0.0002)
    assert metrics.SAVE_BOUNDS_S == SAVE_BOUNDS_S
    tallies = Tallies()
    for seconds in (0.0001, 0.00011, 100.0):
        tallies.saved(True, seconds)
    assert tallies.save_histogram == [1, 1, *[0] * 14, 1]


def test_every_number_is_a_metric_or_part_of_one() -> None:
    made_otherwise = {"store_saves", "store_save_failures", "store_save_histogram", "store_save_seconds"}
    assert set(Tallies().page()) - made_otherwise <= set(DELIVERY)
