"""Single records, many under way: for callers that need an acknowledgement of each and cannot wait for it.

Promise: seqs come back in the order of the appends; what is under way when the connection breaks is sent again and
stored once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from topicd.client.aio.caller import AioCaller
from topicd.client.aio.routes import AioRoutes
from topicd.client.core.encode import Serializer, encode_one
from topicd.client.core.pipelining import Pipelined
from topicd.errors import ConnectionLost, InvalidRequest, TopicdError
from topicd.ipc.protocol.outbox import OutBatch, TopicOutbox


class _Single(OutBatch):
    __slots__ = ("_told",)

    def __init__(self, outbox: TopicOutbox, frames: bytearray, deadline: float, told: Callable[[], None]) -> None:
        super().__init__(outbox, frames, 1, deadline)
        self._told = told

    def settled(self) -> None:
        self._told()


class AsyncPipeline:
    """Made by `client.pipeline`. Records that are appended in one turn of the loop are sent together; `drain` waits for
    everything. Not for use by several tasks at once.

    >>> async with client.pipeline("orders") as pipe:    # doctest: +SKIP
    ...     for n in range(1000):
    ...         await pipe.append(b"%d" % n)
    ...     seqs = await pipe.drain()
    """

    def __init__(
        self, caller: AioCaller, topic: str, *, max_inflight: int, serialize: Serializer, node: bytes | None
    ) -> None:
        self._pipelined = Pipelined(max_inflight)
        self._caller = caller
        self._routes = AioRoutes(caller, max_inflight)
        self._outbox = self._routes.outbox(topic)
        self._max = max_inflight
        self._serialize = serialize
        self._node = node
        self._changed = asyncio.Event()
        self._closed = False

    @property
    def unacknowledged(self) -> int:
        """How many records are under way."""
        return len(self._pipelined.pending)

    @property
    def failures(self) -> list[tuple[int, TopicdError]]:
        """(position among all appends, error) of records that were refused; `drain` raises the first of them."""
        return self._pipelined.failures

    async def append(
        self,
        data: Any,
        *,
        tag: str | bytes | None = None,
        node: str | bytes | None = None,
        meta: dict[str, Any] | None = None,
    ) -> None:
        """Sends one record; waits only while max_inflight are unacknowledged."""
        frames = encode_one(data, tag, node or self._node, meta, self._serialize)
        if self._closed:
            raise InvalidRequest("the pipeline is closed")
        await self._until_below(self._max)
        deadline = self._caller.tempo.monotonic() + self._caller.timeout
        batch = _Single(self._outbox, frames, deadline, self._changed.set)
        self._pipelined.pending.append(batch)
        self._routes.submit(batch)

    async def flush(self) -> None:
        """Sends what was collected, without waiting for acknowledgements."""
        await asyncio.sleep(0)

    async def drain(self) -> list[int]:
        """Waits until everything is acknowledged; the seqs of all records since the last drain, in order."""
        await self._until_below(1)
        return self._pipelined.drained()

    async def _until_below(self, count: int) -> None:
        self._pipelined.settle()
        while len(self._pipelined.pending) >= count:
            self._changed.clear()
            await self._changed.wait()
            self._pipelined.settle()

    async def close(self) -> None:
        """Gives up what is unacknowledged; `drain` first."""
        self._closed = True
        why = ConnectionLost("the pipeline was closed before this record was acknowledged")
        self._pipelined.give_up(why)
        await self._routes.end(why)

    async def __aenter__(self) -> AsyncPipeline:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        try:
            if kind is None:
                await self.drain()
        finally:
            await self.close()
