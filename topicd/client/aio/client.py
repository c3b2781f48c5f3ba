"""The asyncio client as its users see it: `connect`, the operations, and what is made of a client."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, overload

from topicd.client.aio.caller import AioCaller
from topicd.client.aio.consumer import AsyncConsumer
from topicd.client.aio.opening import Opening
from topicd.client.aio.operations import AsyncOperations
from topicd.client.aio.pipeline import AsyncPipeline
from topicd.client.aio.producer import AsyncProducer
from topicd.client.aio.receipts import AsyncDelivery
from topicd.client.aio.watch import AsyncWatch
from topicd.client.blocking.finding import find_daemon
from topicd.client.blocking.operations import Operations
from topicd.client.core.address import TOKEN_ENV, with_ca_file
from topicd.client.core.arguments import Match, Nodes, Start, excluded
from topicd.client.core.collecting import BATCH_BYTES, BATCH_RECORDS, INFLIGHT, LINGER_S, OnFull
from topicd.client.core.decode import Decode, decoder_of
from topicd.client.core.encode import Serializer, encode_list, encode_one, label, named_serializer
from topicd.client.core.events import Disconnected, Events, Reconnected
from topicd.client.core.gaps import OnGap, gap_choice
from topicd.client.core.options import (
    DEFAULT_TIMEOUT_S,
    SPOOL_BYTES,
    STAGE_TTL_S,
    OwnTimeout,
    Timeout,
    check_no_spool,
    seconds,
)
from topicd.client.core.records import Event, Published, Record
from topicd.client.core.settling import own_name
from topicd.client.core.watching import wanted_by
from topicd.errors import InvalidRequest
from topicd.ipc.protocol.retry import Tempo
from topicd.limits import MIB
from topicd.model import check_topic_name

if TYPE_CHECKING:
    from topicd.client.aio.chat import AsyncChat
    from topicd.client.aio.queue import AsyncQueue
    from topicd.client.aio.spool import AsyncSpool, Spooling
    from topicd.client.aio.stages import AsyncStages


def connect(
    target: str | os.PathLike[str] | None = None,
    *,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    wait: Timeout = 0.0,
    node: str | None = None,
    token: str | None = None,
    ca_file: str | os.PathLike[str] | None = None,
    serializer: str | Serializer = "json",
    tempo: Tempo | None = None,
    spool: str | os.PathLike[str] | None = None,
    spool_durability: Literal["os", "fsync"] = "os",
    spool_bytes: int = SPOOL_BYTES,
    on_disconnect: Callable[[Disconnected], Any] | None = None,
    on_reconnect: Callable[[Reconnected], Any] | None = None,
) -> Opening[AsyncClient]:
    """Like topicd.connect: in an `async with`, or awaited. With a `spool`, what needs the daemon raises ConnectionLost
    until it was found, in the background.

    >>> async with topicd.aio.connect() as client:    # doctest: +SKIP
    ...     seq = await client.publish("orders", {"id": 7})
    """
    tempo = tempo or Tempo()
    target = with_ca_file(target, ca_file)
    token = token or os.environ.get(TOKEN_ENV)
    limit, patience = seconds(timeout), seconds(wait)
    find = partial(find_daemon, target, os.environ, timeout=limit, token=token, wait=patience, tempo=tempo)

    async def found() -> AioCaller:
        shard_map = await asyncio.get_running_loop().run_in_executor(None, find)
        events = Events(tempo.monotonic, on_disconnect, on_reconnect)
        return AioCaller(shard_map, tempo=tempo, timeout=limit, token=token, events=events)

    async def made() -> AsyncClient:
        if spool is None:
            check_no_spool(spool_durability, spool_bytes)
            return AsyncClient(await found(), node=node, serializer=serializer)
        from topicd.client.aio.spool import Spooling
        from topicd.client.blocking.client import connect as drain

        label(node, "node")
        named_serializer(serializer)
        spooling = await Spooling.open(
            spool,
            partial(drain, target, timeout=timeout, token=token, tempo=tempo),
            found,
            durability=spool_durability,
            max_bytes=spool_bytes,
        )
        return AsyncSpooledClient(spooling, node=node, serializer=serializer)

    return Opening(made())


class AsyncClient(AsyncOperations):
    """Made by `topicd.aio.connect`; belongs to the loop it was made in."""

    def stages(self, query: str, *, ends: bool = False, ttl: float = STAGE_TTL_S) -> AsyncStages:
        """Records of many writers that become visible together and once; see `topicd.Client.stages`."""
        from topicd.client.aio.stages import AsyncStages
        from topicd.client.staging.stages import Stages

        self._check_open()
        made = Stages(Operations(self._caller.threads), query, ends=ends, ttl=ttl, serialize=self._serialize)
        return AsyncStages(self._caller, made)

    def queue(self, name: str, *, node: str | None = None) -> AsyncQueue:
        """The work queue of that name; see `topicd.Client.queue`."""
        from topicd.client.aio.queue import AsyncQueue

        self._check_open()
        return AsyncQueue(self, name, node=node or self._worker_name(), serialize=self._serialize)

    def _worker_name(self) -> str:
        return own_name() if self._node is None else self._node.decode("utf-8", "replace")

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
        timeout: OwnTimeout = ...,
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
            timeout=seconds(timeout, self._caller.timeout),
            on_delivery=on_delivery,
            serialize=self._serialize if serializer is None else named_serializer(serializer),
            node=self._node,
        )

    @overload
    def watch(
        self,
        topics: str | Sequence[str],
        start: Start = ...,
        *,
        gaps: Literal[True],
        match: Match = ...,
        exclude_nodes: Nodes = ...,
        committed: bool = ...,
        decode: Decode = ...,
        batch_bytes: int = ...,
        nodes: Nodes = ...,
    ) -> Opening[AsyncWatch[Event]]: ...

    @overload
    def watch(
        self,
        topics: str | Sequence[str],
        start: Start = ...,
        *,
        gaps: Literal[False] = ...,
        on_gap: OnGap = ...,
        match: Match = ...,
        exclude_nodes: Nodes = ...,
        committed: bool = ...,
        decode: Decode = ...,
        batch_bytes: int = ...,
        nodes: Nodes = ...,
    ) -> Opening[AsyncWatch[Record]]: ...

    def watch(
        self,
        topics: str | Sequence[str],
        start: Start = "latest",
        *,
        gaps: bool = False,
        on_gap: OnGap = "raise",
        match: Match = None,
        exclude_nodes: Nodes = None,
        committed: bool = False,
        decode: Decode = None,
        batch_bytes: int = MIB,
        nodes: Nodes = None,
    ) -> Opening[AsyncWatch[Any]]:
        """Records of a topic, a list of topics or a pattern as they are stored; see `topicd.Client.watch`.
        In an `async with`, or awaited.

        >>> async with client.watch("orders") as records:    # doctest: +SKIP
        ...     async for record in records:
        ...         print(record)
        """
        self._check_open()
        wanted = wanted_by(topics, start, match, excluded(exclude_nodes, nodes), committed)
        made: AsyncWatch[Any] = AsyncWatch(
            self._caller,
            wanted,
            on_gap=gap_choice(gaps, on_gap),
            batch_bytes=batch_bytes,
            decode=decoder_of(decode),
        )
        return Opening(made.open())

    @overload
    def consumer(
        self,
        topic: str,
        name: str,
        start: Start = ...,
        *,
        auto_ack: bool = ...,
        takeover: bool = ...,
        gaps: Literal[True],
        match: Match = ...,
        exclude_nodes: Nodes = ...,
        committed: bool = ...,
        decode: Decode = ...,
        batch_bytes: int = ...,
        nodes: Nodes = ...,
    ) -> Opening[AsyncConsumer[Event]]: ...

    @overload
    def consumer(
        self,
        topic: str,
        name: str,
        start: Start = ...,
        *,
        auto_ack: bool = ...,
        takeover: bool = ...,
        gaps: Literal[False] = ...,
        on_gap: OnGap = ...,
        match: Match = ...,
        exclude_nodes: Nodes = ...,
        committed: bool = ...,
        decode: Decode = ...,
        batch_bytes: int = ...,
        nodes: Nodes = ...,
    ) -> Opening[AsyncConsumer[Record]]: ...

    def consumer(
        self,
        topic: str,
        name: str,
        start: Start = "earliest",
        *,
        auto_ack: bool = True,
        takeover: bool = False,
        gaps: bool = False,
        on_gap: OnGap = "raise",
        match: Match = None,
        exclude_nodes: Nodes = None,
        committed: bool = False,
        decode: Decode = None,
        batch_bytes: int = MIB,
        nodes: Nodes = None,
    ) -> Opening[AsyncConsumer[Any]]:
        """The consumer of that name, which goes on where it has acknowledged; see `topicd.Client.consumer`. In an
        `async with`, or awaited."""
        self._check_open()
        made: AsyncConsumer[Any] = AsyncConsumer(
            self._caller,
            topic,
            name,
            start=start,
            auto_ack=auto_ack,
            on_gap=gap_choice(gaps, on_gap),
            match=match,
            exclude_nodes=excluded(exclude_nodes, nodes),
            committed=committed,
            batch_bytes=batch_bytes,
            takeover=takeover,
            decode=decoder_of(decode),
        )
        return Opening(made.open())

    @property
    def chat(self) -> AsyncChat:
        """The daemon's chat store; a daemon without one says so at the first use."""
        from topicd.client.aio.chat import AsyncChat

        self._check_open()
        return AsyncChat(self._caller)

    @property
    def spool(self) -> AsyncSpool:
        """What waits for the daemon, of a client that was connected with a spool."""
        raise InvalidRequest("the client has no spool: connect(spool=DIR)")

    def _check_open(self) -> None:
        if self._caller.closed:
            raise InvalidRequest("the client is closed")

    async def close(self) -> None:
        """What is still under way fails; await it first. Producers, pipelines and watches are closed by themselves."""
        await self._caller.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


class AsyncSpooledClient(AsyncClient):
    """Made by `topicd.aio.connect(spool=DIR)`. Reading and watching raise ConnectionLost until the daemon is found."""

    def __init__(self, spooling: Spooling, *, node: str | None, serializer: str | Serializer) -> None:
        # Not the parent's: there may be no daemon to have connections to.
        self._node = label(node, "node")
        self._serialize = named_serializer(serializer)
        self._spooling = spooling

    @property
    def _caller(self) -> AioCaller:
        return self._spooling.caller

    @_caller.setter
    def _caller(self, caller: AioCaller) -> None:
        raise AttributeError("a client with a spool finds its daemon by itself")

    @property
    def spool(self) -> AsyncSpool:
        return self._spooling.spool

    def publish_soon(
        self,
        topic: str,
        data: Any,
        *,
        tag: str | bytes | None = None,
        node: str | bytes | None = None,
        meta: dict[str, Any] | None = None,
    ) -> asyncio.Future[int]:
        """`publish` without a coroutine: a future of its place in the spool."""
        frames = encode_one(data, tag, node or self._node, meta, self._serialize)
        return self._spooling.put(check_topic_name(topic), 1, frames)

    async def publish(
        self,
        topic: str,
        data: Any,
        *,
        tag: str | bytes | None = None,
        node: str | bytes | None = None,
        meta: dict[str, Any] | None = None,
        key: str | bytes | None = None,
    ) -> int:
        """Puts one record into the spool and returns its place there: it has no seq yet. Stored once without a key."""
        if key is not None:
            raise InvalidRequest("a spool stores each publish once; it takes no key")
        return await self.publish_soon(topic, data, tag=tag, node=node, meta=meta)

    async def publish_many(
        self,
        topic: str,
        records: Sequence[Any],
        *,
        tag: str | bytes | None = None,
        node: str | bytes | None = None,
        performance: bool = False,
    ) -> Published:
        """Puts a list of records into the spool, batch by batch. Seqs are 0: they are not known yet."""
        check_topic_name(topic)
        if performance:
            raise InvalidRequest("a spool does not know where the daemon's time goes")
        batches = encode_list(records, tag, node, self._node, self._serialize)
        await asyncio.gather(*[self._spooling.put(topic, count, frames) for frames, count in batches])
        return Published(0, 0, sum(count for _, count in batches))

    def _check_open(self) -> None:
        self._spooling.check_open()

    async def close(self) -> None:
        """What is still in the spool stays there for the next client. May be called twice."""
        await self._spooling.close()
