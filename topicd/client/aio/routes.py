"""Which connection of the asyncio face carries which topic. The links drive themselves."""

from __future__ import annotations

import asyncio

from topicd.client.aio.shardlink import AioShardLink
from topicd.client.aio.shared import AioShared
from topicd.client.core.routes import TopicRoutes
from topicd.errors import InvalidRequest, TopicdError
from topicd.ipc.protocol.outbox import OutBatch, TopicOutbox
from topicd.ipc.protocol.sender import Sender


class FutureBatch(OutBatch):
    """Its future gets the first seq."""

    __slots__ = ("future",)

    def __init__(self, outbox: TopicOutbox, frames: bytes | bytearray, count: int, deadline: float) -> None:
        super().__init__(outbox, frames, count, deadline)
        self.future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

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

    def __init__(self, shared: AioShared, window: int, *, halt: bool = False) -> None:
        super().__init__(shared, lambda shard: AioShardLink(shared, shard, Sender(window), self._look_again), halt=halt)
        self._refresh = shared.refresh
        shared.tell(self)

    def submit(self, batch: OutBatch) -> AioShardLink:
        """Sent with the others of this turn of the loop."""
        link = super().submit(batch)
        link.submitted()
        return link

    def append(self, topic: str, frames: bytes | bytearray, count: int) -> FutureBatch:
        if self._shared.closed:
            raise InvalidRequest("the client is closed")
        deadline = self._shared.tempo.monotonic() + self._shared.timeout
        batch = FutureBatch(self.outbox(topic), frames, count, deadline)
        self.submit(batch)
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
