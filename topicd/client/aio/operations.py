"""The operations of the asyncio face: the same requests and promises as topicd.client.blocking.operations."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Literal, overload

from topicd.client.aio.bulk import publish_batches
from topicd.client.aio.caller import AioCaller
from topicd.client.aio.channels import AsyncChannels
from topicd.client.aio.history import history
from topicd.client.aio.routers import AsyncRouters
from topicd.client.core import requests
from topicd.client.core.answers import ConnectionInfo, TopicInfo
from topicd.client.core.arguments import Match, Nodes, Start, excluded
from topicd.client.core.batch import Batch, ReadResult
from topicd.client.core.decode import Decode
from topicd.client.core.encode import Serializer, encode_list, encode_one, label, named_serializer
from topicd.client.core.gaps import OnGap
from topicd.client.core.history import Reading
from topicd.client.core.operations import Declared
from topicd.client.core.receipts import published
from topicd.client.core.records import Event, Published, Record
from topicd.client.core.stored import Stored
from topicd.client.core.verbs import give_methods
from topicd.ipc.protocol import messages
from topicd.ipc.protocol.codec import checked_key
from topicd.ipc.protocol.messages import Op
from topicd.limits import FETCH_BYTES_MAX


class AsyncOperations(Declared):
    def __init__(self, caller: AioCaller, *, node: str | None = None, serializer: str | Serializer = "json") -> None:
        self._caller = caller
        self._node = label(node, "node")
        self._serialize = named_serializer(serializer)

    @property
    def caller(self) -> AioCaller:
        """For what is built on the client."""
        return self._caller

    @property
    def channels(self) -> AsyncChannels:
        """Channels with members, lists of who may, and history."""
        return AsyncChannels(self._caller, self._serialize)

    @property
    def node(self) -> bytes | None:
        """What is written into every record that names none."""
        return self._node

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
        """Stores one record and returns its seq; see `topicd.Client.publish`. Any number may be awaited at once; those
        of one turn of the loop are sent together, in order."""
        frames = encode_one(data, tag, node or self._node, meta, self._serialize)
        if key is not None:
            return (await self._caller.append_alone(topic, requests.append(frames, 1, key=checked_key(key)))).first_seq
        return await self._caller.append(topic, frames, 1).future

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
        return self._caller.append(topic, frames, 1).future

    async def publish_many(
        self,
        topic: str,
        records: Sequence[Any],
        *,
        tag: str | bytes | None = None,
        node: str | bytes | None = None,
        performance: bool = False,
    ) -> Published:
        """Stores a list of bytes (fastest), text, JSON values, `Record`s or (data, tag, node, meta) tuples, in order;
        see `topicd.Client.publish_many`."""
        batches = encode_list(records, tag, node, self._node, self._serialize)
        if len(batches) > 1:
            return await publish_batches(self._caller, topic, batches)
        if performance:
            return Published.of(await self._caller.append_alone(topic, requests.append(*batches[0], performance=True)))
        batch = self._caller.append(topic, *batches[0])
        await batch.future
        return published([batch])

    # ---- reading ----

    @overload
    def read(
        self,
        topic: str,
        start: Start = ...,
        *,
        gaps: Literal[True],
        to_seq: int | None = ...,
        limit: int | None = ...,
        match: Match = ...,
        exclude_nodes: Nodes = ...,
        metadata_only: bool = ...,
        committed: bool = ...,
        decode: Decode = ...,
    ) -> AsyncIterator[Event]: ...

    @overload
    def read(
        self,
        topic: str,
        start: Start = ...,
        *,
        gaps: Literal[False] = ...,
        on_gap: OnGap = ...,
        to_seq: int | None = ...,
        limit: int | None = ...,
        match: Match = ...,
        exclude_nodes: Nodes = ...,
        metadata_only: bool = ...,
        committed: bool = ...,
        decode: Decode = ...,
    ) -> AsyncIterator[Record]: ...

    def read(
        self,
        topic: str,
        start: Start = "earliest",
        *,
        gaps: bool = False,
        on_gap: OnGap = "raise",
        to_seq: int | None = None,
        limit: int | None = None,
        match: Match = None,
        exclude_nodes: Nodes = None,
        metadata_only: bool = False,
        committed: bool = False,
        decode: Decode = None,
    ) -> AsyncIterator[Event]:
        """Every record that the topic holds now, oldest first; see `topicd.Client.read`. Use it with `async for`."""
        stored = Stored(
            start,
            to_seq=to_seq,
            limit=limit,
            match=match,
            nodes=exclude_nodes,
            metadata_only=metadata_only,
            committed=committed,
            gaps=gaps,
            on_gap=on_gap,
            decode=decode,
        )
        return self._read(topic, stored)

    async def _read(self, topic: str, stored: Stored) -> AsyncIterator[Event]:
        async for batch in self._pages(topic, stored):
            for event in stored.events(batch):
                yield event

    async def _pages(self, topic: str, stored: Stored) -> AsyncIterator[Batch]:
        while not stored.over:
            yield stored.page(await self.fetch(topic, stored.at, **stored.arguments()))
            if stored.files and not stored.over:
                rest = self.history(
                    topic,
                    stored.at,
                    to_seq=stored.end,
                    match=stored.match,
                    epoch=stored.epoch,
                    committed=stored.committed,
                )
                async for batch in rest:
                    yield stored.page(batch)
                return

    async def fetch(
        self,
        topic: str,
        from_seq: int = 0,
        *,
        limit: int = 0,
        max_bytes: int = 0,
        wait: float = 0.0,
        match: Match = None,
        exclude_nodes: Nodes = None,
        from_time: datetime | None = None,
        metadata_only: bool = False,
        performance: bool = False,
        epoch: int | None = None,
        committed: bool = False,
        nodes: Nodes = None,
    ) -> ReadResult:
        """One page: records with a seq above from_seq, oldest first; see `topicd.Client.fetch`."""
        request = requests.fetch(
            from_seq,
            limit=limit,
            max_bytes=max_bytes,
            match=match,
            nodes=excluded(exclude_nodes, nodes),
            from_time=from_time,
            metadata_only=metadata_only,
            performance=performance,
            epoch=epoch,
            committed=committed,
        )
        poll = requests.LongPoll(self._caller.tempo, wait)
        while True:
            wait_ms = poll.next_ms()
            body = partial(request.body, wait_ms=wait_ms)
            fetched = await self._caller.with_topic(topic, Op.FETCH, body, flags=request.flags, wait=wait_ms / 1000)
            found = ReadResult(topic, fetched)
            if poll.over(found):
                return found

    def history(
        self,
        topic: str,
        from_seq: int = 0,
        *,
        to_seq: int | None = None,
        match: Match = None,
        epoch: int | None = None,
        committed: bool = False,
    ) -> AsyncIterator[Batch]:
        """Everything with a seq above from_seq, up to to_seq and at most to the head, in large batches, then ends; see
        `topicd.Client.history`."""
        reading = Reading(topic, from_seq, to_seq, match)

        async def read(at: int, limit: int) -> Batch:
            return await self.fetch(
                topic, at, limit=limit, max_bytes=FETCH_BYTES_MAX, match=reading.match, epoch=epoch, committed=committed
            )

        return history(
            self._caller, reading, read, lambda: None if committed else self._caller.shard_map.history_socket(topic)
        )

    # ---- consumers ----

    async def open_consumer(self, topic: str, name: str, start: Start = "earliest") -> int:
        """Creates a consumer that does not exist yet, and leaves one that does where it is; the seq it counts as having
        acknowledged. For readers that deliver by other means; `consumer` delivers."""
        return (await self._caller.ask(requests.open_consumer(topic, name, start))).acked_seq

    # ---- routers ----

    @property
    def routers(self) -> AsyncRouters:
        """Topics that feed topics: `create`, `get`, `list`, `delete`, `of`."""
        return AsyncRouters(self._caller)

    # ---- topics ----

    async def topics(self, prefix: str = "", *, internal: bool = False) -> AsyncIterator[TopicInfo]:
        """All topics whose name begins with prefix, sorted by name. Topicd's own (`topicd.*`) are among them if
        `internal` or the prefix asks for them."""
        shards = self._caller.shard_map.shards()
        pages = await asyncio.gather(*(self._topics_of(shard, prefix, internal) for shard in shards))
        for topic in heapq.merge(*pages, key=lambda topic: topic.topic):
            yield topic

    async def _topics_of(self, shard: int, prefix: str, internal: bool) -> list[TopicInfo]:
        found: list[TopicInfo] = []
        after: str | None = ""
        while after is not None:
            page = await self._caller.ask_shard(shard, requests.topics_page(prefix, after, internal))
            found += page.topics
            after = page.next
        return found

    # ---- the daemon ----

    async def connections(self) -> list[ConnectionInfo]:
        """Who is connected to each shard, this client included."""
        shards = self._caller.shard_map.shards()
        return [row for shard in shards for row in await self._caller.ask_shard(shard, requests.connections(shard))]

    async def ask_shards(self, message: messages.Request) -> list[dict[str, Any]]:
        """The answers of all delivery shards, asked one after the other; what backups are made with."""
        request: requests.Request[dict[str, Any]] = requests.of_daemon(message)
        return [await self._caller.ask_shard(shard, request) for shard in self._caller.shard_map.shards()]

    async def ping(self) -> float:
        """Seconds there and back."""
        began = self._caller.tempo.monotonic()
        await self._caller.ask(requests.ping())
        return self._caller.tempo.monotonic() - began


give_methods(AsyncOperations, Declared, awaited=True)
