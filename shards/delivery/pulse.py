"""The heartbeat in the middle of long work. Promise: a shard that is making progress shows it, whatever keeps its
timers from their turn."""

from __future__ import annotations

import time
from collections.abc import Callable

from topicd.child import HEARTBEAT_S


class Pulse:
    def __init__(self, publish: Callable[[], None]) -> None:
        self._publish = publish
        self._shown_at = time.monotonic()

    def publish(self) -> None:
        """Show the stats page now."""
        self._shown_at = time.monotonic()
        self._publish()

    def show(self) -> None:
        """For the body of a loop that may be long: publishes when the last time is too long ago."""
        if time.monotonic() - self._shown_at > 2 * HEARTBEAT_S:
            self.publish()
