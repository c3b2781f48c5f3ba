"""Damage that is met while the shard serves. Promise: each place is logged once and counted once, however often it is
read, and the list is bounded.
"""

from __future__ import annotations

import logging

from topicd.errors import StorageCorrupt
from topicd.shards.delivery.counters import Counters
from topicd.shards.storage.ranges import Ranges
from topicd.shards.storage.segment.info import SegmentDamage

log = logging.getLogger(__name__)

_PLACES_MAX = 10_000


class DamageLog:
    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._met: dict[str, Ranges] = {}  # seqs by segment
        self._places = 0

    def met(self, topic: str, error: StorageCorrupt) -> None:
        """A reader could not be given what it asked for."""
        detail = error.detail
        first, last = int(detail.get("first_seq", 0)), int(detail.get("last_seq", 0))
        self._note(str(detail.get("segment")), first, last, f"topic {topic}: {error.message}")

    def sealed(self, damage: SegmentDamage) -> None:
        """Found when a segment was read once more to be sealed."""
        self._note(str(damage.path), damage.first_seq, damage.last_seq, str(damage))

    def _note(self, segment: str, first: int, last: int, what: str) -> None:
        """How much of a place is met depends on who reads how far: what touches a known one is the same one."""
        if self._places >= _PLACES_MAX:
            return
        known = self._met.setdefault(segment, Ranges())
        last = max(first, last)
        again = bool(known.within(first, last))
        known.add(first, last)
        if again:
            return
        self._places += 1
        log.error("storage is damaged", extra={"damage": what})
        self._counters.damage.append(what)
