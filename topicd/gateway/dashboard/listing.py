"""Topics in another order than that of their names. Promise: all of them are looked at only when somebody asks for such
an order, and so seldom that it costs about SHARE of a core; what is told says how old it is.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, NamedTuple

from topicd.gateway.shards import Shards
from topicd.ipc.protocol.messages import ListTopics
from topicd.limits import LIST_PAGE_MAX

SHARE = 0.005
FRESH_S = 3.0
FORGOTTEN_S = 120.0
TOPICS_MAX = 200_000  # looked at in all


class Row(NamedTuple):
    topic: str
    type: str
    durability: str
    head_seq: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here
    bytes: int
    lag: int
    consumers: int
    effective_priority: int
    last_write_ts: int


NAMES = Row._fields
SORTS = ("head_seq", "count", "bytes", "lag", "effective_priority", "last_write_ts")


def row_of(found: dict[str, Any]) -> Row:
    return Row(*(found[name] for name in NAMES))


class Listing:
    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._rows: list[Row] = []
        self._sorted: dict[str, list[Row]] = {}
        self._seen_at = float("-inf")
        self._good_for = 0.0
        self._lock = asyncio.Lock()
        self._forget: asyncio.TimerHandle | None = None

    async def sorted_by(self, sort: str) -> tuple[list[Row], float]:
        """Largest first, and how many seconds ago that was so."""
        async with self._lock:
            if time.monotonic() - self._seen_at > self._good_for:
                await self._look()
        found = self._sorted.get(sort)
        if found is None:
            at = NAMES.index(sort)
            found = self._sorted[sort] = sorted(self._rows, key=lambda row: int(row[at]), reverse=True)
        return found, time.monotonic() - self._seen_at

    async def _look(self) -> None:
        began = time.perf_counter()
        pages = await asyncio.gather(*(self._of_shard(shard) for shard in range(self._shards.count)))
        self._rows = [row for page in pages for row in page]
        self._sorted.clear()
        took = time.perf_counter() - began
        self._seen_at, self._good_for = time.monotonic(), max(FRESH_S, took / SHARE)
        loop = asyncio.get_running_loop()
        if self._forget is not None:
            self._forget.cancel()
        self._forget = loop.call_later(max(FORGOTTEN_S, 2 * self._good_for), self._clear)

    async def _of_shard(self, shard: int) -> list[Row]:
        found: list[Row] = []
        after: str | None = None
        while len(found) < TOPICS_MAX:
            page = await self._shards.ask_shard(shard, ListTopics(after=after, limit=LIST_PAGE_MAX))
            found += map(row_of, page["topics"])
            after = page["next"]
            if after is None:
                break
        return found

    def _clear(self) -> None:
        self._rows, self._seen_at = [], float("-inf")
        self._sorted.clear()
