"""The asyncio client: the same operations and promises as topicd.client.client."""

from __future__ import annotations

import asyncio
import heapq
import os
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from topicd.client import requests
from topicd.client.aio_consumer import AsyncConsumer
from topicd.client.aio_engine import AioEngine
from topicd.client.aio_watch import AsyncWatch
from topicd.client.backoff import Tempo
from topicd.client.batch import ReadResult
from topicd.client.bulk import published
from topicd.client.directory import SUPERVISOR
from topicd.client.engine import find_daemon
from topicd.client.lanes import new_producer_id
from topicd.client.records import Published
from topicd.client.remote import TOKEN_ENV, with_ca_file
from topicd.client.serial import Match, Serializer, Start, encode_many, encode_one, label
from topicd.client.serial import serializer as named_serializer
from topicd.client.subscription import Wanted
from topicd.client.topics import ConsumerInfo, Deleted, TopicInfo, TopicState, config_of, info
from topicd.client.watch import OnGap
from topicd.client.wire import checked_key, number, parse_ack
from topicd.errors import InvalidRequest
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import APPEND, MessageFlag
from topicd.limits import LIST_PAGE_MAX, MIB
from topicd.model import TopicConfig

DEFAULT_TIMEOUT_S = 30.0


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
    directory = await asyncio.get_running_loop().run_in_executor(None, find)
    engine = AioEngine(directory, tempo=tempo, timeout=timeout, token=token)
    return AsyncClient(engine, node=node, serializer=serializer)


class AsyncClient:
    """Made by `topicd.aio.connect`; belongs to the loop it was made in."""

    def __init__(self, engine: AioEngine, *, node: str | None = None, serializer: str | Serializer = "json") -> None:
        self._engine = engine
        self._node = label(node, "node")
        self._serialize = named_serializer(serializer)

    # ---- writing ----

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
        """Stores one record and returns its seq. Any number may be awaited at once; those of one turn of the loop are
        sent together, in order."""
        frames = encode_one(data, tag, node or self._node, meta, self._serialize)
        if key is not None:
            return await self._publish_keyed(topic, frames, checked_key(key))
        return await self._engine.append(topic, frames, 1).future

    def publish_soon(
        self,
        topic: str,
        data: Any,
        *,
        tag: str | bytes | None = None,
        node: str | bytes | None = None,
        meta: dict[str, Any] | None = None,
    ) -> asyncio.Future[int]:
        """`publish` without a coroutine: a future of the seq, for those who send much and wait later."""
        frames = encode_one(data, tag, node or self._node, meta, self._serialize)
        return self._engine.append(topic, frames, 1).future

    async def _publish_keyed(self, topic: str, frames: bytearray, key: bytes) -> int:
        # Keys are forgotten when the daemon restarts, numbers are not. An id for this record alone needs no order.
        producer_id = new_producer_id()

        def body(topic_id: int) -> bytes:
            return APPEND.pack(topic_id, producer_id, 1, 1) + len(key).to_bytes(2, "little") + key + frames

        flags, raw = await self._engine.with_topic(topic, Op.APPEND, body, flags=int(MessageFlag.KEY), create=True)
        return parse_ack(flags, raw, 0, len(raw)).first_seq

    async def publish_many(
        self,
        topic: str,
        records: Sequence[Any],
        *,
        tag: str | bytes | None = None,
        node: str | bytes | None = None,
    ) -> Published:
        """Stores a list of bytes (fastest), text, JSON values, `Record`s or (data, tag, node, meta) tuples, in order.

        Up to 10,000 records and 64 MiB are one batch: all of it is stored or nothing. Longer lists are several batches.
        """
        if not isinstance(records, list | tuple):
            records = list(records)
        if not records:
            raise InvalidRequest("publish_many needs at least one record")
        encoded = encode_many(records, label(tag, "tag"), label(node, "node") or self._node, self._serialize)
        batches = [self._engine.append(topic, frames, count) for frames, count in encoded]
        await asyncio.gather(*(batch.future for batch in batches))
        return published(batches)

    # ---- reading ----

    async def read(
        self,
        topic: str,
        from_seq: int = 0,
        *,
        limit: int = 0,
        max_bytes: int = 0,
        wait: float = 0.0,
        match: Match = None,
        nodes: str | Sequence[str] | None = None,
        from_time: datetime | None = None,
        metadata_only: bool = False,
        performance: bool = False,
        epoch: int | None = None,
    ) -> ReadResult:
        """Records with a seq above from_seq, oldest first; see `topicd.Client.read`."""
        request = requests.fetch(
            from_seq,
            limit=limit,
            max_bytes=max_bytes,
            match=match,
            nodes=nodes,
            from_time=from_time,
            metadata_only=metadata_only,
            performance=performance,
            epoch=epoch,
        )
        ends = self._engine.tempo.monotonic() + wait
        while True:
            left = ends - self._engine.tempo.monotonic() if wait else 0.0
            wait_ms = requests.wait_ms(left)
            fetched = await self._engine.with_topic(
                topic, Op.FETCH, request.body(wait_ms), flags=request.flags, wait=wait_ms / 1000
            )
            found = ReadResult(topic, fetched)
            if requests.enough(found, left):
                return found

    async def watch(
        self,
        topics: str | list[str] | tuple[str, ...],
        start: Start = "latest",
        *,
        on_gap: OnGap = "yield",
        match: Match = None,
        nodes: str | list[str] | None = None,
        batch_bytes: int = MIB,
    ) -> AsyncWatch:
        """Records of a topic, a list of topics or a pattern as they are stored; see `topicd.Client.watch`.

        >>> async with await client.watch("orders") as events:    # doctest: +SKIP
        ...     async for event in events:
        ...         print(event)
        """
        self._check_open()
        wanted = Wanted(topics, start, match, nodes)
        return await AsyncWatch(self._engine, wanted, on_gap=on_gap, batch_bytes=batch_bytes).open()

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
        batch_bytes: int = MIB,
    ) -> AsyncConsumer:
        """The consumer of that name, which goes on where it has acknowledged; `start` counts when it is new."""
        self._check_open()
        made = AsyncConsumer(
            self._engine,
            topic,
            name,
            start=start,
            auto_ack=auto_ack,
            on_gap=on_gap,
            match=match,
            nodes=nodes,
            batch_bytes=batch_bytes,
        )
        return await made.open()

    async def consumers(self, topic: str) -> list[ConsumerInfo]:
        """The named consumers of a topic."""
        answer = await self._engine.call(topic, Op.CONSUMER_LIST, {"topic": topic})
        return [info(ConsumerInfo, entry) for entry in answer.get("consumers") or []]

    async def reset_consumer(self, topic: str, name: str, start: Start) -> int:
        """Sets a consumer back or forth; the seq it counts as having acknowledged now."""
        request = requests.consumer(topic, name, start)
        return number(await self._engine.call(topic, Op.CONSUMER_RESET, request), "acked_seq")

    async def remove_consumer(self, topic: str, name: str) -> None:
        await self._engine.call(topic, Op.CONSUMER_REMOVE, requests.consumer(topic, name))

    # ---- topics ----

    async def state(self, topic: str, *, touch: bool = True) -> TopicState:
        return info(TopicState, await self._engine.call(topic, Op.STATE, {"topic": topic, "touch": touch}))

    async def configure(self, topic: str, **config: Any) -> TopicConfig:
        """Creates the topic or changes the given fields; returns the whole configuration."""
        answer = await self._engine.call(topic, Op.CONFIGURE, requests.configure(topic, config))
        return config_of(answer.get("config"))

    async def topics(self, prefix: str = "") -> AsyncIterator[TopicInfo]:
        """All topics whose name begins with prefix, sorted by name."""
        shards = self._engine.directory.shards()
        pages = await asyncio.gather(*(self._topics_of(shard, prefix) for shard in shards))
        for topic in heapq.merge(*pages, key=lambda topic: topic.topic):
            yield topic

    async def _topics_of(self, shard: int, prefix: str) -> list[TopicInfo]:
        found: list[TopicInfo] = []
        after: Any = ""
        while after is not None:
            request = {"prefix": prefix, "after": after, "limit": LIST_PAGE_MAX}
            page = await self._engine.call_shard(shard, Op.LIST, request)
            found += [info(TopicInfo, entry) for entry in page.get("topics") or []]
            after = page.get("next")
        return found

    async def delete(self, topic: str, before_seq: int | None = None, match: Match = None) -> Deleted:
        """Removes records for good: those below before_seq, those whose tag matches, or those that are both."""
        request = requests.delete(topic, before_seq, match)
        return info(Deleted, await self._engine.call(topic, Op.DELETE_RECORDS, request))

    async def delete_topic(self, topic: str, *, if_empty: bool = False) -> int:
        """Removes the topic with everything in it; the id it had."""
        answer = await self._engine.call(topic, Op.DELETE_TOPIC, {"topic": topic, "if_empty": if_empty})
        return number(answer, "topic_id")

    # ---- the daemon ----

    async def status(self) -> dict[str, Any]:
        """The daemon's processes, their state and counters."""
        return await self._engine.call_shard(SUPERVISOR, Op.STATUS, {})

    async def ping(self) -> float:
        """Seconds there and back."""
        began = self._engine.tempo.monotonic()
        await self._engine.call_shard(SUPERVISOR, Op.PING, {})
        return self._engine.tempo.monotonic() - began

    def _check_open(self) -> None:
        if self._engine.closed:
            raise InvalidRequest("the client is closed")

    async def close(self) -> None:
        """What is still under way fails; await it first."""
        await self._engine.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
