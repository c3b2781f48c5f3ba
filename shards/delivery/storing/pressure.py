"""When memory fills faster than the disk empties it: first writers wait, then they are refused. Promise: no writer
waits for a disk that refuses checkpoints; it is told so.
"""

from __future__ import annotations

from collections.abc import Callable

from topicd.shards.delivery.place import Place
from topicd.shards.delivery.sessions.peer import Peer
from topicd.shards.delivery.storing.backlog import Backlog

_BEHIND = 4  # times checkpoint_bytes in memory: writers wait
_FULL = 8  # times checkpoint_bytes in memory: writers are refused


class Pressure:
    def __init__(self, place: Place, backlog: Backlog, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._place = place
        self._backlog = backlog
        self._call_soon = call_soon
        self._waiting: set[Peer] = set()
        self.failing = 0  # errno of the last checkpoint; 0: it went well

    @property
    def behind(self) -> bool:
        """More is in memory than the disk keeps up with."""
        return self._backlog.tail_bytes > _BEHIND * self._place.settings.checkpoint_bytes

    @property
    def holds_writers(self) -> bool:
        return self.behind and not self.failing

    @property
    def full(self) -> bool:
        return self._backlog.tail_bytes > _FULL * self._place.settings.checkpoint_bytes

    @property
    def occupied(self) -> float:
        """The share of what memory may hold for checkpoints; at 1 writers are refused."""
        return self._backlog.tail_bytes / (_FULL * self._place.settings.checkpoint_bytes)

    def hold(self, writer: Peer) -> None:
        self._waiting.add(writer)

    def forget(self, writer: Peer) -> None:
        self._waiting.discard(writer)

    def wake_writers(self) -> None:
        if not self.holds_writers:
            waiting, self._waiting = self._waiting, set()
            for writer in waiting:
                self._call_soon(writer.go_on)
