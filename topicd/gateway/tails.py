"""The ends of topics: one subscription per topic for all who wait there. Promise: whoever follows a tail from its
position on is told everything that comes behind it, in order, also across restarts of the shard; a tail that nobody
follows goes after a while.

A tail buffers nothing: who cannot take what is pushed reads it later.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Protocol

from topicd.client.aio.connection import AioConnection, open_connection
from topicd.errors import ConnectionLost, FormatError, TopicdError, TopicNotFound
from topicd.gateway.batches import TopicBatch
from topicd.gateway.shards import PATIENCE_S, Shards
from topicd.ipc.protocol.codec import answer_map, packed
from topicd.ipc.protocol.cutter import Arrived, Cutter
from topicd.ipc.protocol.following import Following, Wanted
from topicd.ipc.protocol.messages import Op, Unsubscribe
from topicd.ipc.protocol.retry import Backoff
from topicd.ipc.protocol.wire import ANSWER
from topicd.limits import MIB

log = logging.getLogger(__name__)

_SUBSCRIBED = int(Op.SUBSCRIBE) | ANSWER
_WINDOW = 4 * MIB  # credit of one tail
_TAILS_PER_LINK = 500  # subscriptions on one connection
_KEPT_S = 2.0  # without followers
_STALE_S = 0.01  # until the end of a topic that has a successor is heard of
_STALE_LOOKS = 100


class Follower(Protocol):
    def pushed(self, tail: Tail, batch: TopicBatch) -> None: ...

    def ended(self, tail: Tail) -> None:
        """The topic was deleted."""
        ...

    def failed(self, tail: Tail) -> None:
        """What was pushed could not be told, by a fault of ours: it must not look as if nothing had come."""
        ...


class Tail:
    def __init__(self, topic: str, link: _Link) -> None:
        self.topic = topic
        self.link = link
        self.following = Following(Wanted((topic,), None, ("latest", 0), None, ()), [topic], _WINDOW)
        self.topic_id = 0
        self.position = 0  # everything up to here was pushed, or was there before
        self.synced = 0  # everything up to here is known to be on the disk
        self.sub_id = 0
        self.over = False
        self.dropped = False  # nobody followed it: what comes is not heard of any more
        self.followers: dict[Follower, None] = {}

    def take(self, topic_id: int, position: int) -> None:
        self.topic_id, self.position = topic_id, position

    def push(self, batch: TopicBatch) -> None:
        self.position = max(self.position, batch.to_seq)
        for follower in list(self.followers):
            try:
                follower.pushed(self, batch)
            except Exception:
                log.exception("follower failed", extra={"topic": self.topic})
                self.followers.pop(follower, None)
                follower.failed(self)

    def end(self) -> None:
        self.over = True
        followers, self.followers = list(self.followers), {}
        for follower in followers:
            try:
                follower.ended(self)
            except Exception:
                log.exception("follower failed")


class Tails:
    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._tails: dict[str, Tail] = {}
        self._opening: dict[str, asyncio.Task[Tail]] = {}
        self._links: dict[int, list[_Link]] = {}
        self._idle: dict[Tail, float] = {}  # since when nobody follows it

    def __len__(self) -> int:
        return len(self._tails)

    async def follow(self, topic: str, follower: Follower, topic_id: int = 0) -> Tail:
        """TopicNotFound if there is no such topic. Everything behind the tail's position is told. topic_id: of that
        topic, or of a later one that has its name now."""
        tail = await self._tail(topic)
        for _ in range(_STALE_LOOKS):
            # Ids of topics that have the same name one after the other grow.
            if tail.topic_id >= topic_id:
                break
            await asyncio.sleep(_STALE_S)
            tail = await self._tail(topic)
        if tail.over:
            raise TopicNotFound(f"topic {topic} was deleted", topic=topic)
        tail.followers[follower] = None
        self._idle.pop(tail, None)
        return tail

    async def _tail(self, topic: str) -> Tail:
        tail = self._tails.get(topic)
        while tail is None or tail.over or tail.dropped:
            task = self._opening.get(topic)
            if task is None:
                task = self._opening[topic] = asyncio.get_running_loop().create_task(self._open(topic))
                task.add_done_callback(partial(self._opened, topic))
            tail = await asyncio.shield(task)
            if tail.over:
                break
        return tail

    def unfollow(self, tail: Tail, follower: Follower) -> None:
        tail.followers.pop(follower, None)
        if not tail.followers and not tail.over:
            self._idle[tail] = self._shards.shared.loop.time()

    def tick(self) -> None:
        """Once a second: tails that nobody needs go."""
        before = self._shards.shared.loop.time() - _KEPT_S
        for tail in [tail for tail, since in self._idle.items() if since < before]:
            del self._idle[tail]
            if not tail.followers:
                tail.dropped = True
                self._drop(tail)
                tail.link.unsubscribe(tail)

    def _opened(self, topic: str, task: asyncio.Task[Tail]) -> None:
        self._opening.pop(topic, None)
        if not task.cancelled():
            task.exception()

    async def _open(self, topic: str) -> Tail:
        shard = self._shards.shard_of(topic)
        links = self._links.setdefault(shard, [])
        link = next((link for link in links if len(link.tails) < _TAILS_PER_LINK), None)
        if link is None:
            link = _Link(self._shards, shard, self._ended)
            links.append(link)
        tail = Tail(topic, link)
        await link.subscribe(tail)
        self._tails[topic] = tail
        self._idle[tail] = self._shards.shared.loop.time()
        return tail

    def _drop(self, tail: Tail) -> None:
        self._idle.pop(tail, None)
        if self._tails.get(tail.topic) is tail:
            del self._tails[tail.topic]

    def _ended(self, tail: Tail) -> None:
        self._drop(tail)
        tail.end()

    def close(self) -> None:
        for links in self._links.values():
            for link in links:
                link.close()


class _Link:
    """One connection to a shard, full of subscriptions."""

    def __init__(self, shards: Shards, shard: int, ended: _Ended) -> None:
        self._shards = shards
        self._shard = shard
        self._ended = ended
        self.tails: dict[str, Tail] = {}
        self._by_id: dict[int, Tail] = {}
        self._connection: AioConnection | None = None
        self._connecting: asyncio.Task[AioConnection] | None = None
        self._reviving: asyncio.Task[None] | None = None
        self._closed = False

    async def subscribe(self, tail: Tail) -> None:
        self.tails[tail.topic] = tail
        try:
            async with asyncio.timeout(PATIENCE_S):
                connection = await self._connected()
                await connection.call(Op.SUBSCRIBE, packed(tail.following.request().to_wire()))
        except TimeoutError:
            self.tails.pop(tail.topic, None)
            raise ConnectionLost("a shard did not answer in time") from None
        except BaseException:
            self.tails.pop(tail.topic, None)
            raise

    def unsubscribe(self, tail: Tail) -> None:
        if self.tails.get(tail.topic) is tail:
            del self.tails[tail.topic]
        self._by_id.pop(tail.sub_id, None)
        if self._connection is not None:
            asked = self._connection.call(Op.UNSUBSCRIBE, packed(Unsubscribe(subscription=tail.sub_id).to_wire()))
            asked.add_done_callback(lambda future: future.cancelled() or future.exception())

    async def _connected(self) -> AioConnection:
        if self._connection is not None:
            return self._connection
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.get_running_loop().create_task(self._connect())
            self._connecting.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._connecting)

    async def _connect(self) -> AioConnection:
        connection = AioConnection(self._lost, lambda: None)
        connection.on_input = partial(self._input, connection)
        await open_connection(self._shards.shared, self._shard, connection, PATIENCE_S)
        self._connection = connection
        return connection

    # ---- what arrives ----

    def _input(self, connection: AioConnection, cutter: Cutter) -> None:
        while (arrived := cutter.take()) is not None:
            if arrived.op == Op.PUSH:
                self._pushed(connection, arrived)
            elif arrived.op == Op.NOTICE:
                self._noticed(arrived)
            else:
                if arrived.op == _SUBSCRIBED:
                    self._subscribed(arrived)
                if connection.expects(arrived.request_id):
                    connection.answered(arrived)

    def _subscribed(self, arrived: Arrived) -> None:
        answer = answer_map(arrived.body())
        topics = answer.get("topics")
        if not isinstance(topics, list) or len(topics) != 1:
            raise FormatError("a shard confirmed a subscription of several topics")
        entry = topics[0]
        tail = self.tails.get(str(entry.get("topic")))
        if tail is None:
            return
        if tail.topic_id and tail.topic_id != entry.get("topic_id"):
            # Deleted and made anew while we were away: who followed the old one has seen its end.
            self._end(tail)
            return
        tail.following.accepted(answer, arrived.request_id)
        self._by_id.pop(tail.sub_id, None)
        tail.sub_id = arrived.request_id
        self._by_id[tail.sub_id] = tail
        if not tail.topic_id:
            tail.take(int(entry["topic_id"]), int(entry["from_seq"]))

    def _pushed(self, connection: AioConnection, arrived: Arrived) -> None:
        tail = self._by_id.get(arrived.request_id)
        if tail is None:
            return
        pushed = tail.following.pushed(connection.cutter.fetched(arrived))
        if credit := tail.following.consumed(pushed.credit):
            connection.send(credit)
        tail.push(TopicBatch(tail.topic, tail.position, pushed.fetched))

    def _noticed(self, arrived: Arrived) -> None:
        tail = self._by_id.get(arrived.request_id)
        if tail is None:
            return
        error = tail.following.noticed(answer_map(arrived.body()))
        if isinstance(error, TopicNotFound):
            self._end(tail)
        elif error is not None:
            raise ConnectionLost(f"a subscription ended: {error.message}")

    def _end(self, tail: Tail) -> None:
        self.tails.pop(tail.topic, None)
        self._by_id.pop(tail.sub_id, None)
        self._ended(tail)

    # ---- restarts ----

    def _lost(self, connection: AioConnection, why: TopicdError) -> None:
        if connection is not self._connection:
            return
        self._connection = None
        self._by_id.clear()
        if self.tails and not self._closed and (self._reviving is None or self._reviving.done()):
            self._reviving = asyncio.get_running_loop().create_task(self._revive())

    async def _revive(self) -> None:
        backoff = Backoff(longest=0.25)
        while not self._closed:
            try:
                connection = await self._connected()
                for tail in list(self.tails.values()):
                    try:
                        await connection.call(Op.SUBSCRIBE, packed(tail.following.request().to_wire()))
                    except TopicNotFound:
                        self._end(tail)
                if connection is self._connection:
                    return
            except TopicdError:
                await asyncio.sleep(backoff.next())

    def close(self) -> None:
        self._closed = True
        if self._reviving is not None:
            self._reviving.cancel()
        if self._connection is not None:
            self._connection.abort(ConnectionLost("the gateway is closed"))


class _Ended(Protocol):
    def __call__(self, tail: Tail) -> None: ...
