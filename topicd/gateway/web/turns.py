"""Work of many connections that costs more than a look at a socket. Promise: at every second look at all sockets it
takes SECONDS and one piece, however many connections have some; they have their turns one after the other.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

SECONDS = 0.00025  # a request of somebody else comes by ten times before it is answered, a turn in between

Work = Callable[[float], bool]  # does what can be done until then; True: there is more


class Turns:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Work] = deque()
        self._until = 0.0
        self._begun = False  # the loop will come by

    def begin(self, work: Work) -> None:
        """Now, if it is nobody else's turn."""
        now = time.perf_counter()
        if not self._begun:
            self._begun, self._until = True, now + SECONDS
            self._loop.call_soon(self._next)
        if self._waiting or now >= self._until or work(self._until):
            self._waiting.append(work)

    def later(self, work: Work) -> None:
        """When its turn comes."""
        self._waiting.append(work)
        if not self._begun:
            self._begun = True
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        until = self._until = time.perf_counter() + SECONDS
        waiting = self._waiting
        for _ in range(len(waiting)):
            work = waiting.popleft()
            if work(until):
                waiting.append(work)
            if time.perf_counter() >= until:
                break
        self._begun = bool(waiting)
        if self._begun:
            self._loop.call_soon(self._after_others)

    def _after_others(self) -> None:
        """What takes no turns comes by once in between."""
        self._loop.call_soon(self._next)
