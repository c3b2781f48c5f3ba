"""Both loops for every test of the asyncio face."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
import uvloop

import topicd
import topicd.aio
from tests.support.fakeserver import FakeServer
from topicd.ipc.protocol.retry import Tempo

T = TypeVar("T")
Run = Callable[[Callable[[topicd.aio.AsyncClient], Awaitable[T]]], T]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest, server: FakeServer) -> Run[Any]:
    """Runs a coroutine function with a connected client, on both loops."""

    def start(work: Callable[[topicd.aio.AsyncClient], Awaitable[T]]) -> T:
        async def main() -> T:
            tempo = Tempo(random=lambda: 1.0)
            async with await topicd.aio.connect(server.path, timeout=5, tempo=tempo) as client:
                return await work(client)

        runner = uvloop.run if request.param == "uvloop" else asyncio.run
        return runner(main())

    return start
