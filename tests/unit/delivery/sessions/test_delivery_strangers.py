"""Those that have shown no token yet: how many, how long, and how much is said of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from topicd.shards.delivery.sessions import strangers as module
from topicd.shards.delivery.sessions.strangers import Guest, Strangers, address_of


@pytest.fixture
def strangers() -> Strangers:
    place: Any = SimpleNamespace(settings=SimpleNamespace(max_unauthenticated=10))
    return Strangers(place)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1_000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_one_address_has_half_of_the_places_and_all_together_no_more_than_there_are(strangers: Strangers) -> None:
    guests = [strangers.admit("10.0.0.1") for _ in range(8)]
    assert [guest is not None for guest in guests] == [True] * 5 + [False] * 3
    others = [strangers.admit(f"10.0.0.{number}") for number in range(2, 9)]
    assert [guest is not None for guest in others] == [True] * 5 + [False] * 2
    assert (strangers.count, strangers.turned_away) == (10, 5)


def test_who_leaves_makes_room_once(strangers: Strangers) -> None:
    guests = [guest for guest in (strangers.admit("10.0.0.1") for _ in range(5)) if guest is not None]
    strangers.leave(guests[0])
    strangers.leave(guests[0])
    assert strangers.count == 4
    assert strangers.admit("10.0.0.1") is not None
    assert strangers.admit("10.0.0.1") is None


def test_wrong_tokens_wait_ever_longer_and_a_quiet_time_forgives(strangers: Strangers, clock: list[float]) -> None:
    address = address_of("10.0.0.1")
    delays = [strangers.delay(address) for _ in range(20)]
    assert delays == sorted(delays)
    assert (delays[0], delays[-1]) == (0.05, 2.0)
    assert strangers.delay(address_of("10.0.0.2")) == 0.05  # another's are not his
    clock[0] += 31
    assert strangers.delay(address) == 0.05


def test_a_crowd_of_addresses_waits_as_one_and_the_table_is_bounded(strangers: Strangers, clock: list[float]) -> None:
    delays = [strangers.delay(number.to_bytes(4, "big")) for number in range(3_000)]
    assert delays[-1] == 2.0
    assert len(strangers._wrong) == 1_024


def test_the_log_has_a_few_lines_and_a_number_for_the_rest(
    strangers: Strangers, clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(500):
        strangers.say("the token is not known")
    assert [record.message for record in caplog.records] == ["connection refused"] * 10
    strangers.tick()
    assert len(caplog.records) == 10
    clock[0] += 61
    strangers.tick()
    strangers.tick()
    assert [vars(record).get("connections") for record in caplog.records[10:]] == [490]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("2001:db8::1", "2001:db8::2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2", True),
        ("nonsense", "nonsense", True),
    ],
)
def test_what_counts_as_one_address(one: str, other: str, same: bool) -> None:
    assert (address_of(one) == address_of(other)) == same


def test_a_guest_is_here_until_it_leaves() -> None:
    assert Guest(b"1").here
