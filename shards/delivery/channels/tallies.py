"""What the channels of a shard count. Each name is a key of its stats page and of topicd.metrics.DELIVERY. Saves are
counted by the threads that save, everything else by the shard's own."""

from __future__ import annotations

from bisect import bisect_left
from threading import Lock
from typing import Any

SAVE_BOUNDS_S = tuple(100e-6 * 2**i for i in range(16))  # upper bounds, as topicd.metrics has them


class Tallies:
    def __init__(self) -> None:
        self._lock = Lock()
        self.saves = 0
        self.save_failures = 0
        self.save_seconds = 0.0
        self.save_histogram = [0] * (len(SAVE_BOUNDS_S) + 1)
        self.deletes = 0
        self.delete_failures = 0
        self.loads = 0
        self.load_failures = 0
        self.strays = 0
        self.published = 0
        self.popped = 0
        self.active = 0
        self.members = 0
        self.connected = 0
        self.waiting = 0  # changes that wait for their turn

    def saved(self, well: bool, seconds: float) -> None:
        with self._lock:
            if well:
                self.saves += 1
            else:
                self.save_failures += 1
            self.save_seconds += seconds
            self.save_histogram[bisect_left(SAVE_BOUNDS_S, seconds)] += 1

    def page(self) -> dict[str, Any]:
        return {
            "channels": self.active,
            "channel_members": self.members,
            "channel_watches": self.connected,
            "channel_published": self.published,
            "channel_popped": self.popped,
            "channel_changes_waiting": self.waiting,
            "store_saves": self.saves,
            "store_save_failures": self.save_failures,
            "store_save_histogram": self.save_histogram,
            "store_save_seconds": round(self.save_seconds, 6),
            "store_deletes": self.deletes,
            "store_delete_failures": self.delete_failures,
            "store_loads": self.loads,
            "store_load_failures": self.load_failures,
            "channel_strays": self.strays,
        }
