"""A watch for asyncio: records and gaps as they happen, across restarts of the daemon."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from functools import partial
from operator import length_hint

from topicd.client.aio_connection import AioConnection, open_connection
from topicd.client.aio_engine import AioEngine
from topicd.client.backoff import Patience
from topicd.client.batch import Batch, fetched_from
from topicd.client.inbox import Inbox
from topicd.client.records import Gap, Record, RecordsMissed
from topicd.client.subscription import Subscription, Wanted, plan
from topicd.client.watch import CREATE_TRIES, WINDOW_BATCHES, Event, OnGap, checked_on_gap
from topicd.client.wire import answer_map, packed
from topicd.errors import ConnectionLost, FormatError, TopicdError, TopicNotFound, WrongShard
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import ANSWER


class AioFeed:
    """One shard's part of a watch."""

    def __init__(self, watch: AsyncWatch, shard: int, subscription: Subscription) -> None:
        self.shard = shard
        self.subscription = subscription
        self.connection: AioConnection | None = None
        self._watch = watch

    async def open(self, engine: AioEngine, timeout: float) -> list[TopicNotFound]:
        """Connects and subscribes; topics that are gone by now are returned."""
        connection = AioConnection(self._lost, lambda: None)
        connection.on_input = partial(self._input, connection)
        await open_connection(engine, self.shard, connection, timeout)
        gone: list[TopicNotFound] = []
        try:
            async with asyncio.timeout(timeout):
                tries = 0
                while not await self._subscribe(connection, gone, tries):
                    tries += 1
        except TimeoutError:
            raise ConnectionLost("the daemon did not answer in time") from None
        finally:
            if self.connection is not connection:
                connection.abort(ConnectionLost("the subscription was not accepted"))
        return gone

    async def _subscribe(self, connection: AioConnection, gone: list[TopicNotFound], tries: int) -> bool:
        """The answer is taken in by _input: pushes may follow it at once, before the future wakes us."""
        try:
            await connection.call(Op.SUBSCRIBE, packed(self.subscription.request()))
        except TopicNotFound as exc:
            if self.subscription.missing(exc):
                gone.append(exc)
            elif self.subscription.resumed or tries == CREATE_TRIES:
                raise
            else:
                await self._create(connection)
            return False
        return True

    async def _create(self, connection: AioConnection) -> None:
        for name in list(self.subscription.cursors):
            await connection.call_map(Op.OPEN, {"topic": name, "create": True})

    def _input(self, connection: AioConnection, inbox: Inbox) -> None:
        while (arrived := inbox.take()) is not None:
            if arrived.op == Op.PUSH:
                batch = self.subscription.pushed(fetched_from(arrived, inbox.buffer))
                self._watch._arrived(self, connection, batch)
            elif arrived.op == Op.NOTICE:
                self._watch._noticed(self.subscription.noticed(answer_map(arrived.body())))
            elif connection.expects(arrived.request_id):
                if arrived.op == Op.SUBSCRIBE | ANSWER:
                    self.subscription.accepted(answer_map(arrived.body()), arrived.request_id)
                    self.connection = connection
                connection.answered(arrived)
            else:
                raise FormatError(f"the daemon sent op 0x{arrived.op:02x} to a subscriber")

    def _lost(self, connection: AioConnection, why: TopicdError) -> None:
        if connection is self.connection:
            self.connection = None
            self._watch._feed_lost(self, why)

    def close(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.abort(ConnectionLost("the watch is closed"))


class AsyncWatch:
    """Iterate it with `async for` for `Record` and `Gap` events, or `batches()` for whole batches."""

    def __init__(self, engine: AioEngine, wanted: Wanted, *, on_gap: OnGap, batch_bytes: int) -> None:
        self._engine = engine
        self._wanted = wanted
        self._on_gap = checked_on_gap(on_gap)
        self._window = WINDOW_BATCHES * batch_bytes
        self._feeds: dict[int, AioFeed] = {}
        self._planned: tuple[str, ...] = ()
        self._ready: deque[tuple[AioFeed, AioConnection, Batch] | TopicdError] = deque()
        self._records: Iterator[Record] = iter(())
        self._looked_at: tuple[AioFeed, AioConnection, Batch] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._restoring: asyncio.Task[None] | None = None
        self._one_at_a_time = asyncio.Lock()
        self._closed = False

    # ---- life ----

    async def open(self, resume: dict[str, tuple[int, int]] | None = None) -> AsyncWatch:
        self._plan(resume)
        await self._restore()
        return self

    def _plan(self, resume: dict[str, tuple[int, int]] | None = None) -> None:
        self._planned = self._engine.directory.map.paths
        before = [feed.subscription for feed in self._feeds.values()]
        for feed in self._feeds.values():
            feed.close()
        parts = plan(self._engine.directory, self._wanted, before, self._window, resume)
        self._feeds = {shard: AioFeed(self, shard, part) for shard, part in parts.items()}

    async def _restore(self) -> None:
        """Connects every feed that is not; raises when that cannot be done in time."""
        async with self._one_at_a_time:
            await self._restore_all()

    async def _restore_all(self) -> None:
        patience = Patience(self._engine.tempo, self._engine.timeout)
        while not self._closed:
            if self._planned != self._engine.directory.map.paths:
                self._plan()
            missing = self._missing()
            if not missing:
                return
            try:
                gone = await missing[0].open(self._engine, patience.remaining())
                if self._wanted.pattern is None:
                    self._ready.extend(gone)
            except TopicdError as exc:
                delay = patience.after(exc)
                if isinstance(exc, ConnectionLost | WrongShard):
                    await self._engine.refresh()
                await asyncio.sleep(delay)

    def _missing(self) -> list[AioFeed]:
        return [f for f in self._feeds.values() if f.connection is None and not f.subscription.empty]

    @property
    def _over(self) -> bool:
        """Every topic that was asked for is gone."""
        return all(feed.subscription.empty for feed in self._feeds.values())

    def _restore_soon(self) -> None:
        if self._restoring is None or self._restoring.done():
            self._restoring = asyncio.get_running_loop().create_task(self._restore_later())

    async def _restore_later(self) -> None:
        try:
            await self._restore()
        except TopicdError as exc:
            self._ready.append(exc)
            self._wake()

    async def close(self) -> None:
        self._closed = True
        if self._restoring is not None:
            self._restoring.cancel()
        for feed in list(self._feeds.values()):
            feed.close()
        self._wake()

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def buffered(self) -> bool:
        """The next event is here already."""
        return bool(self._ready) or length_hint(self._records) > 0

    async def __aenter__(self) -> AsyncWatch:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # ---- what the feeds report ----

    def _arrived(self, feed: AioFeed, connection: AioConnection, batch: Batch) -> None:
        if len(batch) or batch.tombstone is not None:
            self._ready.append((feed, connection, batch))
            self._wake()
        else:
            self._grant(feed, connection, batch)

    def _noticed(self, error: TopicdError | None) -> None:
        if error is None:
            return
        if error.retriable:
            raise ConnectionLost(f"the subscription ended: {error.message}")
        self._ready.append(error)
        self._wake()

    def _feed_lost(self, feed: AioFeed, why: TopicdError) -> None:
        if self._closed or self._feeds.get(feed.shard) is not feed:
            return
        if not why.retriable:
            self._closed = True
            self._ready.append(why)
            self._wake()
        else:
            self._restore_soon()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # ---- events ----

    def __aiter__(self) -> AsyncWatch:
        return self

    async def __anext__(self) -> Event:
        for record in self._records:
            return record
        while True:
            batch = await self._next_batch()
            self._records = iter(batch.records)
            gap = batch.gap
            if gap is not None and self._shall_yield(gap):
                return gap
            for record in self._records:
                return record

    def batches(self) -> AsyncIterator[Batch]:
        """Whole batches; `batch.gap` tells what is missing before its first record."""
        return _AsyncBatches(self)

    def _shall_yield(self, gap: Gap) -> bool:
        if self._on_gap == "raise":
            raise RecordsMissed(gap)
        if self._on_gap == "yield":
            return True
        self._on_gap(gap)
        return False

    async def _next_batch(self) -> Batch:
        if self._looked_at is not None:
            done, self._looked_at = self._looked_at, None
            self._grant(*done)
        while not self._ready:
            if self._closed or self._over:
                raise StopAsyncIteration
            if self._missing():
                self._restore_soon()
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        found = self._ready.popleft()
        if isinstance(found, TopicdError):
            raise found
        self._looked_at = found
        return found[2]

    def _grant(self, feed: AioFeed, connection: AioConnection, batch: Batch) -> None:
        # A new connection began with full credit.
        if feed.connection is connection and (credit := feed.subscription.consumed(batch.credit)):
            connection.send(credit)


class _AsyncBatches:
    def __init__(self, watch: AsyncWatch) -> None:
        self._watch = watch
        self._held: Batch | None = None

    def __aiter__(self) -> _AsyncBatches:
        return self

    async def __anext__(self) -> Batch:
        if self._held is None:
            self._held = await self._watch._next_batch()
            gap = self._held.gap
            if gap is not None:
                # May raise; the batch behind the gap comes with the next call.
                self._watch._shall_yield(gap)
        batch, self._held = self._held, None
        return batch
