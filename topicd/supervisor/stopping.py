"""The order of a stop: delivery shards finish first, then the WAL shards that they need. Stages are data.

Each stage is asked, then sent SIGTERM, then killed, at a share of stop_timeout_s counted from the
request, so that everything has ended within it.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Sequence
from typing import NamedTuple

from topicd.ipc.control import DELIVERY, WAL
from topicd.supervisor.child import Child

log = logging.getLogger(__name__)


class Stage(NamedTuple):
    kind: str
    term_at: float
    kill_at: float


STAGES = (Stage(DELIVERY, 0.45, 0.55), Stage(WAL, 0.80, 0.90))


class StopPlan:
    """step() moves it on; it never waits."""

    def __init__(self, children: Sequence[Child], timeout_s: float, now: float) -> None:
        self._children = children
        self._timeout_s = timeout_s
        self._since = now
        self._stage = 0
        self._asked: set[str] = set()
        self._signalled: dict[str, int] = {}
        self._hurried = False

    @property
    def done(self) -> bool:
        return self._stage == len(STAGES)

    def needs(self, kind: str) -> bool:
        """Do others still need children of that kind while we stop?"""
        return not self.done and kind not in {stage.kind for stage in STAGES[: self._stage + 1]}

    def hurry(self) -> None:
        """The operator does not want to wait: kill whoever is left. Nothing acknowledged is lost by that."""
        self._hurried = True

    def step(self, now: float) -> None:
        while not self.done:
            stage = STAGES[self._stage]
            left = [child for child in self._children if child.kind == stage.kind and child.running]
            for child in left:
                self._press(child, stage, now)
            if left:
                return
            for child in self._children:
                if child.kind == stage.kind:
                    child.abandon()
            self._stage += 1

    def next_at(self, now: float) -> float | None:
        """When step() has something to do even if nothing happens."""
        if self.done:
            return None
        stage = STAGES[self._stage]
        moments = (self._since + self._timeout_s * share for share in (stage.term_at, stage.kill_at))
        return next((moment for moment in moments if moment > now), None)

    def _press(self, child: Child, stage: Stage, now: float) -> None:
        if child.name not in self._asked:
            self._asked.add(child.name)
            child.send({"event": "stop"})
        waited = (now - self._since) / self._timeout_s
        if self._hurried or waited >= stage.kill_at:
            self._signal(child, signal.SIGKILL)
        elif waited >= stage.term_at:
            self._signal(child, signal.SIGTERM)

    def _signal(self, child: Child, number: signal.Signals) -> None:
        if self._signalled.get(child.name) == number:
            return
        self._signalled[child.name] = number
        log.warning("process does not stop, sending signal", extra={"child": child.name, "signal": number.name})
        child.kill(number)
