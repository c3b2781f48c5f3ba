"""What a delivery shard counts. Each name is a key of its stats page and of topicd.metrics.DELIVERY."""

from __future__ import annotations

_TOLD = 4  # damaged places that status names; fsck names all
_TOLD_CHARS = 240


class Counters:
    def __init__(self) -> None:
        self.appends = 0
        self.records = 0
        self.forwarded = 0
        self.evicted = 0
        self.deleted = 0
        self.compacted = 0
        self.compacted_segments = 0
        self.lagged = 0
        self.tombstones = 0
        self.throttled = 0
        self.loop_lag_ms = 0.0
        self.bytes_taken = 0  # not on the page: tells a quiet second from a busy one
        self.damage: list[str] = []  # places that cannot be read

    def page(self) -> dict[str, float]:
        return {
            "appends": self.appends,
            "records": self.records,
            "forwarded": self.forwarded,
            "evicted": self.evicted,
            "deleted": self.deleted,
            "compacted": self.compacted,
            "compacted_segments": self.compacted_segments,
            "lagged": self.lagged,
            "tombstones": self.tombstones,
            "throttled": self.throttled,
            "loop_lag_ms": self.loop_lag_ms,
            "damage": len(self.damage),
        }

    def told(self) -> list[str]:
        """The first damaged places, for people; what a page has room for."""
        return [what[:_TOLD_CHARS] for what in self.damage[:_TOLD]]
