"""Waiting awake: bounded, and given up where it does not pay."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from topicd.ipc import linger
from topicd.ipc.linger import Linger


class Time:
    """A microsecond passes at every look."""

    def __init__(self) -> None:
        self.now_ns = 0

    def monotonic_ns(self) -> int:
        self.now_ns += 1000
        return self.now_ns


@pytest.fixture(autouse=True)
def time(monkeypatch: pytest.MonkeyPatch) -> Iterator[Time]:
    made = Time()
    monkeypatch.setattr(linger, "time", made)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    yield made


def test_what_comes_in_time_is_seen(time: Time) -> None:
    lingering = Linger(100)
    assert lingering.worthwhile()
    assert lingering.until(lambda: time.now_ns > 50_000)
    assert time.now_ns < 60_000
    assert lingering.worthwhile()


def test_a_wait_ends_when_its_time_is_up(time: Time) -> None:
    assert not Linger(100).until(lambda: False)
    assert 100_000 <= time.now_ns < 110_000


def test_waits_in_vain_become_rare_and_one_that_pays_makes_them_frequent_again() -> None:
    lingering = Linger(10)
    passed_over = []
    for _ in range(8):
        assert not lingering.until(lambda: False)
        occasions = 0
        while not lingering.worthwhile():
            occasions += 1
        passed_over.append(occasions)
    assert passed_over == [2, 4, 8, 16, 32, 64, 64, 64]
    assert lingering.until(lambda: True)
    assert not lingering.until(lambda: False)
    assert [lingering.worthwhile() for _ in range(3)] == [False, False, True]


def test_it_can_be_turned_off() -> None:
    assert not Linger(0).worthwhile()


def test_on_a_single_core_nobody_lingers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    assert not Linger(100).worthwhile()
