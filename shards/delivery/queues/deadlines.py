"""When something has to happen by itself: one heap for all queues of the shard. Promise: whoever asked is woken at the
time, by the shard's clock, or a little later; a test's clock wakes them when it is moved. When the clock was set back,
all are woken: what they waited for may be hours away by now, and they ask anew.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable

from topicd.clock import Clock, ManualClock

_LATEST_S = 10.0  # a timer is set so far ahead at most: the wall clock may jump
_SET_BACK_MS = 1_000  # more than a clock that is adjusted goes back


def is_over(at_ms: int, now_ms: int, longest_ms: int) -> bool:
    """Of a time that was so far ahead at most: it has come, or the clock was set back."""
    return at_ms <= now_ms or at_ms > now_ms + longest_ms


class Sleeper:
    """Somebody who is to be woken. Asks again each time."""

    __slots__ = ("due_ms", "wake")

    def __init__(self, wake: Callable[[], None]) -> None:
        self.wake = wake
        self.due_ms = 0  # 0: not at all


class Deadlines:
    def __init__(self, clock: Clock, call_later: Callable[[float, Callable[[], None]], asyncio.TimerHandle]) -> None:
        self._clock = clock
        self._call_later = call_later
        self._heap: list[tuple[int, int, Sleeper]] = []
        self._asked = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._looked_ms = 0  # when it was looked at last

    def __len__(self) -> int:
        return len(self._heap)

    def wake_at(self, sleeper: Sleeper, at_ms: int | None) -> None:
        """Once, at that time and at no other; None: not at all."""
        wanted = at_ms or 0
        if wanted == sleeper.due_ms:
            return
        sleeper.due_ms = wanted
        if wanted:
            self._asked += 1
            heapq.heappush(self._heap, (wanted, self._asked, sleeper))
            self._set_timer()

    def run(self) -> None:
        """Wake those whose time has come."""
        now, heap = self._clock.now_ms(), self._heap
        set_back, self._looked_ms = now < self._looked_ms - _SET_BACK_MS, now
        due: list[Sleeper] = []
        while heap and (set_back or heap[0][0] <= now):
            at, _, sleeper = heapq.heappop(heap)
            if sleeper.due_ms == at:
                sleeper.due_ms = 0
                due.append(sleeper)
        for sleeper in due:
            sleeper.wake()
        self._set_timer()

    def _set_timer(self) -> None:
        heap = self._heap
        while heap and heap[0][2].due_ms != heap[0][0]:
            heapq.heappop(heap)  # it has asked for another time since
        if isinstance(self._clock, ManualClock):
            return
        at = heap[0][0] if heap else 0
        if at == self._timer_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_ms = at
        if at:
            after = min(max(0.0, (at - self._clock.now_ms()) / 1000), _LATEST_S)
            self._timer = self._call_later(after, self._fired)

    def _fired(self) -> None:
        self._timer, self._timer_ms = None, 0
        self.run()
