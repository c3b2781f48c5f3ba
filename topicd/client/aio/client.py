"""The asyncio client as its users see it: `connect`, the operations, and what is made of a client."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from topicd.client.aio.caller import AioCaller
from topicd.client.aio.consumer import AsyncConsumer
from topicd.client.aio.operations import AsyncOperations
from topicd.client.aio.pipeline import AsyncPipeline
from topicd.client.aio.producer import AsyncProducer
from topicd.client.aio.receipts import AsyncDelivery
from topicd.client.aio.watch import AsyncWatch
from topicd.client.blocking.caller import Caller
from topicd.client.blocking.finding import find_daemon
from topicd.client.blocking.operations import Operations
from topicd.client.core.address import TOKEN_ENV, with_ca_file
from topicd.client.core.arguments import Match, Start
from topicd.client.core.collecting import BATCH_BYTES, BATCH_RECORDS, INFLIGHT, LINGER_S, OnFull
from topicd.client.core.encode import Serializer, named_serializer
from topicd.client.core.options import DEFAULT_TIMEOUT_S, MAX_CONNECTIONS, STAGE_TTL_S
from topicd.client.core.watching import OnGap, wanted_by
from topicd.errors import InvalidRequest
from topicd.ipc.protocol.retry import Tempo
from topicd.limits import MIB

if TYPE_CHECKING:
    from topicd.client.aio.stages import AsyncStages


async def connect(
    target: str | os.PathLike[str] | None = None,
    *,
    timeout: float = DEFAULT_TIMEOUT_S,
    wait: float = 0.0,
    node: str | None = None,
    token: str | None = None,
    ca_file: str | os.PathLike[str] | None = None,
    serializer: str | Serializer = "json",
    tempo: Tempo | None = None,
) -> AsyncClient:
    """Like topicd.connect.

    >>> async with await topicd.aio.connect() as client:    # doctest: +SKIP
    ...     seq = await client.publish("orders", {"id": 7})
    """
    tempo = tempo or Tempo()
    target = with_ca_file(target, ca_file)
    token = token or os.environ.get(TOKEN_ENV)
    find = partial(find_daemon, target, os.environ, timeout=timeout, token=token, wait=wait, tempo=tempo)
    shard_map = await asyncio.get_running_loop().run_in_executor(None, find)
    caller = AioCaller(shard_map, tempo=tempo, timeout=timeout, token=token)
    return AsyncClient(caller, node=node, serializer=serializer)


class AsyncClient(AsyncOperations):
    """Made by `topicd.aio.connect`; belongs to the loop it was made in."""

    _blocking: Caller | None = None  # for what runs in threads

    def stages(self, query: str, *, ends: bool = False, ttl: float = STAGE_TTL_S) -> AsyncStages:
        """Records of many writers that become visible together and once; see `topicd.Client.stages`."""
        from topicd.client.aio.stages import AsyncStages
        from topicd.client.staging.stages import Stages

        self._check_open()
        if self._blocking is None:
            its = self._caller
            self._blocking = Caller(
                its.shard_map, tempo=its.tempo, timeout=its.timeout, token=its.token, max_connections=MAX_CONNECTIONS
            )
        made = Stages(Operations(self._blocking), query, ends=ends, ttl=ttl, serialize=self._serialize)
        return AsyncStages(self._caller, made)

    def pipeline(self, topic: str, *, max_inflight: int = INFLIGHT) -> AsyncPipeline:
        """Single records with up to max_inflight of them unacknowledged, for one task."""
        return AsyncPipeline(self._caller, topic, max_inflight=max_inflight, serialize=self._serialize, node=self._node)

    def producer(
        self,
        *,
        linger: float = LINGER_S,
        max_batch_bytes: int = BATCH_BYTES,
        max_batch_records: int = BATCH_RECORDS,
        max_inflight: int = INFLIGHT,
        on_full: OnFull = "block",
        timeout: float | None = None,
        on_delivery: Callable[[AsyncDelivery], object] | None = None,
        serializer: str | Serializer | None = None,
    ) -> AsyncProducer:
        """A producer that collects records for up to `linger` seconds, max_batch_records or max_batch_bytes, and keeps
        up to max_inflight batches unacknowledged. Beyond that `send` waits, or raises Throttled with on_full="raise".
        `on_delivery` is called with the `AsyncDelivery` of every record."""
        return AsyncProducer(
            self._caller,
            linger=linger,
            max_batch_bytes=max_batch_bytes,
            max_batch_records=max_batch_records,
            max_inflight=max_inflight,
            on_full=on_full,
            timeout=timeout,
            on_delivery=on_delivery,
            serialize=self._serialize if serializer is None else named_serializer(serializer),
            node=self._node,
        )

    async def watch(
        self,
        topics: str | list[str] | tuple[str, ...],
        start: Start = "latest",
        *,
        on_gap: OnGap = "yield",
        match: Match = None,
        nodes: str | list[str] | None = None,
        committed: bool = False,
        batch_bytes: int = MIB,
    ) -> AsyncWatch:
        """Records of a topic, a list of topics or a pattern as they are stored; see `topicd.Client.watch`.

        >>> async with await client.watch("orders") as events:    # doctest: +SKIP
        ...     async for event in events:
        ...         print(event)
        """
        self._check_open()
        wanted = wanted_by(topics, start, match, nodes, committed)
        return await AsyncWatch(self._caller, wanted, on_gap=on_gap, batch_bytes=batch_bytes).open()

    async def consumer(
        self,
        topic: str,
        name: str,
        start: Start = "earliest",
        *,
        auto_ack: bool = True,
        on_gap: OnGap = "yield",
        match: Match = None,
        nodes: str | list[str] | None = None,
        committed: bool = False,
        batch_bytes: int = MIB,
    ) -> AsyncConsumer:
        """The consumer of that name, which goes on where it has acknowledged; `start` counts when it is new."""
        self._check_open()
        made = AsyncConsumer(
            self._caller,
            topic,
            name,
            start=start,
            auto_ack=auto_ack,
            on_gap=on_gap,
            match=match,
            nodes=nodes,
            committed=committed,
            batch_bytes=batch_bytes,
        )
        return await made.open()

    def _check_open(self) -> None:
        if self._caller.closed:
            raise InvalidRequest("the client is closed")

    async def close(self) -> None:
        """What is still under way fails; await it first. Producers, pipelines and watches are closed by themselves."""
        if self._blocking is not None:
            self._blocking.close()
        await self._caller.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
