"""A schedule as the log holds it."""

from __future__ import annotations

from topicd.shards.delivery.queues.crons import Cron


def test_a_row_gives_the_same_again() -> None:
    cron = Cron("nightly", "0 3 * * *", "UTC", b"{}", "t", 4, "g", 10, 5)
    assert Cron.from_row(cron.to_row()) == cron
