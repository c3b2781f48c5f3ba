"""The heartbeat in the middle of long work."""

from __future__ import annotations

import itertools

import pytest

from topicd.child import HEARTBEAT_S
from topicd.shards.delivery import pulse as module
from topicd.shards.delivery.pulse import Pulse


class Time:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    made = Time()
    monkeypatch.setattr(module, "time", made)
    return made


def test_it_shows_when_the_last_time_is_too_long_ago_and_not_sooner(time: Time) -> None:
    shown: list[float] = []
    pulse = Pulse(lambda: shown.append(time.now))
    for _ in range(100):
        time.now += HEARTBEAT_S / 10
        pulse.show()
    assert 4 <= len(shown) <= 5  # ten seconds of it
    assert all(later - earlier > 2 * HEARTBEAT_S for earlier, later in itertools.pairwise(shown))


def test_what_was_published_otherwise_counts(time: Time) -> None:
    shown: list[str] = []
    pulse = Pulse(lambda: shown.append("page"))
    time.now += 3 * HEARTBEAT_S
    pulse.publish()
    pulse.show()
    assert shown == ["page"]
    time.now += 3 * HEARTBEAT_S
    pulse.show()
    assert shown == ["page", "page"]
