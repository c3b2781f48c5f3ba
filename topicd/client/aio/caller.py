"""Operations of the asyncio face on shards, repeated until they succeed, are refused for good, or time is up. The
timeout counts from the beginning of an operation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any, TypeVar

from topicd.client.aio.routes import AioRoutes, FutureBatch
from topicd.client.aio.shared import AioShared
from topicd.client.blocking.caller import Caller
from topicd.client.core.channels import Unanswered
from topicd.client.core.events import Events
from topicd.client.core.options import MAX_CONNECTIONS, TOPIC_IDS_KEPT
from topicd.client.core.requests import Append, Opened, Request, check_queue, open_any
from topicd.client.core.shardmap import SUPERVISOR, ShardMap
from topicd.errors import ConnectionLost, InvalidRequest, TopicdError, TopicNotFound, WrongShard
from topicd.ipc.protocol.codec import Appended, answer_map, parse_ack
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.retry import Patience, Tempo
from topicd.model import check_topic_name

_PARTING = ContextVar("topicd_parting", default=False)  # in what the others wait for
WINDOW = 256  # single publishes of a topic that are under way at once
T = TypeVar("T")


class AioCaller(AioShared):
    def __init__(
        self, shard_map: ShardMap, *, tempo: Tempo, timeout: float, token: str | None, events: Events | None = None
    ) -> None:
        super().__init__(shard_map, tempo=tempo, timeout=timeout, token=token, events=events)
        self._routes = AioRoutes(self, WINDOW)
        self._ids: dict[str, Opened] = {}
        self._threads: Caller | None = None
        self._partings: set[asyncio.Task[None]] = set()

    @property
    def threads(self) -> Caller:
        """For what runs in threads."""
        if self._threads is None:
            self._threads = Caller(
                self.shard_map,
                tempo=self.tempo,
                timeout=self.timeout,
                token=self.token,
                max_connections=MAX_CONNECTIONS,
            )
        return self._threads

    # ---- what nobody waits for ----

    def part(self, words: Coroutine[Any, Any, None]) -> None:
        """Said by itself; what is asked from now on is asked behind it, and the client is closed behind it."""
        task = self.loop.create_task(apart(words))
        self._partings.add(task)
        task.add_done_callback(self._parted)

    def _parted(self, task: asyncio.Task[None]) -> None:
        self._partings.discard(task)
        if not task.cancelled():
            task.exception()  # nobody else looks

    async def _until_parted(self) -> None:
        while self._partings and not _PARTING.get():
            await asyncio.wait(set(self._partings))

    # ---- appends ----

    def append(self, topic: str, frames: bytes | bytearray, count: int) -> FutureBatch:
        """Sends a batch with the others of this turn; its future gets the first seq."""
        return self._routes.append(topic, frames, count)

    async def append_jobs(self, queue: str, frames: bytes | bytearray, count: int, options: bytes) -> FutureBatch:
        """The same for jobs, when they are stored."""
        await self.queue_id(queue)
        batch = self._routes.append(queue, frames, count, options=options)
        await batch.future
        return batch

    async def append_alone(self, topic: str, batch: Append, *, queue: bool = False) -> Appended:
        """Sends a batch that has no place among the others."""
        flags, raw = await self.with_topic(topic, Op.APPEND, batch.body, flags=batch.flags, create=True, queue=queue)
        return parse_ack(flags, raw, 0, len(raw))

    # ---- requests that may be repeated freely ----

    async def exchange(
        self,
        shard: Callable[[], int],
        op: int,
        body: bytes,
        flags: int = 0,
        wait: float = 0.0,
        *,
        once: bool = False,
        brief: bool = False,
        again: Callable[[], None] | None = None,
    ) -> Any:
        """Fetched for FETCH, (flags, body) for all others. The shard is asked for anew at each attempt. once: what was
        sent is not sent again. brief: tried again within the timeout only, though an answer may take `wait` longer.
        again: called before each attempt but the first."""
        if self.closed:
            raise InvalidRequest("the client is closed")
        if self._partings:
            await self._until_parted()
        left = limit = self.timeout + wait
        began = self.tempo.monotonic()
        patience: Patience | None = None
        while True:
            sent = False
            try:
                async with asyncio.timeout(left):
                    connection = await self._routes.link_to(shard()).connection(left)
                    sent = once
                    return await connection.call(op, body, flags)
            except TimeoutError:
                error: TopicdError = ConnectionLost(f"the daemon did not answer within {limit:g} s")
            except TopicdError as exc:
                error = exc
            if sent and isinstance(error, ConnectionLost):
                raise Unanswered(f"nobody knows whether this was done: {error.message}") from error
            if self.closed:
                raise error
            patience = patience or Patience(self.tempo, self.timeout if brief else limit, began)
            delay = patience.after(error)
            if isinstance(error, ConnectionLost | WrongShard):
                await self.refresh()
            await asyncio.sleep(delay)
            left = patience.remaining() + (wait if brief else 0.0)
            if again is not None:
                again()

    async def ask(self, request: Request[T]) -> T:
        """Of the shard of its topic; without one, of the daemon's front door."""
        topic = request.topic
        if topic is None:
            return await self.ask_shard(SUPERVISOR, request)
        _flags, raw = await self.exchange(lambda: self.shard_map.shard_of(topic), request.op, request.body)
        return request.parse(answer_map(raw))

    async def ask_once(self, request: Request[T]) -> T:
        """Of the shard of its topic, for what must not be done twice: raises Unanswered when nobody knows whether it
        was done."""
        topic = str(request.topic)
        _flags, raw = await self.exchange(lambda: self.shard_map.shard_of(topic), request.op, request.body, once=True)
        return request.parse(answer_map(raw))

    async def ask_shard(self, shard: int, request: Request[T]) -> T:
        _flags, raw = await self.exchange(lambda: shard, request.op, request.body)
        return request.parse(answer_map(raw))

    async def with_topic(
        self,
        topic: str,
        op: int,
        body: Callable[[int], bytes],
        *,
        flags: int = 0,
        wait: float = 0.0,
        create: bool = False,
        queue: bool = False,
        again: Callable[[], None] | None = None,
    ) -> Any:
        """A request about a topic by id; an id that is out of date is looked up again, once. `queue`: what is created
        is a queue, and anything else is NotAQueue. `again`: see `exchange`."""
        check_topic_name(topic)
        known = topic in self._ids

        def shard() -> int:
            return self.shard_map.shard_of(topic)

        try:
            topic_id = await self._id(topic, create, queue)
            return await self.exchange(shard, op, body(topic_id), flags, wait, again=again)
        except TopicNotFound:
            self._ids.pop(topic, None)
            if not known:
                raise
        topic_id = await self._id(topic, create, queue)
        return await self.exchange(shard, op, body(topic_id), flags, wait, again=again)

    async def queue_id(self, topic: str) -> int:
        """The id of a queue, which is created if there is none."""
        return await self._id(check_topic_name(topic), True, True)

    async def _id(self, topic: str, create: bool, queue: bool) -> int:
        known = self._ids.get(topic)
        if known is None:
            known = await self.ask(open_any(topic, create=create, queue=queue))
            if len(self._ids) >= TOPIC_IDS_KEPT:
                self._ids.clear()
            self._ids[topic] = known
        if queue:
            check_queue(topic, known.type)
        return known.topic_id

    async def close(self) -> None:
        await self._until_parted()
        self.closed = True
        if self._threads is not None:
            self._threads.close()
        await self._routes.end(ConnectionLost("the client was closed before this was acknowledged"))


async def apart(words: Coroutine[Any, Any, None]) -> None:
    """What others wait for does not wait for itself."""
    _PARTING.set(True)
    await words


def is_running(loop: asyncio.AbstractEventLoop) -> bool:
    """Is it the one that runs here and now?"""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
