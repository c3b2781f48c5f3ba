"""What is said of jobs, as rows of the log."""

from __future__ import annotations

import msgpack

from topicd.shards.delivery.queues.facts import Past, Stop, Totals


def test_they_are_rows_that_the_log_can_hold() -> None:
    for fact in (Past(2, 1, 3, "oops"), Stop("breaker", "too many", 7)):
        assert type(fact)(*msgpack.unpackb(msgpack.packb(list(fact)))) == fact
    assert Totals(*msgpack.unpackb(msgpack.packb(Totals(1, 2, 3, 4, 5).row))).row == [1, 2, 3, 4, 5]


def test_totals_are_as_high_as_either_says() -> None:
    known = Totals(5, 1, 0, 0, 3)
    assert known.at_least([4, 2, 0, 0, 3]).row == [5, 2, 0, 0, 3]
    assert known.at_least([5, 1, 0, 0, 3]) is known
