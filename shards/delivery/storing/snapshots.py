"""Metadata snapshots of one shard: when they are due, what they hold, and what the WAL may forget after them.

Promise: the WAL is told to forget something only after it is in synced segments and in the snapshot before the newest
one, so that a corrupt newest one costs nothing; files that a snapshot makes superfluous go after it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from concurrent.futures import Executor
from typing import Any

from topicd.errors import TopicdError
from topicd.ipc.walstate import WalState, read_states
from topicd.shards.delivery.place import Place
from topicd.shards.delivery.removing.reclaim import Reclaimer
from topicd.shards.delivery.slices import in_slices, spread
from topicd.shards.delivery.storing.backlog import Backlog
from topicd.shards.delivery.storing.tiering import Tiering
from topicd.shards.delivery.storing.topic_state import entry_of
from topicd.shards.delivery.topic.catalog import Catalog
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.delivery.writing.direct import DirectWrites
from topicd.shards.delivery.writing.outlet import Outlet
from topicd.shards.delivery.writing.wal_sync import WalSync
from topicd.shards.storage.snapshot import SnapshotStore

log = logging.getLogger(__name__)

_CLAIMED_FILES = 16  # times wal_file_bytes: a start looks for so much that the log speaks of


class Snapshots:
    def __init__(
        self,
        place: Place,
        loop: asyncio.AbstractEventLoop,
        pool: Executor,
        outlets: list[Outlet],
        catalog: Catalog,
        backlog: Backlog,
        direct: DirectWrites,
        wal_sync: WalSync,
        reclaimer: Reclaimer,
        tiering: Tiering,
    ) -> None:
        self._place = place
        self._loop = loop
        self._pool = pool
        self._outlets = outlets
        self._catalog = catalog
        self._backlog = backlog
        self._direct = direct
        self._wal_sync = wal_sync
        self._reclaimer = reclaimer
        self._tiering = tiering
        self._store = SnapshotStore(place.fs, place.data.snapshots(place.index), place.run)
        self._marks: list[list[int]] = []  # ring positions that the newest two snapshots cover
        self._stored = [0] * len(outlets)  # ring positions below which everything is in segments
        self._taken_at = place.clock.monotonic()
        self.round: asyncio.Future[None] | None = None
        self.saved = 0
        self.failures = 0
        self._told = ""  # the failure that was logged last, until one is saved

    def note_stored(self, positions: list[int]) -> None:
        """Everything below these ring positions is in synced segments now."""
        self._stored = positions
        self.publish_absorbed()

    @property
    def failing(self) -> bool:
        """The newest attempt failed: until one succeeds the WAL forgets nothing."""
        return bool(self._told)

    @property
    def due(self) -> bool:
        if self.round is not None or self._backlog.held:
            return False
        if len(self._marks) < 2 or self._reclaimer.urgent or self._tiering.eager:
            return True
        # Two of them cover what is stored, or the WAL cannot forget it: also a quiet shard goes on until then.
        behind = self._backlog.metadata_changed or self._stored != self._marks[0]
        aged = self._place.clock.monotonic() - self._taken_at >= self._place.settings.snapshot_ms / 1000
        return behind and (aged or any(outlet.wal_waits for outlet in self._outlets))

    @property
    def wal_is_long(self) -> bool:
        """More than a file's worth of WAL waits for a snapshot to be forgotten."""
        if not self._marks or self.round is not None or self._backlog.held:
            return False
        limit = self._place.settings.wal_file_bytes
        if self._direct.stored_bytes >= _CLAIMED_FILES * limit:
            return True
        return any(stored - mark >= limit for stored, mark in zip(self._stored, self._marks[-1], strict=True))

    def start(self) -> None:
        if self.round is None and not self._backlog.held:
            self.round = asyncio.ensure_future(self.take(), loop=self._loop)

    async def take_two(self) -> None:
        """For a backup, which holds everything else: the log then reaches back no further than it has to."""
        for _ in range(2):
            while self.round is not None:
                await asyncio.wait([self.round])
            self.round = asyncio.ensure_future(self.take(), loop=self._loop)
            await asyncio.wait([self.round])
        self._publish_absorbed()

    async def take(self) -> None:
        place, run_in_thread = self._place, self._loop.run_in_executor
        marks = [outlet.settled_pos for outlet in self._outlets]
        # What changes from here on counts for the next one.
        self._backlog.metadata_changed = False
        self._direct.stored_bytes = 0
        self._taken_at = place.clock.monotonic()
        await spread(self._reclaimer.plan())
        await spread(self._tiering.plan())
        body = self._head()
        topics: list[bytes] = []
        await spread(self._add_topics(topics))
        siblings = [place.data.snapshots(index) for index in range(place.delivery_shards)]
        try:
            if not self.saved:
                # What recovery found may be in the page cache only; the WAL still has it until it is forgotten.
                await run_in_thread(self._pool, place.fs.sync_filesystem, place.data.topics)
            await self._wal_sync.wait()
            await run_in_thread(self._pool, self._store.save, body, siblings, topics)
            self.saved += 1
            self._told = ""
            self._marks = [*self._marks[-1:], marks]
            self.publish_absorbed()
            await self._reclaimer.run()
            self._tiering.run()
        except (OSError, TopicdError) as exc:
            self.failures += 1
            self._backlog.metadata_changed = True
            if str(exc) != self._told:
                self._told = str(exc) or repr(exc)
                log.error("snapshot failed", extra={"error": str(exc)})
        finally:
            self.round = None

    def publish_absorbed(self) -> None:
        """What the log may forget, unless a backup needs it."""
        if not self._backlog.held:
            self._publish_absorbed()

    def _publish_absorbed(self) -> None:
        """The snapshot before the newest one decides: the newest may turn out corrupt."""
        if len(self._marks) < 2:
            return
        for outlet, stored, mark in zip(self._outlets, self._stored, self._marks[0], strict=True):
            outlet.set_absorbed(min(stored, mark))

    def _wal_states(self) -> dict[int, WalState]:
        try:
            return read_states(self._place.instance, self._place.wal_shards)
        except (OSError, TopicdError):
            return {}  # the shared memory is gone: the daemon is on its way out

    def _head(self) -> dict[str, Any]:
        """Before any of the topics: one that is born while they are gathered is in the log behind the marks."""
        return {
            "run": self._place.run,
            "shard": self._place.index,
            "shards": self._place.delivery_shards,
            "settled_below": self._catalog.settled_below,
            # So far each log was durable: a start that finds less of it knows that something is missing.
            "wal": sorted((shard, state.synced_lsn) for shard, state in self._wal_states().items()),
        }

    def _add_topics(self, entries: list[bytes]) -> Iterator[None]:
        """Packed, in slices. Each as it is when its turn comes: the log behind the marks has what changed since, and
        replaying a change that an entry knows changes nothing."""
        by_id = self._catalog.by_id

        def add(topic: Topic) -> None:
            # One that is being deleted counts until its end is stored: that may fail yet.
            if topic.id in by_id:
                entries.append(entry_of(topic).packed())

        yield from in_slices(list(by_id.values()), add)
