"""Which connection of the asyncio face carries which topic. The links drive themselves."""

from __future__ import annotations

import asyncio

from topicd.client.aio.shardlink import AioShardLink
from topicd.client.aio.shared import AioShared
from topicd.client.core.routes import TopicRoutes
from topicd.errors import InvalidRequest, TopicdError
from topicd.ipc.protocol.outbox import OutBatch
from topicd.ipc.protocol.sender import Sender


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

    async def outcome(self) -> None:
        """Waits for it; raises nothing."""
        await asyncio.wait((self.future,))
        if not self.future.cancelled():
            self.future.exception()


class AioRoutes(TopicRoutes[AioShardLink]):
    """At most `window` batches of a topic are under way."""

    def __init__(
        self, shared: AioShared, window: int, *, halt: bool = False, creates: bool = True, timed: bool = False
    ) -> None:
        def link(shard: int) -> AioShardLink:
            return AioShardLink(shared, shard, Sender(window, timed=timed), self._look_again)

        super().__init__(shared, link, halt=halt, creates=creates)
        self._refresh = shared.refresh
        self._create_future = shared.loop.create_future
        shared.tell(self)

    def submit(self, batch: OutBatch) -> AioShardLink:
        """Sent with the others of this turn of the loop."""
        link = super().submit(batch)
        link.submitted()
        return link

    def append(
        self,
        topic: str,
        frames: bytes | bytearray,
        count: int,
        *,
        impatient: tuple[type[TopicdError], ...] = (),
        timeout: float | None = None,
        options: bytes | None = None,
    ) -> FutureBatch:
        """impatient: refusals that end it at once though they may pass. options: of jobs, packed; a topic that has to
        be created is a queue then."""
        # For every record of those who publish one by one: what `outbox` and `submit` do, in place.
        shared = self._shared
        if shared.closed:
            raise InvalidRequest("the client is closed")
        outbox = self._outboxes.get(topic) or self.outbox(topic)
        deadline = shared.tempo.monotonic() + (shared.timeout if timeout is None else timeout)
        batch = FutureBatch(outbox, frames, count, deadline)
        batch.future = self._create_future()
        batch.impatient = impatient
        if options is not None:
            batch.options = options
            outbox.creates_queue = True
        link = self._where[outbox]
        link.sender.submit(batch)
        if not link.scheduled:
            link.kick()
        return batch

    async def _look_again(self) -> None:
        await self._refresh()
        self.follow_topics()

    def follow_topics(self) -> None:
        """To the shards that own them now."""
        if self._shared.closed or not self.outdated:
            return
        self.spread()
        for link in self.links:
            link.kick()

    async def end(self, why: TopicdError) -> None:
        """What is not acknowledged fails."""
        for link in self.links:
            link.ended = True
            link.close()
            link.sender.fail_all(why)
        # Lets transports and tasks see it.
        await asyncio.sleep(0)
