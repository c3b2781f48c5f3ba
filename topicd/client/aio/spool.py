"""The spool of an asyncio client. Same directory, same bytes, same promises as the blocking one's; the thread that
sends what waits is the blocking one's, too.

The loop never waits for the daemon: a task looks for it until it is there, and what needs it raises ConnectionLost
until then.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Literal

from topicd.client.aio.caller import AioCaller
from topicd.client.spool.ondemand import Connect, OnDemand
from topicd.client.spool.spool import Spool
from topicd.errors import ConnectionLost, InvalidRequest, TopicdError
from topicd.ipc.protocol.retry import Backoff

Find = Callable[[], Awaitable[AioCaller]]


class AsyncSpool:
    """What waits for the daemon; see `topicd.Spool`."""

    def __init__(self, inner: Spool) -> None:
        self._inner = inner

    @property
    def pending(self) -> int:
        """How many publishes wait for the daemon."""
        return self._inner.pending

    @property
    def directory(self) -> Path:
        """Where they wait."""
        return self._inner.directory

    @property
    def error(self) -> TopicdError | None:
        """Why the oldest publish is still waiting; None: it is on its way, or there is none."""
        return self._inner.error

    async def wait(self, timeout: float | None = None) -> bool:
        """Until everything published before has been stored. False: not in that time, or the client was closed."""
        return await asyncio.to_thread(self._inner.wait, timeout)

    def skip_refused(self) -> str:
        """Give up the publish that the daemon has refused for good (`error` says why); the topic it was for."""
        return self._inner.skip_refused()


class Spooling:
    """What a client with a spool is made of."""

    def __init__(self, inner: Spool, drained_by: OnDemand, find: Find, *, synced: bool) -> None:
        self.spool = AsyncSpool(inner)
        self._inner = inner
        self._drained_by = drained_by
        self._find = find
        # Syncs take a thread, and one alone keeps the order of what is published.
        self._syncing = ThreadPoolExecutor(1, "topicd-spool-put") if synced else None
        self._found: AioCaller | None = None
        self._lost: TopicdError = ConnectionLost("no daemon was found yet")
        self._finding: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        directory: str | os.PathLike[str],
        connect: Connect,
        find: Find,
        *,
        durability: Literal["os", "fsync"],
        max_bytes: int,
    ) -> Spooling:
        drained_by = OnDemand(connect)
        inner = await asyncio.to_thread(
            lambda: Spool(directory, drained_by.get, durability=durability, max_bytes=max_bytes)
        )
        made = cls(inner, drained_by, find, synced=durability == "fsync")
        if not await made._look():
            made._finding = asyncio.create_task(made._look_on())
        return made

    async def _look(self) -> bool:
        try:
            self._found = await self._find()
        except TopicdError as error:
            self._lost = error
        return self._found is not None

    async def _look_on(self) -> None:
        backoff = Backoff()
        while not await self._look():
            await asyncio.sleep(backoff.next())

    @property
    def caller(self) -> AioCaller:
        """For everything that is not spooled."""
        self.check_open()
        if self._found is None:
            raise ConnectionLost(self._lost.message)
        return self._found

    def put(self, topic: str, count: int, frames: bytes | bytearray) -> asyncio.Future[int]:
        """Its place in the spool. In the order of the calls."""
        self.check_open()
        if self._syncing is not None:
            return asyncio.wrap_future(self._syncing.submit(self._inner.put, topic, count, frames))
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        future.set_result(self._inner.put(topic, count, frames))
        return future

    def check_open(self) -> None:
        if self._drained_by.closed:
            raise InvalidRequest("the client is closed")

    async def close(self) -> None:
        """May be called twice."""
        self._inner.stop()
        if self._finding is not None:
            self._finding.cancel()
            with suppress(asyncio.CancelledError):
                await self._finding
        await asyncio.to_thread(self._close_blocking)
        if self._found is not None:
            await self._found.close()

    def _close_blocking(self) -> None:
        self._drained_by.close()
        if self._syncing is not None:
            self._syncing.shutdown()
        self._inner.close()
