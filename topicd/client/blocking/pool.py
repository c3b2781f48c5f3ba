"""Connections that threads borrow. Promise: one is used by one thread at a time, so its batch numbers stay in order.

Each has a producer id of its own: threads that publish at the same time never wait for each other, and each can repeat
its own batch after a failure without storing it twice.
"""

from __future__ import annotations

import threading

from topicd.client.blocking.connection import Connection
from topicd.errors import Throttled
from topicd.ipc.protocol.once import Numbers


class PooledConnection:
    """A place for a connection to one shard, with the numbers of what is published over it. The connection comes and
    goes, the numbers stay."""

    __slots__ = ("connection", "numbers", "shard")

    def __init__(self, shard: int) -> None:
        self.shard = shard
        self.connection: Connection | None = None
        self.numbers = Numbers()

    def move(self, shard: int) -> None:
        if shard != self.shard:
            self.close()
            self.shard = shard

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None


class Pool:
    """Idle connections by shard, the most recently used first; at most `limit` exist per shard."""

    def __init__(self, limit: int, patience: float) -> None:
        self._limit = limit
        self._patience = patience
        self._changed = threading.Condition()
        self._idle: dict[int, list[PooledConnection]] = {}
        self._made: dict[int, int] = {}
        self._closed = False

    def take(self, shard: int) -> PooledConnection:
        try:
            return self._idle[shard].pop()
        except (KeyError, IndexError):
            return self._make(shard)

    def _make(self, shard: int) -> PooledConnection:
        with self._changed:
            idle = self._idle.setdefault(shard, [])
            while not idle and self._made.get(shard, 0) >= self._limit:
                if not self._changed.wait(self._patience):
                    raise Throttled(
                        f"all {self._limit} connections to shard {shard} are in use", limit="max_connections"
                    )
            if idle:
                return idle.pop()
            self._made[shard] = self._made.get(shard, 0) + 1
            return PooledConnection(shard)

    def give(self, pooled: PooledConnection) -> None:
        if pooled.numbers.crowded:
            pooled.numbers.renew()
        if self._closed:
            pooled.close()
            return
        self._idle[pooled.shard].append(pooled)
        if self._made.get(pooled.shard, 0) >= self._limit:
            with self._changed:
                self._changed.notify()

    def moved(self, pooled: PooledConnection, shard: int) -> None:
        """One that is in use goes on with another shard and keeps its numbers."""
        with self._changed:
            self._made[pooled.shard] -= 1
            self._made[shard] = self._made.get(shard, 0) + 1
            self._idle.setdefault(shard, [])
        pooled.move(shard)

    def close_idle(self) -> None:
        for idle in list(self._idle.values()):
            for pooled in list(idle):
                pooled.close()

    def forked(self) -> None:
        for idle in self._idle.values():
            for pooled in idle:
                if pooled.connection is not None:
                    pooled.connection.abandon()
        self._changed = threading.Condition()
        self._idle = {}
        self._made = {}

    def close(self) -> None:
        self._closed = True
        self.close_idle()
