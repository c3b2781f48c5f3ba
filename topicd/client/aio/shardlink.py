"""One shard as the asyncio face sees it: a connection that is made when it is needed and made again when it breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from topicd.client.aio.connection import AioConnection, open_connection
from topicd.client.aio.shared import AioShared
from topicd.errors import ConnectionLost, TopicdError, WrongShard
from topicd.ipc.protocol.cutter import Cutter
from topicd.ipc.protocol.retry import Backoff
from topicd.ipc.protocol.sender import Sender, joined


class AioShardLink:
    def __init__(
        self, shared: AioShared, shard: int, sender: Sender, look_again: Callable[[], Awaitable[None]]
    ) -> None:
        """`look_again` asks where the shards are and moves topics to where they belong."""
        self.shard = shard
        self._look_again = look_again
        self.sender = sender
        self.moved = False
        self.ended = False  # nobody needs it any more
        self._shared = shared
        self._now = shared.tempo.monotonic
        self._loop = shared.loop
        self._connection: AioConnection | None = None
        self._dialing: asyncio.Task[AioConnection] | None = None
        self._reviving: asyncio.Task[None] | None = None
        self.scheduled = False  # what waits is sent at the end of this turn
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

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
        await open_connection(self._shared, self.shard, made, timeout)
        if self._shared.closed or self.ended:
            made.abort(ConnectionLost("the client is closed"))
            raise ConnectionLost("the client is closed")
        self._connection = made
        self.sender.connect()
        self._flush()
        return made

    def _lost(self, connection: AioConnection, why: TopicdError) -> None:
        if connection is not self._connection:
            return
        self._connection = None
        if not (self._shared.closed or self.ended):
            self._shared.events.lost(self.shard, why)
        self.moved = isinstance(why, WrongShard)
        self.sender.disconnect(why, self._now())
        if not why.retriable:
            self.sender.fail_all(why)
        self.kick()

    def kick(self) -> None:
        """Sees to it that what waits is sent, now or when there is a connection again."""
        if self._connection is not None:
            self._schedule()
        elif not self.sender.idle and (self._reviving is None or self._reviving.done()):
            self._reviving = self._loop.create_task(self._revive())

    async def _revive(self) -> None:
        backoff = Backoff(self._shared.tempo.random)
        while not (self._shared.closed or self.ended):
            self.sender.expire(self._now())
            if self._connection is not None or self.sender.idle:
                return
            try:
                if self.moved:
                    await self._look_again()
                    self.moved = False
                else:
                    await self.connection(self._shared.timeout)
            except TopicdError as exc:
                if not exc.retriable:
                    self.sender.fail_all(exc)
                # A daemon that was started anew may have put this shard elsewhere, or have fewer.
                self.moved = True
                await asyncio.sleep(backoff.next())

    # ---- appends ----

    def submitted(self) -> None:
        """The sender has got something to send."""
        if not self.scheduled:
            self.kick()

    def _schedule(self) -> None:
        if not self.scheduled:
            self.scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self.scheduled = False
        connection = self._connection
        while connection is not None and connection.writable and self.sender.ready:
            pieces = joined(self.sender.output(self._now()))
            if not pieces:
                break
            connection.write(pieces)
        resume_at = self.sender.resume_at
        if self._timer is None or (resume_at is not None and resume_at < self._timer_at):
            self._arm()

    def _input(self, connection: AioConnection, cutter: Cutter) -> None:
        self.sender.feed(cutter, self._now(), connection.answered)
        if self.sender.misplaced:
            raise WrongShard("topics have moved to other shards")
        self._flush()

    # ---- time ----

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self.sender.wake_at(blocked=self._connection is not None and not self._connection.writable)
        if due is not None:
            self._timer_at = due
            self._timer = self._loop.call_later(max(0.0, due - self._now()), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.sender.expire(self._now())
        self._flush()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._connection is not None:
            self._connection.abort(ConnectionLost("the connection was closed"))
