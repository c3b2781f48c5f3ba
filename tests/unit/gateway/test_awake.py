"""The gateway stays awake for what one lone request waits for, and for nothing else."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from topicd.gateway.awake import Awake

LONG_US = 5_000_000  # nobody waits so long: something comes


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})


class Looks:
    """Counts the looks at the sockets while awake; something comes at the given one."""

    def __init__(self, awake: Awake, at: int) -> None:
        self.count = 0
        self._at = at
        awake._events = self

    def poll(self, timeout: int) -> list[tuple[int, int]]:
        assert timeout == 0
        self.count += 1
        return [(0, 1)] if self.count >= self._at else []


def played(steps: Callable[[Awake, asyncio.Future[Any]], object], at: int = 5, us: int = LONG_US) -> int:
    """How often the sockets were looked at awake."""

    async def run() -> int:
        loop = asyncio.get_running_loop()
        awake = Awake(loop, us)
        awake._request.most_ns = us * 1_000  # as long as that: the machine may be busy
        looks = Looks(awake, at)
        steps(awake, loop.create_future())
        for _ in range(4):
            await asyncio.sleep(0)
        return looks.count

    return uvloop.run(run())


def test_the_answer_to_a_lone_request_is_awaited_until_something_comes() -> None:
    assert played(lambda awake, answer: (awake.begin(), awake.asked(answer))) == 5


def test_the_next_request_is_awaited_behind_the_answer() -> None:
    assert played(lambda awake, answer: (awake.begin(), awake.end())) == 5


def test_an_answer_that_is_here_is_not_awaited() -> None:
    assert played(lambda awake, answer: (awake.begin(), awake.asked(answer), answer.set_result(None))) == 0


def test_with_several_under_way_nothing_is_awaited() -> None:
    assert played(lambda awake, answer: (awake.begin(), awake.begin(), awake.asked(answer), awake.end())) == 0


def test_what_is_asked_for_no_request_is_not_awaited() -> None:
    assert played(lambda awake, answer: awake.asked(answer)) == 0


def test_a_request_that_came_meanwhile_is_not_kept_waiting() -> None:
    assert played(lambda awake, answer: (awake.begin(), awake.end(), awake.begin())) == 0


def test_without_lingering_nothing_is_awaited() -> None:
    assert played(lambda awake, answer: (awake.begin(), awake.asked(answer), awake.end()), us=0) == 0


def test_a_real_socket_ends_the_wait() -> None:
    async def run() -> float:
        loop = asyncio.get_running_loop()
        awake = Awake(loop, LONG_US)
        ours, theirs = socket.socketpair()
        heard = loop.create_future()
        loop.add_reader(ours, lambda: heard.done() or heard.set_result(None))
        theirs.send(b"x")
        awake.begin()
        awake.asked(loop.create_future())
        began = time.monotonic()
        await heard
        loop.remove_reader(ours)
        ours.close()
        theirs.close()
        return time.monotonic() - began

    assert uvloop.run(run()) < LONG_US / 1_000_000
