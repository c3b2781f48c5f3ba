"""Operations of the asyncio face on shards, repeated until they succeed, are refused for good, or time is up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from topicd.client.aio_link import AioLink, FutureBatch
from topicd.client.backoff import Patience, Tempo
from topicd.client.connection import dial
from topicd.client.context import Context
from topicd.client.directory import SUPERVISOR, Directory
from topicd.client.links import Spread
from topicd.client.wire import Hello, answer_map, number, packed
from topicd.errors import ConnectionLost, InvalidRequest, TopicdError, TopicNotFound, WrongShard
from topicd.ipc.protocol.messages import Op
from topicd.model import check_topic_name

IDS_KEPT = 65_536
REFRESH_S = 2.0


class AioEngine(Context):
    def __init__(self, directory: Directory, *, tempo: Tempo, timeout: float, token: str | None) -> None:
        super().__init__(directory, tempo=tempo, timeout=timeout, token=token)
        self._loop = asyncio.get_running_loop()
        self._links: Spread[AioLink] = Spread(self, lambda shard: AioLink(self, shard, self._look_again))
        self._ids: dict[str, int] = {}
        directory.on_move(self._moved)

    # ---- appends ----

    def append(self, topic: str, frames: bytes | bytearray, count: int) -> FutureBatch:
        """Sends a batch with the others of this turn; its future gets the first seq."""
        if self.closed:
            raise InvalidRequest("the client is closed")
        line = self._links.line(topic)
        batch = FutureBatch(line, frames, count, self.tempo.monotonic() + self.timeout)
        batch.future = self._loop.create_future()
        self._links.link_of(line).submit(batch)
        return batch

    # ---- requests that may be repeated freely ----

    async def exchange(self, shard: Callable[[], int], op: int, body: bytes, flags: int = 0, wait: float = 0.0) -> Any:
        """Fetched for FETCH, (flags, body) for all others. The shard is asked for anew at each attempt."""
        if self.closed:
            raise InvalidRequest("the client is closed")
        patience: Patience | None = None
        limit = self.timeout + wait
        while True:
            try:
                async with asyncio.timeout(limit):
                    connection = await self._links.link_to(shard()).connection(limit)
                    return await connection.call(op, body, flags)
            except TimeoutError:
                error: TopicdError = ConnectionLost(f"the daemon did not answer within {limit:g} s")
            except TopicdError as exc:
                error = exc
            if self.closed:
                raise error
            patience = patience or Patience(self.tempo, limit)
            delay = patience.after(error)
            if isinstance(error, ConnectionLost | WrongShard):
                await self.refresh()
            await asyncio.sleep(delay)

    async def call(self, topic: str, op: int, body: dict[str, Any]) -> dict[str, Any]:
        """A request about a topic by name."""
        check_topic_name(topic)
        _flags, raw = await self.exchange(lambda: self.directory.shard_of(topic), op, packed(body))
        return answer_map(raw)

    async def call_shard(self, shard: int, op: int, body: dict[str, Any]) -> dict[str, Any]:
        _flags, raw = await self.exchange(lambda: shard, op, packed(body))
        return answer_map(raw)

    async def with_topic(
        self,
        topic: str,
        op: int,
        body: Callable[[int], bytes],
        *,
        flags: int = 0,
        wait: float = 0.0,
        create: bool = False,
    ) -> Any:
        """A request about a topic by id; an id that is out of date is looked up again, once."""
        check_topic_name(topic)
        known = self._ids.get(topic)
        try:
            topic_id = known or await self._open(topic, create)
            return await self.exchange(lambda: self.directory.shard_of(topic), op, body(topic_id), flags, wait)
        except TopicNotFound:
            self._ids.pop(topic, None)
            if known is None:
                raise
        topic_id = await self._open(topic, create)
        return await self.exchange(lambda: self.directory.shard_of(topic), op, body(topic_id), flags, wait)

    async def _open(self, topic: str, create: bool) -> int:
        topic_id = number(await self.call(topic, Op.OPEN, {"topic": topic, "create": create}), "topic_id")
        if len(self._ids) >= IDS_KEPT:
            self._ids.clear()
        self._ids[topic] = topic_id
        return topic_id

    # ---- where the shards are ----

    async def refresh(self) -> None:
        """Asks the daemon's front door, in another thread since it may take a while to answer."""

        def ask() -> Hello | None:
            front = dial(self.directory.path_of(SUPERVISOR), REFRESH_S, self.token)
            front.close()
            return front.hello

        try:
            hello = await self._loop.run_in_executor(None, ask)
        except TopicdError:
            return
        if hello is not None:
            self.directory.learn(hello)

    async def _look_again(self) -> None:
        await self.refresh()
        self._spread()

    def _moved(self) -> None:
        self._loop.call_soon(self._spread)

    def _spread(self) -> None:
        if self.closed or not self._links.outdated:
            return
        self._links.spread()
        for link in self._links.links:
            link.kick()

    async def close(self) -> None:
        self.closed = True
        self._links.close()
        for link in self._links.links:
            link.appender.fail_all(ConnectionLost("the client was closed before this was acknowledged"))
        # Lets transports and tasks see it.
        await asyncio.sleep(0)
