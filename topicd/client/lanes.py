"""Connections that threads borrow. Promise: a lane is used by one thread at a time, so its batch numbers
stay in order.

A lane is a connection to one shard together with a producer id of its own: threads that publish at the same
time never wait for each other, and each can repeat its own batch after a failure without storing it twice.
"""

from __future__ import annotations

import secrets
import threading

from topicd.client.connection import Connection
from topicd.errors import Throttled

NUMBERS_KEPT = 10_000


def new_producer_id() -> int:
    """Never 0, which means "no idempotency", and never one of the lasting ones."""
    return secrets.randbits(63) or 1


class Lane:
    __slots__ = ("connection", "numbers", "producer_id", "shard")

    def __init__(self, shard: int) -> None:
        self.shard = shard
        self.connection: Connection | None = None
        self.producer_id = new_producer_id()
        self.numbers: dict[int, int] = {}  # topic id -> number of the next batch

    def renew(self) -> None:
        """A new identity: after an outcome that stays unknown, the old numbers must never be used for other
        data."""
        self.producer_id = new_producer_id()
        self.numbers.clear()

    def move(self, shard: int) -> None:
        if shard != self.shard:
            self.close()
            self.shard = shard

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None


class Lanes:
    """Idle lanes by shard, the most recently used first; at most `limit` exist per shard."""

    def __init__(self, limit: int, patience: float) -> None:
        self._limit = limit
        self._patience = patience
        self._changed = threading.Condition()
        self._idle: dict[int, list[Lane]] = {}
        self._made: dict[int, int] = {}
        self._closed = False

    def take(self, shard: int) -> Lane:
        try:
            return self._idle[shard].pop()
        except (KeyError, IndexError):
            return self._make(shard)

    def _make(self, shard: int) -> Lane:
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
            return Lane(shard)

    def give(self, lane: Lane) -> None:
        if len(lane.numbers) > NUMBERS_KEPT:
            lane.renew()
        if self._closed:
            lane.close()
            return
        self._idle[lane.shard].append(lane)
        if self._made.get(lane.shard, 0) >= self._limit:
            with self._changed:
                self._changed.notify()

    def moved(self, lane: Lane, shard: int) -> None:
        """A lane in use goes on with another shard and keeps its identity."""
        with self._changed:
            self._made[lane.shard] -= 1
            self._made[shard] = self._made.get(shard, 0) + 1
            self._idle.setdefault(shard, [])
        lane.move(shard)

    def close_idle(self) -> None:
        for idle in list(self._idle.values()):
            for lane in list(idle):
                lane.close()

    def forked(self) -> None:
        for idle in self._idle.values():
            for lane in idle:
                if lane.connection is not None:
                    lane.connection.abandon()
        self._changed = threading.Condition()
        self._idle = {}
        self._made = {}

    def close(self) -> None:
        self._closed = True
        self.close_idle()
