"""Waiting until the WAL shards have everything on the disk. Segments and snapshots never run ahead of the WAL: a loss
of power would leave half a batch in the one, and in the other a producer's batch whose records are nowhere.
"""

from __future__ import annotations

import asyncio
from functools import partial

from topicd.shards.delivery.writing.outlet import Outlet

_PATIENCE_S = 2.0


class WalSync:
    def __init__(self, outlets: list[Outlet]) -> None:
        self._outlets = outlets
        self.draining = False  # the shard is on its way out
        self.wal_is_away = False  # a WAL shard has left, as far as draining found out

    async def wait(self) -> None:
        """Until everything placed so far is durable. On the way out, a WAL shard that has left is waited for once."""
        if not self.wal_is_away:
            self.wal_is_away = not await self._all_synced() and self.draining

    async def _all_synced(self) -> bool:
        """False: it took too long. At a stop the WAL shard may be away and not come back."""
        waiting: list[asyncio.Future[None]] = []
        for outlet in self._outlets:
            future = asyncio.get_running_loop().create_future()
            if outlet.when_synced(partial(_resolve, future), patient=True):
                waiting.append(future)
        if not waiting:
            return True
        _, late = await asyncio.wait(waiting, timeout=_PATIENCE_S)
        return not late


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
