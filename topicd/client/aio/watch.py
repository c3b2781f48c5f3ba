"""A watch for asyncio: records and gaps as they happen, across restarts of the daemon."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Generic, cast

from topicd.client.aio.connection import AioConnection, open_connection
from topicd.client.aio.shared import AioShared
from topicd.client.core.batch import Batch
from topicd.client.core.decode import Decoder
from topicd.client.core.gaps import OnGap
from topicd.client.core.records import E_co, Event
from topicd.client.core.watching import Feed, Resume, WatchFigures, Watching
from topicd.errors import ConnectionLost, TopicdError, TopicNotFound, WrongShard
from topicd.ipc.protocol.codec import answer_map, packed
from topicd.ipc.protocol.cutter import Arrived, Cutter
from topicd.ipc.protocol.following import Following, Wanted
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.retry import FOREVER_S, Patience
from topicd.ipc.protocol.wire import ANSWER

SUBSCRIBED = (int(Op.SUBSCRIBE) | ANSWER, int(Op.CHANNEL_WATCH) | ANSWER)


class AioFeed(Feed[AioConnection]):
    """`arrived` takes pushes and notices; `lost` hears when the connection is gone."""

    def __init__(
        self,
        shared: AioShared,
        shard: int,
        following: Following,
        arrived: Callable[[AioFeed, AioConnection, Arrived], None],
        lost: Callable[[AioFeed, TopicdError], None],
    ) -> None:
        super().__init__(shard, following)
        self._shared = shared
        self._arrived = arrived
        self._told = lost

    async def open(self, timeout: float) -> list[TopicNotFound]:
        """Connects and subscribes; topics that are gone by now are returned."""
        connection = AioConnection(self._lost, lambda: None)
        connection.on_input = partial(self._input, connection)
        await open_connection(self._shared, self.shard, connection, timeout)
        gone: list[TopicNotFound] = []
        try:
            async with asyncio.timeout(timeout):
                while not await self._subscribed(connection, gone):
                    pass
        except TimeoutError:
            raise ConnectionLost("the daemon did not answer in time") from None
        finally:
            if self.connection is not connection:
                connection.abort(ConnectionLost("the subscription was not accepted"))
        return gone

    async def _subscribed(self, connection: AioConnection, gone: list[TopicNotFound]) -> bool:
        """The answer is taken in by _input: pushes may follow it at once, before the future wakes us."""
        try:
            request = self.following.request()
            await connection.call(request.OP, packed(request.to_wire()))
        except TopicNotFound as exc:
            self.refused(exc, gone)
            return False
        return True

    def _input(self, connection: AioConnection, cutter: Cutter) -> None:
        while (arrived := cutter.take()) is not None:
            if arrived.op in (Op.PUSH, Op.NOTICE) or not connection.expects(arrived.request_id):
                self._arrived(self, connection, arrived)
                continue
            if arrived.op in SUBSCRIBED:
                self.following.accepted(answer_map(arrived.body()), arrived.request_id)
                self.connection = connection
            connection.answered(arrived)

    def _lost(self, connection: AioConnection, why: TopicdError) -> None:
        if connection is self.connection:
            self.connection = None
            self._told(self, why)

    def close(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.abort(ConnectionLost("the watch is closed"))


class AsyncWatch(WatchFigures, Generic[E_co]):
    """Made by `client.watch`. Iterate it with `async for` for records (and gaps, with `gaps=True`), `poll` it for the
    next one, or take whole `batches()`."""

    def __init__(
        self, shared: AioShared, wanted: Wanted, *, on_gap: OnGap, batch_bytes: int, decode: Decoder | None = None
    ) -> None:
        self._shared = shared
        self._watching: Watching[AioFeed] = Watching(wanted, on_gap, batch_bytes, decode)
        self._waiter: asyncio.Future[None] | None = None
        self._restoring: asyncio.Task[None] | None = None
        self._one_at_a_time = asyncio.Lock()
        self._closed = False

    # ---- life ----

    async def open(self, resume: Resume | None = None) -> AsyncWatch[E_co]:
        """Subscribes; from here on nothing is missed. `resume` gives topics their (topic id, cursor) of before."""
        self._plan(resume)
        await self._restore(self._shared.timeout)
        return self

    def _plan(self, resume: Resume | None = None) -> None:
        def make(shard: int, following: Following) -> AioFeed:
            return AioFeed(self._shared, shard, following, self._arrived, self._feed_lost)

        for feed in self._watching.plan(self._shared.shard_map, make, resume):
            feed.close()

    async def _restore(self, within: float = FOREVER_S) -> None:
        """Connects every feed that is not. Once it was open, it waits for the daemon as long as that takes."""
        async with self._one_at_a_time:
            await self._restore_all(within)

    async def _restore_all(self, within: float) -> None:
        patience = Patience(self._shared.tempo, within)
        while not self._closed:
            if self._watching.outdated(self._shared.shard_map):
                self._plan()
            missing = self._missing()
            if not missing:
                return
            try:
                self._watching.gone(await missing[0].open(patience.remaining()))
            except TopicdError as exc:
                delay = patience.after(exc)
                if isinstance(exc, ConnectionLost | WrongShard):
                    await self._shared.refresh()
                await asyncio.sleep(delay)

    def _missing(self) -> list[AioFeed]:
        feeds = self._watching.feeds.values()
        return [feed for feed in feeds if feed.connection is None and not feed.following.empty]

    def _restore_soon(self) -> None:
        if self._restoring is None or self._restoring.done():
            self._restoring = self._shared.loop.create_task(self._restore_later())

    async def _restore_later(self) -> None:
        try:
            await self._restore()
        except TopicdError as exc:
            self._watching.failed(exc)
        # Topics may be gone, and the reader the last to hear of it.
        self._wake()

    async def close(self) -> None:
        """Ends it; what was not iterated is given up."""
        self._closed = True
        if self._restoring is not None:
            self._restoring.cancel()
        for feed in list(self._watching.feeds.values()):
            feed.close()
        self._wake()

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def buffered(self) -> bool:
        """The next event is here already."""
        return self._watching.buffered

    async def __aenter__(self) -> AsyncWatch[E_co]:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # ---- what the feeds report ----

    def _arrived(self, feed: AioFeed, connection: AioConnection, arrived: Arrived) -> None:
        if credit := self._watching.take(feed, connection, arrived):
            connection.send(credit)
        self._wake()

    def _feed_lost(self, feed: AioFeed, why: TopicdError) -> None:
        if self._closed or self._watching.feeds.get(feed.shard) is not feed:
            return
        self._shared.events.lost(feed.shard, why)
        if not why.retriable:
            self._closed = True
            self._watching.failed(why)
            self._wake()
        else:
            self._restore_soon()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # ---- events ----

    def __aiter__(self) -> AsyncWatch[E_co]:
        return self

    async def __anext__(self) -> E_co:
        event: Event | None = self._watching.next_record()
        while event is None:
            event = self._watching.begin(await self._next_batch())
        return cast(E_co, event)

    async def poll(self, timeout: float = 0.0) -> E_co | None:
        """The next one, or None if there is none within so many seconds or the watch is over."""
        event: Event | None = self._watching.next_record()
        ends = self._shared.tempo.monotonic() + timeout
        while event is None:
            if not self._watching.waiting:
                await asyncio.sleep(0)
            try:
                async with asyncio.timeout(max(0.0, ends - self._shared.tempo.monotonic())):
                    if not await self._wait():
                        return None
            except TimeoutError:
                if not self._watching.waiting:
                    return None
            event = self._watching.begin(self._watching.next_batch())
        return cast("E_co | None", event)

    def batches(self) -> AsyncIterator[Batch]:
        """Whole batches; `batch.gap` tells what is missing before its first record."""
        return _AsyncBatches(self)

    async def _next_batch(self) -> Batch:
        if not await self._wait():
            raise StopAsyncIteration
        return self._watching.next_batch()

    async def _wait(self) -> bool:
        """Until something has arrived; False when nothing will come any more."""
        if (done := self._watching.done_with()) is not None:
            connection, credit = done
            connection.send(credit)
        while not self._watching.waiting:
            if self._closed or self._watching.over:
                return False
            if self._missing():
                self._restore_soon()
            self._waiter = self._shared.loop.create_future()
            await self._waiter
        return True


class _AsyncBatches:
    def __init__(self, watch: AsyncWatch[Event]) -> None:
        self._watch = watch
        self._held: Batch | None = None

    def __aiter__(self) -> _AsyncBatches:
        return self

    async def __anext__(self) -> Batch:
        if self._held is None:
            self._held = await self._watch._next_batch()
            if self._held.gap is not None:
                # May raise; the batch behind the gap comes with the next call.
                self._watch._watching.shall_yield(self._held.gap)
        batch, self._held = self._held, None
        return batch
