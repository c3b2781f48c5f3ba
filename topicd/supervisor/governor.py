"""The pressure of the daemon: looked at every 100 ms while anybody feels it, and the steps that follow from it.

Promise: every step begins and ends by the table in ipc/pressure.py, is logged by its name when it does, and nobody
decides about one for itself. Nobody is woken for it while there is nothing to look at: the first shard that feels
pressure calls.
"""

from __future__ import annotations

import logging
from typing import Any

from topicd.ipc.pressure import GATHER, LADDER, LOOK_S, WIDEN, Board, Inputs, commit_us, gather_us, pressure_of

log = logging.getLogger(__name__)

CALM_S = 2.0  # without any pressure, and nobody looks any more
CALM = 0.02
_FALL = 0.5  # the share of a fall that one look follows; a rise is followed at once


class Ladder:
    """Which steps are in force. Told the pressure and the time, it says what changed."""

    def __init__(self) -> None:
        self.steps = 0
        self.times = [0] * len(LADDER)  # how often each has begun
        self._above_since: list[float | None] = [None] * len(LADDER)

    def holds(self, step: int) -> bool:
        return bool(self.steps >> step & 1)

    def climb(self, value: float, now: float) -> list[tuple[int, bool]]:
        """(step, whether it begins or ends), in the order of the table."""
        changed = []
        for number, step in enumerate(LADDER):
            if value > step.above:
                since = self._above_since[number]
                since = self._above_since[number] = now if since is None else since
                if not self.holds(number) and now - since >= step.sustained_s:
                    self.steps |= 1 << number
                    self.times[number] += 1
                    changed.append((number, True))
                continue
            self._above_since[number] = None
            if self.holds(number) and value < step.below:
                self.steps &= ~(1 << number)
                changed.append((number, False))
        return changed


class Governor:
    def __init__(self, shards: int) -> None:
        self._shards = shards
        self._board: Board | None = None
        self._ladder = Ladder()
        self._watching = False
        self._calm_since: float | None = None
        self._due = float("inf")
        self._value = 0.0
        self._forced: float | None = None

    def open(self, board: Board) -> None:
        self._board = board

    @property
    def next_at(self) -> float | None:
        """When to look again; None: when somebody calls."""
        return self._due if self._watching else None

    def call(self, now: float) -> None:
        """Somebody feels pressure."""
        if not self._watching:
            self._watching, self._due, self._calm_since = True, now, None

    def force(self, value: float | None, now: float) -> None:
        """For tests: this is the pressure, whatever the shards say; None: no more."""
        self._forced = value
        self.call(now)
        self._due = now
        self.look(now)

    def look(self, now: float) -> None:
        if self._board is None or not self._watching or now < self._due:
            return
        self._due = now + LOOK_S
        found = max((pressure_of(said) for said in self._said()), default=0.0)
        if self._forced is not None:
            self._value = self._forced
        else:
            self._value = max(found, self._value - (self._value - found) * _FALL)
        for number, begins in self._ladder.climb(self._value, now):
            self._tell(number, begins)
        self._watch_on(now)
        self._publish()

    def _watch_on(self, now: float) -> None:
        if self._value >= CALM or self._forced is not None or self._ladder.steps:
            self._calm_since = None
        elif self._calm_since is None:
            self._calm_since = now
        elif now - self._calm_since >= CALM_S:
            self._watching, self._value = False, 0.0

    def _publish(self) -> None:
        assert self._board is not None
        ladder, value = self._ladder, self._value
        gather = gather_us(value) if ladder.holds(GATHER) else 0
        commit = commit_us(value) if ladder.holds(WIDEN) else 0
        self._board.say(value, ladder.steps, gather, commit, watching=self._watching)

    def _tell(self, number: int, begins: bool) -> None:
        step = LADDER[number]
        facts = {"step": step.name, "pressure": round(self._value, 3)}
        if begins:
            log.warning("pressure: a step begins", extra={**facts, "effect": step.effect})
        else:
            log.warning("pressure: a step ends", extra=facts)

    def _said(self) -> list[Inputs]:
        board = self._board
        return [] if board is None else [board.said(shard) for shard in range(self._shards)]

    def status(self) -> dict[str, Any]:
        """For STATUS."""
        value, ladder, board = self._value, self._ladder, self._board
        return {
            "value": round(value, 4),
            "forced": self._forced is not None,
            "gather_ms": board.gather_us / 1_000 if board is not None else 0.0,
            "commit_window_ms": board.commit_us / 1_000 if board is not None else 0.0,
            "steps": [
                {
                    "name": step.name,
                    "active": ladder.holds(number),
                    "times": ladder.times[number],
                    "above": step.above,
                    "below": step.below,
                    "effect": step.effect,
                }
                for number, step in enumerate(LADDER)
            ],
            "shards": [
                {"name": f"dlv-{shard:02d}", "pressure": round(pressure_of(said), 4), **said._asdict()}
                for shard, said in enumerate(self._said())
            ],
        }
