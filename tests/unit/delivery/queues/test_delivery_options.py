"""What jobs are published with."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from topicd.errors import InvalidRequest
from topicd.limits import READY_MS_MAX
from topicd.shards.delivery.queues.options import Asked, Options, parse

NOW = 1_700_000_000_000


def asked(rows: Any, count: int = 3) -> Asked:
    return parse(memoryview(msgpack.packb(rows)), count, NOW)


def test_options_are_those_of_the_records_they_name() -> None:
    found = asked([[0, 1, {"priority": 9, "group": "g"}], [2, 1, {"delay_ms": 500}]])
    first, second = found.at(101)
    assert (first.first, first.last, first.priority, first.group, first.placed) == (101, 101, 9, "g", True)
    assert (second.first, second.ready_at, second.placed) == (103, NOW + 500, False)


def test_a_time_in_the_past_is_now() -> None:
    assert asked([[0, 1, {"ready_at": NOW - 1}]]).rows[0].ready_at == 0


def test_the_log_gives_the_same_again() -> None:
    found = asked(
        [[0, 1, {"priority": 1, "group": "g", "unique": "k", "until": "time", "unique_ms": 5, "delay_ms": 7}]], 1
    )
    row = found.rows[0]
    again = Options.from_log(row.to_log())
    assert all(getattr(again, name) == getattr(row, name) for name in Options.__slots__)
    assert again.key_ms == NOW + 5


@pytest.mark.parametrize(
    "rows",
    [
        {},
        [[0, 1]],
        [[0, 4, {}]],
        [[1, 1, {}], [1, 1, {}]],
        [[0, 0, {}]],
        [[0, 1, {"priority": 10}]],
        [[0, 1, {"nonsense": 1}]],
        [[0, 1, []]],
        [[0, 1, {"unique": "k"}]],
        [[0, 1, {"delay_ms": 1, "ready_at": NOW}]],
        [[0, 1, {"ready_at": NOW + READY_MS_MAX + 1}]],
        [[True, 1, {}]],
    ],
)
def test_anything_else_is_refused(rows: Any) -> None:
    with pytest.raises(InvalidRequest):
        asked(rows)


def test_until_a_time_needs_one() -> None:
    with pytest.raises(InvalidRequest, match="unique_ms"):
        asked([[0, 1, {"unique": "k", "until": "time"}]], 1)


def test_what_is_no_msgpack_or_too_much_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        parse(memoryview(b"\xc1"), 1, NOW)
    with pytest.raises(InvalidRequest, match="at most"):
        parse(memoryview(bytes(70_000)), 1, NOW)
