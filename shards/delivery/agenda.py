"""What the turn under way still has to do: topics to serve, outlets to ring, connections to flush. Modules put work
here; turn.py does it. Promise: whatever is put here outside a turn starts one.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from topicd.clock import Clock
from topicd.shards.delivery.ready import Ready
from topicd.shards.delivery.sessions.peer import Peer
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.delivery.writing.outlet import Outlet


class Gathered:
    """What comes in one turn and goes to the log as one."""

    def close(self) -> None:
        """Nothing more comes."""
        raise NotImplementedError


class Agenda:
    def __init__(self, call_soon: Callable[[Callable[[], None]], object], clock: Clock) -> None:
        self._call_soon = call_soon
        self._scheduled = False
        self.run_turn: Callable[[], None] = lambda: None  # set by the turn
        self.ready = Ready(clock)
        self.to_ring: set[Outlet] = set()
        self.to_flush: set[Peer] = set()
        self.pushed: set[Peer] = set()  # to be flushed first
        self._gathered: list[Gathered] = []

    @property
    def empty(self) -> bool:
        return not (self.to_flush or self.pushed or len(self.ready))

    @property
    def scheduled(self) -> bool:
        return self._scheduled

    def start_turn(self) -> None:
        """Soon, if none is on its way."""
        if not self._scheduled:
            self._scheduled = True
            self._call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        self.run_turn()

    def moved(self, topic: Topic) -> None:
        """Outside a turn: something other than records has changed."""
        self.ready.add(topic)
        self.start_turn()

    @property
    def gathering(self) -> bool:
        """Is there something that goes to the log when the turn ends?"""
        return bool(self._gathered)

    def gather(self, what: Gathered) -> None:
        """It is closed when the turn ends."""
        self._gathered.append(what)
        self.start_turn()

    def close_gathered(self) -> None:
        while self._gathered:
            gathered, self._gathered = self._gathered, []
            for what in gathered:
                what.close()

    def ring(self, outlet: Outlet) -> None:
        self.to_ring.add(outlet)
        self.start_turn()

    def flush_later(self, peer: Peer) -> None:
        self.to_flush.add(peer)
        self.start_turn()

    def flush_first(self, peer: Peer) -> None:
        self.pushed.add(peer)
        self.start_turn()

    def ring_awaited(self) -> None:
        """The WAL shards that somebody waits for."""
        waits = [outlet for outlet in self.to_ring if not outlet.idle]
        for outlet in waits:
            outlet.flush()
            self.to_ring.discard(outlet)

    def ring_all(self) -> None:
        for outlet in self.to_ring:
            outlet.flush()
        self.to_ring.clear()

    def flush_all(self, *, give_way: bool = False) -> None:
        """Those that were pushed records come first: they wait for data, the others for a number. give_way: one that
        was woken by its record may have been put on this very core, and goes first."""
        if self.pushed:
            for peer in self.pushed:
                peer.flush()
            self.pushed.clear()
            if give_way:
                os.sched_yield()
        for peer in self.to_flush:
            peer.flush()
        self.to_flush.clear()
