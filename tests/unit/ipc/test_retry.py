from __future__ import annotations

import pytest

from topicd.errors import ConnectionLost, InvalidRequest, Throttled
from topicd.ipc.protocol.retry import FOREVER_S, Backoff, Patience, Tempo, retry_after


class Hands:
    """A clock that moves only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def tempo(self, chance: float = 0.0) -> Tempo:
        return Tempo(lambda: self.now, self.sleep, lambda: chance)


def test_delays_double_up_to_the_longest() -> None:
    backoff = Backoff(lambda: 0.0, first=0.1, longest=0.5)
    assert [backoff.next() for _ in range(4)] == [0.1, 0.2, 0.4, 0.5]
    backoff.reset()
    assert backoff.next() == 0.1


def test_jitter_takes_up_to_half() -> None:
    assert Backoff(lambda: 1.0, first=0.1).next() == pytest.approx(0.05)


def test_patience_raises_the_error_when_time_is_up() -> None:
    hands = Hands()
    patience = Patience(hands.tempo(), 1.0)
    error = ConnectionLost("gone")
    with pytest.raises(ConnectionLost, match="gone"):
        while True:
            patience.pause(error)
    assert sum(hands.slept) < 1.0
    assert len(hands.slept) > 4


def test_forever_is_for_ever() -> None:
    hands = Hands()
    patience = Patience(hands.tempo(), FOREVER_S)
    while hands.now < 2 * FOREVER_S:
        patience.pause(Throttled("full", retry_after_ms=3_600_000))
    assert patience.remaining() == FOREVER_S


def test_patience_honours_what_the_daemon_asks_for() -> None:
    hands = Hands()
    Patience(hands.tempo(), 10).pause(Throttled("full", retry_after_ms=700))
    assert hands.slept == [0.7]


def test_patience_does_not_wait_for_what_never_gets_better() -> None:
    hands = Hands()
    with pytest.raises(InvalidRequest):
        Patience(hands.tempo(), 10).pause(InvalidRequest("no"))
    assert hands.slept == []


@pytest.mark.parametrize("asked", ["soon", True, -5, 10**12, None])
def test_absurd_retry_after_is_ignored(asked: object) -> None:
    assert retry_after(Throttled("full", retry_after_ms=asked)) == 0.0
