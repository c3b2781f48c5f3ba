"""How long to go on trying, and how long to wait between two attempts. Time, chance and sleep are
injected."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from topicd.errors import TopicdError

FIRST_DELAY_S = 0.01
LONGEST_DELAY_S = 1.0
FOREVER_S = 2_000_000.0  # the longest that poll() can wait; as a timeout it never ends


@dataclass(frozen=True, slots=True)
class Tempo:
    """Where a client gets its time from; tests put their own in."""

    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    random: Callable[[], float] = random.random


class Backoff:
    """Delays that double from first to longest, each shortened at random by up to half so that clients
    spread."""

    def __init__(
        self,
        chance: Callable[[], float] = random.random,
        first: float = FIRST_DELAY_S,
        longest: float = LONGEST_DELAY_S,
    ) -> None:
        self._chance = chance
        self._first = first
        self._longest = longest
        self._attempts = 0

    def next(self) -> float:
        full = min(self._longest, self._first * 2.0 ** min(self._attempts, 32))
        self._attempts += 1
        return full * (1.0 - self._chance() / 2)

    def reset(self) -> None:
        self._attempts = 0


class Patience:
    """What one operation may still spend. `after(error)` is the pause before the next attempt, or raises
    the error."""

    def __init__(self, tempo: Tempo, timeout: float, began: float | None = None) -> None:
        """`began`: since when the timeout runs, if not since now."""
        self._tempo = tempo
        self._ends = (tempo.monotonic() if began is None else began) + timeout if timeout < FOREVER_S else float("inf")
        self._backoff = Backoff(tempo.random)

    def remaining(self) -> float:
        return min(max(0.0, self._ends - self._tempo.monotonic()), FOREVER_S)

    def after(self, error: TopicdError) -> float:
        if not error.retriable:
            raise error
        delay = max(self._backoff.next(), retry_after(error))
        if delay >= self.remaining():
            raise error
        return delay

    def pause(self, error: TopicdError) -> None:
        self._tempo.sleep(self.after(error))


def retry_after(error: TopicdError) -> float:
    """Seconds the daemon asked for; 0 when it did not, or not in a way that makes sense."""
    asked = error.detail.get("retry_after_ms")
    if isinstance(asked, bool) or not isinstance(asked, int | float) or not 0 < asked <= 3_600_000:
        return 0.0
    return asked / 1000
