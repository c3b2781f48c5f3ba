"""Damage that is met while the shard serves. Promise: each place is logged once and counted once, however often it is
read, and the list is bounded.
"""

from __future__ import annotations

import logging

from topicd.errors import StorageCorrupt
from topicd.shards.delivery.counters import Counters
from topicd.shards.storage.segment.info import SegmentDamage

log = logging.getLogger(__name__)

_PLACES_MAX = 10_000


class DamageLog:
    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._met: set[tuple[str, int, int]] = set()

    def met(self, topic: str, error: StorageCorrupt) -> None:
        """A reader could not be given what it asked for."""
        detail = error.detail
        place = (str(detail.get("segment")), int(detail.get("first_seq", 0)), int(detail.get("last_seq", 0)))
        self._note(place, f"topic {topic}: {error.message}")

    def sealed(self, damage: SegmentDamage) -> None:
        """Found when a segment was read once more to be sealed."""
        self._note((str(damage.path), damage.first_seq, damage.last_seq), str(damage))

    def _note(self, place: tuple[str, int, int], what: str) -> None:
        if place in self._met or len(self._met) >= _PLACES_MAX:
            return
        self._met.add(place)
        log.error("storage is damaged", extra={"damage": what})
        self._counters.damage.append(what)
