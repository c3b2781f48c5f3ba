"""The order of a stop: stage by stage, as the table of kinds says; those that others need go last.

Each stage is asked, then sent SIGTERM, then killed, at a share of stop_timeout_s counted from the
request, so that everything has ended within it.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Sequence

from topicd.supervisor.child import Child
from topicd.supervisor.kinds import Kind, Stage

log = logging.getLogger(__name__)


class StopPlan:
    """step() moves it on; it never waits."""

    def __init__(self, children: Sequence[Child], timeout_s: float, now: float) -> None:
        self._children = children
        self._timeout_s = timeout_s
        self._since = now
        self._stages = sorted({child.kind.stops for child in children})
        self._stage = 0
        self._asked: set[str] = set()
        self._signalled: dict[str, int] = {}
        self._hurried = False

    @property
    def done(self) -> bool:
        return self._stage == len(self._stages)

    def needs(self, kind: Kind) -> bool:
        """Do others still need children of that kind while we stop?"""
        return kind.stops in self._stages[self._stage + 1 :]

    def hurry(self) -> None:
        """The operator does not want to wait: kill whoever is left. Nothing acknowledged is lost by that."""
        self._hurried = True

    def step(self, now: float) -> None:
        while not self.done:
            stage = self._stages[self._stage]
            left = [child for child in self._children if child.kind.stops == stage and child.running]
            for child in left:
                self._press(child, stage, now)
            if left:
                return
            for child in self._children:
                if child.kind.stops == stage:
                    child.abandon()
            self._stage += 1

    def next_at(self, now: float) -> float | None:
        """When step() has something to do even if nothing happens."""
        if self.done:
            return None
        stage = self._stages[self._stage]
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
