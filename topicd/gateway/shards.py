"""The shards as the gateway sees them: writes that keep their order, requests, reads. Promise: what is refused for good
or because something is full is told at once; a shard that restarts is waited for PATIENCE_S.

Writes and small requests share one connection per shard; reads, whose answers may be megabytes, have their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from topicd.client.aio.routes import AioRoutes, FutureBatch
from topicd.client.aio.shared import AioShared
from topicd.client.core.requests import Fetch
from topicd.client.core.requests import append as keyed_append
from topicd.client.core.shardmap import SUPERVISOR, ShardMap
from topicd.errors import ConnectionLost, Throttled, TopicdError, TopicNotFound, WrongShard
from topicd.ipc.protocol import messages
from topicd.ipc.protocol.codec import Appended, Fetched, Hello, answer_map, packed, parse_ack
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.retry import Patience, Tempo
from topicd.model import Durability
from topicd.paths import RunDir

PATIENCE_S = 5.0
BACKPRESSURE_S = 30.0  # how long a write waits that does not want to be told of pressure
WINDOW = 512  # writes to a topic that are under way at once
_IDS_KEPT = 100_000


class Shards:
    def __init__(self, run: RunDir, count: int) -> None:
        paths = tuple(str(run.delivery_socket(shard)) for shard in range(count))
        self.shared = AioShared(
            ShardMap(run.socket, Hello(SUPERVISOR, paths, {}, chat=True)), tempo=Tempo(), timeout=PATIENCE_S, token=None
        )
        self._writes = AioRoutes(self.shared, WINDOW, creates=False, timed=True)
        self._reads = AioRoutes(self.shared, 1)
        self._ids: dict[str, int] = {}
        self._synced: set[str] = set()  # of these: the class is fsync

    @property
    def count(self) -> int:
        return len(self.shared.shard_map.paths)

    def shard_of(self, topic: str) -> int:
        return self.shared.shard_map.shard_of(topic)

    async def close(self) -> None:
        self.shared.closed = True
        gone = ConnectionLost("the gateway is closed")
        await self._writes.end(gone)
        await self._reads.end(gone)

    # ---- writes ----

    def append(self, topic: str, frames: bytearray, count: int, *, patient: bool) -> FutureBatch:
        """To a topic that exists; its future fails with TopicNotFound otherwise."""
        timeout = BACKPRESSURE_S if patient else PATIENCE_S
        return self._writes.append(topic, frames, count, impatient=() if patient else (Throttled,), timeout=timeout)

    def is_synced(self, topic: str) -> bool:
        """Was the topic's class fsync when its id was asked for?"""
        return topic in self._synced

    async def append_keyed(self, topic: str, frames: bytearray, count: int, key: bytes, *, patient: bool) -> Appended:
        batch = keyed_append(frames, count, key=key, performance=True)
        known = self._ids.get(topic)
        topic_id = known or await self.id_of(topic)
        try:
            flags, raw = await self._exchange(
                self._writes, topic, Op.APPEND, batch.body(topic_id), batch.flags, patient
            )
        except TopicNotFound:
            self._ids.pop(topic, None)
            if known is None:
                raise
            return await self.append_keyed(topic, frames, count, key, patient=patient)
        return parse_ack(flags, raw, 0, len(raw))

    async def id_of(self, topic: str) -> int:
        """TopicNotFound if there is none."""
        answer = await self.ask(topic, messages.OpenTopic(topic=topic, create=False, config=None))
        self._synced.discard(topic)
        if answer.get("durability") == Durability.FSYNC:
            self._synced.add(topic)
        return self.learn(topic, int(answer["topic_id"]))

    def learn(self, topic: str, topic_id: int) -> int:
        if len(self._ids) >= _IDS_KEPT:
            self._ids.clear()
            self._synced.clear()
        self._ids[topic] = topic_id
        return topic_id

    # ---- requests ----

    async def ask(self, topic: str, message: messages.Request, *, patient: bool = False) -> dict[str, Any]:
        """Of the shard that owns the topic."""
        _, raw = await self._exchange(self._writes, topic, int(message.OP), packed(message.to_wire()), 0, patient)
        return answer_map(raw)

    async def ask_once(self, topic: str, message: messages.Request) -> dict[str, Any]:
        """The same, never repeated: for what must not be done twice."""
        connection = await self._writes.link_to(self.shard_of(topic)).connection(PATIENCE_S)
        try:
            async with asyncio.timeout(PATIENCE_S):
                _, raw = await connection.call(int(message.OP), packed(message.to_wire()), 0)
        except TimeoutError:
            raise ConnectionLost("a shard did not answer in time") from None
        return answer_map(raw)

    async def ask_shard(self, shard: int, message: messages.Request) -> dict[str, Any]:
        _, raw = await self._exchange(self._reads, lambda: shard, int(message.OP), packed(message.to_wire()), 0, False)
        return answer_map(raw)

    async def ask_all(self, message: messages.Request) -> list[dict[str, Any]]:
        return list(await asyncio.gather(*(self.ask_shard(shard, message) for shard in range(self.count))))

    async def ask_supervisor(self, message: messages.Request) -> dict[str, Any]:
        return await self.ask_shard(SUPERVISOR, message)

    async def ask_raw(self, topic: str, op: int, body_of: Callable[[int], bytes], *, bulk: bool = False) -> bytes:
        """A request with a layout of its own, which names the topic by its id. `bulk`: its answer may be large, and
        late, as that of a claim is."""
        known = self._ids.get(topic)
        topic_id = known or await self.id_of(topic)
        try:
            routes, timeout = (self._reads, 2 * PATIENCE_S) if bulk else (self._writes, PATIENCE_S)
            _, raw = await self._exchange(routes, topic, op, body_of(topic_id), 0, False, timeout)
        except TopicNotFound:
            self._ids.pop(topic, None)
            if known is None:
                raise
            return await self.ask_raw(topic, op, body_of, bulk=bulk)
        return bytes(raw)

    # ---- reads ----

    async def fetch(self, topic: str, request: Fetch, topic_id: int = 0) -> Fetched:
        """topic_id: of that very topic; 0: of the one that has the name."""
        if topic_id:
            return await self._fetch(topic, request, topic_id)
        known = self._ids.get(topic)
        try:
            return await self._fetch(topic, request, known or await self.id_of(topic))
        except TopicNotFound:
            self._ids.pop(topic, None)
            if known is None:
                raise
        return await self._fetch(topic, request, await self.id_of(topic))

    async def _fetch(self, topic: str, request: Fetch, topic_id: int) -> Fetched:
        found: Fetched = await self._exchange(
            self._reads, topic, Op.FETCH, request.body(topic_id, 0), request.flags, False
        )
        return found

    async def _exchange(
        self,
        routes: AioRoutes,
        whose: str | Callable[[], int],
        op: int,
        body: bytes,
        flags: int,
        patient: bool,
        timeout: float = PATIENCE_S,
    ) -> Any:
        """Repeated while its shard is away; `patient`: also while something is full."""
        limit = BACKPRESSURE_S if patient else timeout
        patience: Patience | None = None
        left = limit
        while True:
            try:
                shard = self.shard_of(whose) if isinstance(whose, str) else whose()
                connection = await routes.link_to(shard).connection(left)
                async with asyncio.timeout(left):
                    return await connection.call(op, body, flags)
            except TimeoutError:
                error: TopicdError = ConnectionLost("a shard did not answer in time")
            except TopicdError as exc:
                error = exc
            if self.shared.closed or (isinstance(error, Throttled) and not patient):
                raise error
            patience = patience or Patience(self.shared.tempo, limit)
            delay = patience.after(error)
            if isinstance(error, WrongShard):
                await self.shared.refresh()
            await asyncio.sleep(delay)
            left = patience.remaining()
