"""When a schedule fires."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

import pytest

from topicd.errors import InvalidRequest
from topicd.shards.delivery.queues.schedule import parse


def times(text: str, start: str, count: int, zone: str = "UTC") -> list[str]:
    schedule = parse(text, zone)
    at: int | None = int(datetime.fromisoformat(start).replace(tzinfo=UTC).timestamp() * 1000)
    found = []
    for _ in range(count):
        assert at is not None
        at = schedule.next_after(at)
        assert at is not None
        found.append(datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%d %H:%M"))
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("*/5 * * * *", ["2026-02-27 23:55", "2026-02-28 00:00", "2026-02-28 00:05"]),
        ("0 3 * * *", ["2026-02-28 03:00", "2026-03-01 03:00", "2026-03-02 03:00"]),
        ("30 9-11/2 * * mon-fri", ["2026-03-02 09:30", "2026-03-02 11:30", "2026-03-03 09:30"]),
        ("0 0 1,15 * *", ["2026-03-01 00:00", "2026-03-15 00:00", "2026-04-01 00:00"]),
        ("0 12 13 * 5", ["2026-03-06 12:00", "2026-03-13 12:00", "2026-03-20 12:00"]),
        ("0 0 29 2 *", ["2028-02-29 00:00", "2032-02-29 00:00", "2036-02-29 00:00"]),
        ("0 0 * jan,dec 7", ["2026-12-06 00:00", "2026-12-13 00:00", "2026-12-20 00:00"]),
        ("50/5 23 * * *", ["2026-02-27 23:55", "2026-02-28 23:50", "2026-02-28 23:55"]),
        ("@hourly", ["2026-02-28 00:00", "2026-02-28 01:00", "2026-02-28 02:00"]),
    ],
)
def test_times_in_a_row(text: str, expected: list[str]) -> None:
    assert times(text, "2026-02-27 23:50:30", 3) == expected


def test_a_fixed_time_fires_once_when_the_clock_is_set_back_or_forth() -> None:
    back = times("30 2 * * *", "2026-10-24 12:00", 3, "Europe/Berlin")
    assert back == ["2026-10-25 00:30", "2026-10-26 01:30", "2026-10-27 01:30"]
    forth = times("30 2 * * *", "2026-03-28 12:00", 2, "Europe/Berlin")
    assert len({day[:10] for day in forth}) == 2


def test_every_hour_means_every_hour_also_then() -> None:
    found = times("0 * * * *", "2026-10-24 22:00", 6, "Europe/Berlin")
    hours = [datetime.fromisoformat(one) for one in found]
    assert all((b - a).total_seconds() == 3_600 for a, b in pairwise(hours))


@pytest.mark.parametrize(
    "text",
    ["", "* * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8", "a * * * *", "5-1 * * * *"],
)
def test_what_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse(text, "UTC")


def test_what_never_comes_and_zones_that_are_none_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="never comes"):
        parse("0 0 30 2 *", "UTC")
    for zone in ("Mars/Base", "", "../etc/passwd"):
        with pytest.raises(InvalidRequest, match="timezone"):
            parse("* * * * *", zone)
    with pytest.raises(InvalidRequest):
        parse("*/0 * * * *", "UTC")
