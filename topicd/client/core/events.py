"""What happens to a client's connections, told to who asked and to the log (`topicd.client`). Promise: a shard that is
away is told once, and once that it is back, whatever number of operations notice; a callback that fails harms nobody.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from topicd.errors import ConnectionLost, TopicdError

log = logging.getLogger("topicd.client")


@dataclass(frozen=True, slots=True)
class Disconnected:
    """A shard does not answer any more; -1 is the daemon's front door."""

    shard: int
    error: ConnectionLost


@dataclass(frozen=True, slots=True)
class Reconnected:
    """The shard answers again, so many seconds later."""

    shard: int
    after: float


T = TypeVar("T")


class Events:
    def __init__(
        self,
        now: Callable[[], float],
        on_disconnect: Callable[[Disconnected], Any] | None = None,
        on_reconnect: Callable[[Reconnected], Any] | None = None,
    ) -> None:
        self._now = now
        self._on_disconnect = on_disconnect
        self._on_reconnect = on_reconnect
        self._away: dict[int, float] = {}  # shards, since when
        self._lock = threading.Lock()

    def lost(self, shard: int, error: TopicdError) -> None:
        """A connection broke, or cannot be made."""
        if not isinstance(error, ConnectionLost):
            return
        with self._lock:
            if shard in self._away:
                return
            self._away[shard] = self._now()
        log.warning("%s is away, trying again: %s", _name(shard), error.message)
        self._tell(self._on_disconnect, Disconnected(shard, error))

    def connected(self, shard: int) -> None:
        if not self._away:  # nearly always
            log.debug("connected to %s", _name(shard))
            return
        with self._lock:
            since = self._away.pop(shard, None)
        if since is not None:
            after = self._now() - since
            log.info("%s is back after %.1f s", _name(shard), after)
            self._tell(self._on_reconnect, Reconnected(shard, after))

    @staticmethod
    def _tell(call: Callable[[T], Any] | None, event: T) -> None:
        if call is None:
            return
        try:
            call(event)
        except Exception:
            log.exception("a callback for connections failed")


def _name(shard: int) -> str:
    return "the daemon" if shard < 0 else f"shard {shard}"
