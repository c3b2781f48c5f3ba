"""Jobs that are pushed. Promise: whoever works gets what the shard hands to it, in order; when it leaves, exactly what
it holds is given back at once, also if this process dies (the shard sees the connection end).

Many workers share a connection to a shard. What a worker left undone counts as a delivery, so that a job that ends its
workers goes to the dead letters some day; for that it is known here what each holds, as far as it can be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Protocol

from topicd.client.aio.connection import AioConnection, open_connection
from topicd.errors import ConnectionLost, TopicdError, TopicNotFound
from topicd.gateway.jobs import Claimed
from topicd.gateway.shards import PATIENCE_S, Shards
from topicd.ipc.protocol.codec import answer_map, packed
from topicd.ipc.protocol.cutter import Arrived, Cutter
from topicd.ipc.protocol.messages import Nack, Op, StopWork, Work
from topicd.limits import CLAIM_MAX

_PER_LINK = 200


class Worker(Protocol):
    def handed(self, claimed: Claimed) -> None: ...

    def lost(self, why: TopicdError) -> None:
        """Nothing more comes, and what it held is not its own any more."""
        ...


class Held:
    """Jobs that were handed to a worker, and are not known to be finished."""

    def __init__(self, topic: str, node: str, most: int) -> None:
        self.topic = topic
        self.node = node
        self._most = 4 * most + CLAIM_MAX
        self._leases: dict[int, int] = {}

    def add(self, claimed: Claimed) -> None:
        for job in claimed.jobs:
            self._leases.pop(job.seq, None)
            self._leases[job.seq] = job.lease
        while len(self._leases) > self._most:
            # Finished by other means than through here: no more than so many can be held.
            del self._leases[next(iter(self._leases))]

    def settled(self, seqs: Iterable[int]) -> None:
        for seq in seqs:
            self._leases.pop(seq, None)

    def requests(self) -> list[Nack]:
        """That give them back."""
        pairs = list(self._leases.items())
        self._leases.clear()
        pieces = [pairs[at : at + CLAIM_MAX] for at in range(0, len(pairs), CLAIM_MAX)]
        return [
            Nack(
                topic=self.topic,
                seqs=tuple(seq for seq, _ in piece),
                leases=tuple(lease for _, lease in piece),
                node=self.node,
                kind="fail",
                delay_ms=0,
                reason="the worker's connection ended",
            )
            for piece in pieces
        ]


class Link:
    """One connection to a shard, full of workers."""

    def __init__(self, shard: int) -> None:
        self.shard = shard
        self.workers: dict[int, Worker] = {}
        self.connection: AioConnection | None = None
        self.opening: asyncio.Task[AioConnection] | None = None
        self.booked = 0  # places that are taken, by workers that are there or about to be

    def take_input(self, connection: AioConnection, cutter: Cutter) -> None:
        while (arrived := cutter.take()) is not None:
            if arrived.op == Op.JOBS:
                worker = self.workers.get(arrived.request_id)
                if worker is not None:
                    worker.handed(Claimed(arrived.body()))
            elif arrived.op == Op.NOTICE:
                self._noticed(arrived)
            elif connection.expects(arrived.request_id):
                connection.answered(arrived)

    def _noticed(self, arrived: Arrived) -> None:
        worker = self.workers.pop(arrived.request_id, None)
        if worker is not None:
            topic = str(answer_map(arrived.body()).get("topic"))
            worker.lost(TopicNotFound(f"topic {topic} was deleted", topic=topic))

    def lost(self, connection: AioConnection, why: TopicdError) -> None:
        if connection is self.connection:
            self.connection = None
            workers, self.workers = list(self.workers.values()), {}
            for worker in workers:
                worker.lost(why)


class Workers:
    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._links: list[Link] = []
        self._held: dict[str, set[Held]] = {}

    def settled(self, topic: str, seqs: Iterable[int]) -> None:
        """These jobs were finished or given back."""
        for held in self._held.get(topic, ()):
            held.settled(seqs)

    def keep(self, held: Held) -> None:
        self._held.setdefault(held.topic, set()).add(held)

    def drop(self, held: Held) -> None:
        found = self._held.get(held.topic, set())
        found.discard(held)
        if not found:
            self._held.pop(held.topic, None)

    async def begin(self, want: Work, worker: Worker) -> Employment:
        """From now on jobs come. NotAQueue, TopicNotFound, or what else refuses it."""
        link = self._link(self._shards.shard_of(want.topic))
        link.booked += 1
        try:
            async with asyncio.timeout(PATIENCE_S):
                connection = await self._connected(link)
                asked = connection.call(Op.WORK, packed(want.to_wire()))
                number = connection.last_id
                link.workers[number] = worker
                try:
                    await asked
                except BaseException:
                    link.workers.pop(number, None)
                    raise
        except TimeoutError:
            link.booked -= 1
            raise ConnectionLost("a shard did not answer in time") from None
        except BaseException:
            link.booked -= 1
            raise
        return Employment(self, link, connection, number)

    def leave(self, link: Link) -> None:
        link.booked -= 1
        if not link.booked and link in self._links:
            self._links.remove(link)
            if link.connection is not None:
                link.connection.abort(ConnectionLost("nobody works here"))

    def close(self) -> None:
        for link in self._links:
            if link.connection is not None:
                link.connection.abort(ConnectionLost("the gateway is closed"))

    def _link(self, shard: int) -> Link:
        for link in self._links:
            if link.shard == shard and link.booked < _PER_LINK:
                return link
        link = Link(shard)
        self._links.append(link)
        return link

    async def _connected(self, link: Link) -> AioConnection:
        if link.connection is not None:
            return link.connection
        if link.opening is None or link.opening.done():
            link.opening = asyncio.get_running_loop().create_task(self._open(link))
            link.opening.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(link.opening)

    async def _open(self, link: Link) -> AioConnection:
        connection = AioConnection(link.lost, lambda: None)
        connection.on_input = partial(link.take_input, connection)
        await open_connection(self._shards.shared, link.shard, connection, PATIENCE_S)
        link.connection = connection
        return connection


class Employment:
    """A worker that has begun."""

    def __init__(self, workers: Workers, link: Link, connection: AioConnection, number: int) -> None:
        self._workers = workers
        self._link = link
        self._connection = connection
        self._number = number
        self._over = False

    def end(self, held: Held) -> None:
        """Give back at once what it holds. May be called twice."""
        if self._over:
            return
        self._over = True
        if self._link.workers.pop(self._number, None) is None or self._connection.closed:
            self._workers.leave(self._link)
            return
        task = asyncio.get_running_loop().create_task(self._give_back(held))
        task.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _give_back(self, held: Held) -> None:
        connection = self._connection
        try:
            async with asyncio.timeout(PATIENCE_S):
                for request in held.requests():
                    with suppress(TopicdError):
                        await connection.call(Op.NACK, packed(request.to_wire()))
                await connection.call(Op.STOP_WORK, packed(StopWork(work=self._number, release=True).to_wire()))
        except TimeoutError:
            # It must not go on handing out to nobody: the end of the connection tells the shard.
            connection.abort(ConnectionLost("a shard did not answer in time"))
        finally:
            self._workers.leave(self._link)
