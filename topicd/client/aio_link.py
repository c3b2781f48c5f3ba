"""One shard as the asyncio face sees it: a connection that is made when it is needed and made again when it breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from topicd.client.aio_connection import AioConnection, open_connection
from topicd.client.appender import Appender
from topicd.client.backoff import Backoff
from topicd.client.context import Context
from topicd.client.inbox import Inbox
from topicd.client.line import OutBatch
from topicd.client.link import joined
from topicd.errors import ConnectionLost, TopicdError, WrongShard

WINDOW = 256


class FutureBatch(OutBatch):
    """Its future gets the first seq."""

    __slots__ = ("future",)

    future: asyncio.Future[int]

    def settled(self) -> None:
        future = self.future
        if future.done():
            return
        if self.error is None:
            future.set_result(self.first_seq)
        else:
            future.set_exception(self.error)


class AioLink:
    def __init__(self, context: Context, shard: int, look_again: Callable[[], Awaitable[None]]) -> None:
        """`look_again` asks where the shards are and moves topics to where they belong."""
        self.shard = shard
        self._look_again = look_again
        self.appender = Appender(WINDOW)
        self.moved = False
        self._context = context
        self._now = context.tempo.monotonic
        self._loop = asyncio.get_running_loop()
        self._connection: AioConnection | None = None
        self._dialing: asyncio.Task[AioConnection] | None = None
        self._reviving: asyncio.Task[None] | None = None
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None

    # ---- the connection ----

    async def connection(self, timeout: float) -> AioConnection:
        """The connection; all who need it at the same time share one attempt to make it."""
        if self._connection is not None:
            return self._connection
        if self._dialing is None or self._dialing.done():
            self._dialing = self._loop.create_task(self._dial(timeout))
            # Whoever waited may have gone; the error is then nobody's.
            self._dialing.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._dialing)

    async def _dial(self, timeout: float) -> AioConnection:
        made = AioConnection(self._lost, self._flush)
        made.on_input = partial(self._input, made)
        await open_connection(self._context, self.shard, made, timeout)
        if self._context.closed:
            made.abort(ConnectionLost("the client is closed"))
            raise ConnectionLost("the client is closed")
        self._connection = made
        self.appender.connect()
        self._flush()
        return made

    def _lost(self, connection: AioConnection, why: TopicdError) -> None:
        if connection is not self._connection:
            return
        self._connection = None
        self.moved = isinstance(why, WrongShard)
        self.appender.disconnect(why, self._now())
        if not why.retriable:
            self.appender.fail_all(why)
        self.kick()

    def kick(self) -> None:
        """Sees to it that what waits is sent, now or when there is a connection again."""
        if self._connection is not None:
            self._schedule()
        elif not self.appender.idle and (self._reviving is None or self._reviving.done()):
            self._reviving = self._loop.create_task(self._revive())

    async def _revive(self) -> None:
        backoff = Backoff(self._context.tempo.random)
        while not self._context.closed:
            self.appender.expire(self._now())
            if self._connection is not None or self.appender.idle:
                return
            try:
                if self.moved:
                    await self._look_again()
                    self.moved = False
                else:
                    await self.connection(self._context.timeout)
            except TopicdError as exc:
                if not exc.retriable:
                    self.appender.fail_all(exc)
                # A daemon that was started anew may have put this shard elsewhere, or have fewer.
                self.moved = True
                await asyncio.sleep(backoff.next())

    # ---- appends ----

    def submit(self, batch: OutBatch) -> None:
        self.appender.submit(batch)
        if not self._scheduled:
            self.kick()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        connection = self._connection
        while connection is not None and connection.writable and self.appender.ready:
            pieces = joined(self.appender.output(self._now()))
            if not pieces:
                break
            connection.write(pieces)
        if self._timer is None:
            self._arm()

    def _input(self, connection: AioConnection, inbox: Inbox) -> None:
        self.appender.feed(inbox, self._now(), connection.answered)
        if self.appender.misplaced:
            raise WrongShard("topics have moved to other shards")
        if self.appender.troubled:
            self.appender.troubled = False
            self._arm()
        self._flush()

    # ---- time ----

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self.appender.wake_at(self._now())
        if due is not None:
            self._timer = self._loop.call_later(max(0.0, due - self._now()), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.appender.expire(self._now())
        self._flush()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._connection is not None:
            self._connection.abort(ConnectionLost("the connection was closed"))
