"""Sorted ids for range-based reconciliation, kept between two rounds. Promise: made in small pieces, of what is stored
and behind the cutoff; one comparison sees one vector, as it was when that began or later.
"""

from __future__ import annotations

import asyncio
import time

from topicd.shards.chat.changes import Told
from topicd.shards.chat.digests import PIECE
from topicd.shards.chat.domains import BY_NAME
from topicd.shards.chat.negentropy import Vector
from topicd.shards.chat.store import Store

KEPT_S = 60.0  # of a vector while what it speaks of changes: one reconciliation takes less


class Vectors:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: dict[str, tuple[int, int, float, Vector]] = {}  # (version, cutoff, made at, vector)
        self._version = dict.fromkeys(BY_NAME, 0)

    async def get(self, domain: str, cutoff_ms: int, *, fresh: bool) -> Vector:
        kept = self._kept.get(domain)
        if kept is not None and kept[1] == cutoff_ms:
            unchanged = kept[0] == self._version[domain]
            if unchanged or (not fresh and time.monotonic() - kept[2] < KEPT_S):
                return kept[3]
        version = self._version[domain]
        rows: list[bytes] = []
        for number, (record, ms) in enumerate(BY_NAME[domain].ids(self._store, cutoff_ms)):
            rows.append(ms.to_bytes(8, "big") + record)
            if number % PIECE == PIECE - 1:
                await asyncio.sleep(0)
        rows.sort()
        vector = await Vector.of_rows_slowly(rows)
        self._kept[domain] = (version, cutoff_ms, time.monotonic(), vector)
        return vector

    def begin(self) -> None:
        """Another store begins to compare: what is not up to date is made anew when it is asked for."""
        current = self._version
        self._kept = {domain: kept for domain, kept in self._kept.items() if kept[0] == current[domain]}

    def forget(self) -> None:
        """The store is another one; what is being made of the old one is not up to date either."""
        self._kept = {}
        for domain in self._version:
            self._version[domain] += 1

    def written(self, told: Told) -> None:
        for domain, changes in told.records.items():
            self._version[domain] += len(changes)
