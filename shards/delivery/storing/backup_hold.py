"""What a shard does for a backup of its files. Promise: while it holds, whatever a listing of the data directory shows
stays as it is or grows at its end; between freeze and cut nothing goes to the log; and whoever asked may vanish at any
moment: everything goes on by itself when its time is over.

    hold     memory to segments and snapshots; then nothing is removed, rewritten, moved or forgotten
    still    no channel's metadata changes; its files may be copied
    freeze   nothing more is placed in the rings, and what was placed is synced
    cut      how far each log reaches, read while every shard is frozen: one moment for all of them
    release  as before

Frozen shards make one moment of many: what a record in one shard has caused in another is in the cut with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from topicd.errors import Conflict, NotReady, StorageFailed, Throttled
from topicd.ipc.walstate import read_states
from topicd.shards.delivery.channels.files import ChannelFiles
from topicd.shards.delivery.place import Place
from topicd.shards.delivery.storing.backlog import Backlog
from topicd.shards.delivery.storing.rounds import Rounds
from topicd.shards.delivery.storing.snapshots import Snapshots
from topicd.shards.delivery.storing.tiering import Tiering
from topicd.shards.delivery.writing.direct import DirectWrites
from topicd.shards.delivery.writing.outlet import Outlet

log = logging.getLogger(__name__)

STILL_S = 10.0  # changes of channels wait for so long at most
FROZEN_S = 1.0  # and everything else
_DIRECT_S = 10.0  # until what goes past the log is stored
_POLL_S = 0.005
_LOOK_S = 0.5  # how often: is whoever makes the backup still there?


class BackupHold:
    def __init__(
        self,
        place: Place,
        loop: asyncio.AbstractEventLoop,
        outlets: list[Outlet],
        backlog: Backlog,
        direct: DirectWrites,
        rounds: Rounds,
        snapshots: Snapshots,
        files: ChannelFiles,
        tiering: Tiering,
    ) -> None:
        self._place = place
        self._loop = loop
        self._outlets = outlets
        self._backlog = backlog
        self._direct = direct
        self._rounds = rounds
        self._snapshots = snapshots
        self._files = files
        self._tiering = tiering
        self._owner = ""  # whose hold it is; empty: nobody's
        self._ready = False  # everything is as a backup needs it
        self._lease: asyncio.TimerHandle | None = None
        self._until = 0.0
        self._gone: Callable[[], bool] = lambda: False
        self._stillness: asyncio.TimerHandle | None = None
        self._frost: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.holds = 0
        self.lapsed = 0

    def page(self) -> dict[str, Any]:
        """For the stats page."""
        return {"backup_held": int(self._backlog.held), "backups_held": self.holds, "backups_lapsed": self.lapsed}

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def hold(self, owner: str, lease_ms: int, gone: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        """gone: has whoever asks left?"""
        if self._owner not in ("", owner):
            raise Throttled("another backup is being made", limit="backups", retry_after_ms=1_000)
        if not self._owner:
            self._owner = owner
            self._backlog.held = True
            self.holds += 1
            self._renew(lease_ms, gone)
            await self._settle(owner)
        self._check(owner)
        self._renew(lease_ms, gone)
        place = self._place
        return {
            "data_dir": str(place.data.root.absolute()),
            "run": place.run,
            "shard": place.index,
            "wal_shards": place.wal_shards,
            "delivery_shards": place.delivery_shards,
        }

    async def _settle(self, owner: str) -> None:
        """The log takes everything from now on; what goes past it is in segments before they are looked at."""
        try:
            await self._direct_writes_are_stored(owner)
            await self._rounds.settle()
            await self._tiering.settle()
            await self._snapshots.take_two()
            if self._snapshots.failing:
                raise StorageFailed("no snapshot can be stored, so there can be no backup")
        except BaseException:
            self._let_go()
            raise
        self._ready = self._owner == owner

    async def _direct_writes_are_stored(self, owner: str) -> None:
        deadline = self._loop.time() + _DIRECT_S
        while self._direct.bytes and self._owner == owner:
            if self._loop.time() > deadline:
                raise Throttled("large writes are under way", limit="backups", retry_after_ms=1_000)
            await asyncio.sleep(_POLL_S)

    async def still(self, owner: str) -> None:
        self._check(owner)
        if self._stillness is None:
            self._stillness = self._loop.call_later(STILL_S, self._move)
        await self._files.be_still()

    async def freeze(self, owner: str) -> None:
        self._check(owner)
        if self._stillness is None:
            raise Conflict("channels may have changed: the backup took too long")
        if self._frost is not None:
            return
        waiting = []
        for outlet in self._outlets:
            synced = self._loop.create_future()
            if outlet.when_synced(partial(_resolve, synced)):
                waiting.append(synced)
        for outlet in self._outlets:
            outlet.freeze()
        self._frost = self._loop.call_later(FROZEN_S, self.thaw)
        if waiting:
            await asyncio.wait(waiting, timeout=FROZEN_S)
        if self._frost is None or not all(outlet.everything_synced for outlet in self._outlets):
            self.thaw()
            raise NotReady("the log was not synced in time")

    def cut(self, owner: str) -> dict[str, Any]:
        self._check(owner)
        if self._frost is None or self._stillness is None:
            raise Conflict("everything went on before the cut: freeze again")
        try:
            states = read_states(self._place.instance, self._place.wal_shards)
        finally:
            self.thaw()
            self._move()
        if len(states) < self._place.wal_shards:
            raise NotReady("a WAL shard does not say how far its log reaches")
        return {"wal": [[shard, state.lsn] for shard, state in sorted(states.items())]}

    def thaw(self) -> None:
        if self._frost is not None:
            self._frost.cancel()
            self._frost = None
        for outlet in self._outlets:
            outlet.thaw()

    def release(self, owner: str) -> bool:
        """Was everything held all the time?"""
        if self._owner != owner:
            return False
        held = self._ready
        self._let_go()
        return held

    def close(self) -> None:
        """The shard is on its way out: nobody waits any longer."""
        self._let_go()

    # ---- inside ----

    def _check(self, owner: str) -> None:
        if self._owner != owner or not self._ready:
            raise Conflict("nothing is held for this backup; its time was over, or it was never begun")

    def _renew(self, lease_ms: int, gone: Callable[[], bool]) -> None:
        self._gone = gone
        self._until = self._loop.time() + lease_ms / 1000
        self._look()

    def _look(self) -> None:
        if self._lease is not None:
            self._lease.cancel()
        left = self._until - self._loop.time()
        if left <= 0 or self._gone():
            self._lapse()
        else:
            self._lease = self._loop.call_later(min(left, _LOOK_S), self._look)

    def _lapse(self) -> None:
        self.lapsed += 1
        log.warning("a backup was not heard of any more: it is over", extra={"hold": self._owner})
        self._let_go()

    def _move(self) -> None:
        if self._stillness is not None:
            self._stillness.cancel()
            self._stillness = None
        self._files.go_on()

    def _let_go(self) -> None:
        self._owner, self._ready = "", False
        if self._lease is not None:
            self._lease.cancel()
            self._lease = None
        self.thaw()
        self._move()
        if self._backlog.held:
            self._backlog.held = False
            self._rounds.release()


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
