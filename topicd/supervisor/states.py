"""Where the daemon and each child stand, and which moves exist. An illegal move raises; READY needs
SERVING.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Generic, TypeVar


class Phase(StrEnum):
    """The daemon as a whole."""

    STARTING = "starting"  # those that wait for nobody, the WAL shards, recover
    RECOVERING = "recovering"  # the WAL is complete, the others rebuild
    SERVING = "serving"
    DEGRADED = "degraded"  # was serving; a child is down or coming back
    STOPPING = "stopping"
    STOPPED = "stopped"


class ChildState(StrEnum):
    BACKOFF = "backoff"  # not running, will be started
    STARTING = "starting"
    RECOVERING = "recovering"
    SERVING = "serving"
    EXITED = "exited"  # not running, will not be started


PHASES: Mapping[Phase, frozenset[Phase]] = {
    Phase.STARTING: frozenset({Phase.RECOVERING, Phase.STOPPING}),
    Phase.RECOVERING: frozenset({Phase.STARTING, Phase.SERVING, Phase.STOPPING}),
    Phase.SERVING: frozenset({Phase.DEGRADED, Phase.STOPPING}),
    Phase.DEGRADED: frozenset({Phase.SERVING, Phase.STOPPING}),
    Phase.STOPPING: frozenset({Phase.STOPPED}),
    Phase.STOPPED: frozenset(),
}

_GONE = frozenset({ChildState.BACKOFF, ChildState.EXITED})
CHILD_STATES: Mapping[ChildState, frozenset[ChildState]] = {
    ChildState.BACKOFF: frozenset({ChildState.STARTING, ChildState.EXITED}),
    ChildState.STARTING: frozenset({ChildState.RECOVERING, ChildState.SERVING}) | _GONE,
    ChildState.RECOVERING: frozenset({ChildState.SERVING}) | _GONE,
    ChildState.SERVING: _GONE,
    ChildState.EXITED: frozenset(),
}
RUNNING = frozenset({ChildState.STARTING, ChildState.RECOVERING, ChildState.SERVING})

S = TypeVar("S", bound=StrEnum)


class IllegalMove(Exception):
    """A bug: somebody asked for a move that the table does not have."""


class Machine(Generic[S]):
    def __init__(self, table: Mapping[S, frozenset[S]], start: S) -> None:
        self._table = table
        self.now = start

    def move(self, to: S) -> bool:
        """True if the state changed; staying where one is, is no move."""
        if to is self.now:
            return False
        if to not in self._table[self.now]:
            raise IllegalMove(f"{self.now} cannot become {to}")
        self.now = to
        return True
