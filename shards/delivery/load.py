"""What this shard says for the pressure of the daemon. Promise: while anything happens it is looked at every 50 ms, and
said on the board and on the stats page; while nothing does, nobody is woken for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from topicd.ipc.pressure import Board, Inputs, pressure_of
from topicd.shards.delivery.place import Place
from topicd.shards.delivery.ready import Ready
from topicd.shards.delivery.sessions.fairness import Fairness
from topicd.shards.delivery.storing.pressure import Pressure
from topicd.shards.delivery.writing.outlet import Outlet

BEAT_S = 0.05
_SMOOTHED = 0.3  # the share that one look has in a smoothed figure
_FELT = 0.1  # pressure from which on the supervisor shall look
_QUIET_BEATS = 20  # without a turn, and nobody looks any more
_OWN = 0.5  # of a core: a loop that is late without having used so much waits for others' processes, not for itself
_STALLED_S = 0.25  # a WAL shard may take so long for anything: it has a disk, and others' processes beside it
_CALM = 0.02  # pressure that nobody has to look at
_GONE_MS = 0.05  # a smoothed latency below this is none


class Load:
    def __init__(
        self,
        place: Place,
        board: Board,
        loop: asyncio.AbstractEventLoop,
        ready: Ready,
        outlets: list[Outlet],
        pressure: Pressure,
        fairness: Fairness,
        business: Callable[[], float],
        call_supervisor: Callable[[], None],
    ) -> None:
        self._place = place
        self._board = board
        self._loop = loop
        self._ready = ready
        self._outlets = outlets
        self._pressure = pressure
        self._fairness = fairness
        self._business = business
        self._call_supervisor = call_supervisor
        self._turns = 0
        self._turns_seen = 0
        self._quiet = 0
        self._awake = False
        self._due = 0.0
        self._cpu = 0.0  # of this thread, at the last look
        self._latency_ms = 0.0
        self._ring = 0.0
        self._pool = 0.0
        self._paused = 0.0
        self._paused_s = 0.0  # in all, at the last look
        self.said = Inputs()
        self.on_beat: list[Callable[[], None]] = []  # what else is looked at so often, while anything happens
        board.report(place.index, self.said)

    def stir(self) -> None:
        """A turn: something happens."""
        self._turns += 1
        if not self._awake:
            self._awake = True
            self._quiet = 0
            self._cpu = time.thread_time()
            self._set_out()

    def page(self) -> dict[str, float]:
        """For the stats page."""
        said = self.said
        return {
            "pressure": round(pressure_of(said), 4),
            "ready_depth": said.depth,
            "parked_topics": len(self._ready.parked),
            "scheduling_ms": round(said.latency_ms, 3),
            "pool_busy": round(said.pool, 4),
            "ring_occupied": round(said.ring, 4),
            "backlog_occupied": round(said.backlog, 4),
            "floods_paused": round(said.paused, 4),
        }

    # ---- looking ----

    def _set_out(self) -> None:
        self._due = time.monotonic() + BEAT_S
        self._loop.call_later(BEAT_S, self._beat)

    def _beat(self) -> None:
        now = time.monotonic()
        worked, self._turns_seen = self._turns != self._turns_seen, self._turns
        cpu = time.thread_time()
        busy_s, self._cpu = cpu - self._cpu, cpu
        own = busy_s >= _OWN * (now - self._due + BEAT_S)
        self._look_at_floods(now)
        self._look(max(0.0, now - self._due) if own else 0.0, now)
        for look in self.on_beat:
            look()
        busy = worked or pressure_of(self.said) > _CALM or bool(self._ready.parked)
        self._quiet = 0 if busy or self._board.steps else self._quiet + 1
        if self._quiet < _QUIET_BEATS:
            self._set_out()
        else:
            self._awake = False

    def _look_at_floods(self, now: float) -> None:
        paused_s = self._fairness.paused_s
        share = (paused_s - self._paused_s) / (now - self._due + BEAT_S)
        self._paused, self._paused_s = _smoothed(self._paused, min(1.0, share)), paused_s

    def _look(self, late_s: float, now: float) -> None:
        ready = self._ready
        stalled_s = max([outlet.stalled_s(now) for outlet in self._outlets], default=0.0) - _STALLED_S
        waited_s = max(late_s, ready.worst_wait_s, ready.oldest_wait_s(), stalled_s)
        ready.worst_wait_s = 0.0
        self._latency_ms += _SMOOTHED * (waited_s * 1_000 - self._latency_ms)
        if self._latency_ms < _GONE_MS:
            self._latency_ms = 0.0
        occupied = max([outlet.occupied for outlet in self._outlets], default=0.0)
        self._ring = _smoothed(self._ring, occupied)
        self._pool = _smoothed(self._pool, self._business())
        in_flight = sum([outlet.in_flight_bytes for outlet in self._outlets])
        backlog = max(in_flight / self._place.settings.max_inflight_bytes, self._pressure.occupied)
        self.said = Inputs(len(ready), self._latency_ms, self._pool, self._ring, min(1.0, backlog), self._paused)
        self._board.report(self._place.index, self.said)
        if pressure_of(self.said) > _FELT and not self._board.watching:
            self._call_supervisor()


def _smoothed(before: float, now: float) -> float:
    found = before + _SMOOTHED * (now - before)
    return found if found > 0.001 else 0.0
