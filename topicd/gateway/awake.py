"""Staying awake a moment while one request is under way, and behind its answer (docs/adr/0006): the shard that is
asked, and the client that asks one thing after the other, come sooner than this process could fall asleep and be woken.

Promise: whatever arrives at any socket ends the wait; with several requests under way, or one that waits for something
to happen, nothing is waited for awake.
"""

from __future__ import annotations

import asyncio
from typing import Any

from topicd.ipc.linger import Linger, events_of

_NEXT_REQUEST_US = 100  # what an answer takes to its client, and the client's next request to here


class Awake:
    def __init__(self, loop: asyncio.AbstractEventLoop, linger_us: int) -> None:
        self._loop = loop
        self._events = events_of(loop)
        self._answer = Linger(linger_us)
        self._request = Linger(min(_NEXT_REQUEST_US, linger_us))
        self._under_way = 0
        self._awaited: asyncio.Future[Any] | None = None

    def begin(self) -> None:
        """A request came that will be answered soon."""
        self._under_way += 1

    def end(self) -> None:
        """It was answered, or it waits for something to happen."""
        self._under_way -= 1
        if not self._under_way and self._events is not None and self._request.worthwhile():
            self._loop.call_soon(self._await_request)

    def asked(self, answer: asyncio.Future[Any]) -> None:
        """A shard is asked in this look at the sockets."""
        if self._under_way == 1 and self._events is not None and self._answer.worthwhile():
            self._awaited = answer
            self._loop.call_soon(self._sent)

    def _sent(self) -> None:
        # What is written in a look at the sockets goes out at its end.
        self._loop.call_soon(self._await_answer)

    def _await_answer(self) -> None:
        answer, self._awaited = self._awaited, None
        if self._under_way == 1 and answer is not None and not answer.done():
            self._answer.until(self._something_came)

    def _await_request(self) -> None:
        if not self._under_way:
            self._request.until(self._something_came)

    def _something_came(self) -> bool:
        return bool(self._events.poll(0))
