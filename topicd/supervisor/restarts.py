"""When a dead child is started again, and when not. Pure: the caller says what time it is."""

from __future__ import annotations

from collections import deque

FIRST_DELAY_S = 0.1
MAX_DELAY_S = 5.0
HEALTHY_S = 30.0  # after serving this long the delay begins anew
FAST_S = 2.0  # a crash before serving, or so soon after, is a fast one
FAST_CRASHES = 5  # that many fast ones …
FAST_WINDOW_S = 30.0  # … within this time: no use in going on


class RestartPolicy:
    def __init__(self) -> None:
        self._delay = FIRST_DELAY_S
        self._fast: deque[float] = deque()

    def crashed(self, now: float, served_s: float | None) -> float | None:
        """Seconds until the next start, None to give up. served_s: how long it served, None if never."""
        if served_s is not None and served_s >= HEALTHY_S:
            self._delay = FIRST_DELAY_S
            self._fast.clear()
        if served_s is None or served_s < FAST_S:
            self._fast.append(now)
        while self._fast and now - self._fast[0] > FAST_WINDOW_S:
            self._fast.popleft()
        if len(self._fast) >= FAST_CRASHES:
            return None
        delay = self._delay
        self._delay = min(2 * delay, MAX_DELAY_S)
        return delay
