"""What is said of jobs, as rows of the log."""

from __future__ import annotations

import msgpack

from topicd.shards.delivery.queues.facts import Past, Stop, Totals


def test_they_are_rows_that_the_log_can_hold() -> None:
    for fact in (Past(2, 1, 3, "oops"), Stop("breaker", "too many", 7), Totals(1, 2, 3, 4, 5)):
        assert type(fact)(*msgpack.unpackb(msgpack.packb(list(fact)))) == fact
