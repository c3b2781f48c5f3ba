"""What the operations of a chat process work with. Promise: a stamp is given to an operation in the order in which it
goes into the log; what is read is what was applied.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from topicd.clock import Clock
from topicd.config import Settings
from topicd.shards.chat.changes import Told
from topicd.shards.chat.clocks import highest_stamp
from topicd.shards.chat.digests import Digests
from topicd.shards.chat.hlc import HybridClock
from topicd.shards.chat.live import Live
from topicd.shards.chat.live import Names as Shown
from topicd.shards.chat.log import OperationLog
from topicd.shards.chat.names import Names
from topicd.shards.chat.reconciling import Vectors
from topicd.shards.chat.store import RocksStore
from topicd.shards.chat.view import View
from topicd.shards.chat.writer import Writer

STORE_ID = 16


class Service:
    """`listening` is shared with the view: whose inbox rows somebody wants to hear of."""

    def __init__(self, settings: Settings, clock: Clock, store: RocksStore, oplog: OperationLog, where: Path) -> None:
        self.settings = settings
        self.wall = clock
        self.where = where
        self.store = store
        self.log = oplog
        self._listening: dict[bytes, object] = {}
        self.view = View(store, listening=self._listening)
        self.names = Names(self.view)
        self.live = Live(self.view, Shown(self.names.message, self.names.row))
        self.live.by_user = self._listening  # type: ignore[assignment]
        self.digests = Digests(store)
        self.digests.cut(self.view.cutoff_ms)
        self.vectors = Vectors(store)
        self.writer = Writer(oplog, self.view, clock, self._told)
        self.clock = HybridClock(clock.now_ms)
        self.id = os.urandom(STORE_ID)  # so that it does not compare itself with itself; a copy of it is another one
        self.checking = asyncio.Lock()  # one verify or rebuild at a time
        self.syncing = asyncio.Lock()  # one other store at a time
        self.counts = dict.fromkeys(
            ("sends", "duplicates", "reads", "signals", "synced_in", "synced_out", "sync_rounds", "sync_failures"), 0
        )

    def _told(self, told: Told) -> None:
        self.digests.written(told)
        self.digests.cut(self.view.cutoff_ms)
        self.vectors.written(told)
        self.live.written(told)

    def replace_store(self, other: Path) -> None:
        """A store that was made anew takes over. Nothing is applied meanwhile, and nobody scans the old one."""
        try:
            self.store.replace(other)
        except BaseException as exc:
            self.writer.failure = exc  # there is none now: the process begins anew
            raise
        self.view.reload()
        self.digests.forget()
        self.vectors.forget()

    async def see_clock(self) -> None:
        """After a start: no stamp may be below one that is stored."""
        self.clock.saw(await highest_stamp(self.store))
