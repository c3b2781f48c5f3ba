"""Metadata snapshots of one shard: when they are due, what they hold, and what the WAL may forget after them.

Promise: the WAL is told to forget something only after it is in synced segments and in the snapshot before the newest
one, so that a corrupt newest one costs nothing; files that a snapshot makes superfluous go after it.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from topicd.errors import TopicdError
from topicd.shards.delivery.removing.reclaim import Reclaimer
from topicd.shards.storage.snapshot import SnapshotStore

if TYPE_CHECKING:
    from topicd.shards.delivery.actor import Actor
    from topicd.shards.delivery.topic.topic import Topic

log = logging.getLogger(__name__)

_CLAIMED_FILES = 16  # times wal_file_bytes: a start looks for so much that the log speaks of


class Snapshots:
    def __init__(self, actor: Actor, pool: ThreadPoolExecutor, reclaimer: Reclaimer) -> None:
        self._actor = actor
        self._pool = pool
        self._reclaimer = reclaimer
        self._store = SnapshotStore(actor.fs, actor.data.snapshots(actor.index), actor.shard.boot.run)
        self._marks: list[list[int]] = []  # ring positions that the newest two snapshots cover
        self._stored = [0] * len(actor.outlets)  # ring positions below which everything is in segments
        self._taken_at = actor.clock.monotonic()
        self.round: asyncio.Future[None] | None = None
        self.dirty = False  # metadata changed since the newest one
        self.saved = 0
        self.failures = 0
        self._told = ""  # the failure that was logged last, until one is saved

    def note_stored(self, positions: list[int]) -> None:
        """Everything below these ring positions is in synced segments now."""
        self._stored = positions
        self._publish_absorbed()

    @property
    def due(self) -> bool:
        if self.round is not None:
            return False
        if len(self._marks) < 2 or self._reclaimer.urgent:
            return True
        # Two of them cover what is stored, or the WAL cannot forget it: also a quiet shard goes on until then.
        behind = self.dirty or self._stored != self._marks[0]
        aged = self._actor.clock.monotonic() - self._taken_at >= self._actor.settings.snapshot_ms / 1000
        return behind and (aged or any(outlet.wal_waits for outlet in self._actor.outlets))

    @property
    def wal_is_long(self) -> bool:
        """More than a file's worth of WAL waits for a snapshot to be forgotten."""
        if not self._marks or self.round is not None:
            return False
        limit = self._actor.settings.wal_file_bytes
        if self._actor.direct.stored_bytes >= _CLAIMED_FILES * limit:
            return True
        return any(stored - mark >= limit for stored, mark in zip(self._stored, self._marks[-1], strict=True))

    def start(self) -> None:
        if self.round is None:
            self.round = asyncio.ensure_future(self.take(), loop=self._actor.loop)

    async def take(self) -> None:
        actor = self._actor
        marks = [outlet.settled_pos for outlet in actor.outlets]
        dropping = self._reclaimer.plan()
        body = self._body()
        siblings = [actor.data.snapshots(index) for index in range(actor.delivery_shards)]
        self.dirty = False
        actor.direct.stored_bytes = 0
        self._taken_at = actor.clock.monotonic()
        try:
            if not self.saved:
                # What recovery found may be in the page cache only; the WAL still has it until it is forgotten.
                await actor.loop.run_in_executor(self._pool, actor.fs.sync_filesystem, actor.data.topics)
            await actor.wait_synced()
            await actor.loop.run_in_executor(self._pool, self._store.save, body, siblings)
            self.saved += 1
            self._told = ""
            self._marks = [*self._marks[-1:], marks]
            self._publish_absorbed()
            await self._reclaimer.run(self._pool, dropping)
        except (OSError, TopicdError) as exc:
            self.failures += 1
            self.dirty = True
            if str(exc) != self._told:
                self._told = str(exc)
                log.error("snapshot failed", extra={"error": str(exc)})
        finally:
            self.round = None

    def _publish_absorbed(self) -> None:
        """The snapshot before the newest one decides: the newest may turn out corrupt."""
        if len(self._marks) < 2:
            return
        for outlet, stored, mark in zip(self._actor.outlets, self._stored, self._marks[0], strict=True):
            outlet.set_absorbed(min(stored, mark))

    def _body(self) -> dict[str, Any]:
        actor = self._actor
        return {
            "run": actor.shard.boot.run,
            "shard": actor.index,
            "shards": actor.delivery_shards,
            "settled_below": actor.topics.settled_below,
            # One that is being deleted counts until its end is stored: that may fail yet.
            "topics": [_entry(topic) for topic in actor.topics.by_name.values()],
        }


def _entry(topic: Topic) -> dict[str, Any]:
    return {
        "id": topic.id,
        "name": topic.name,
        "config": topic.config.to_fields(),
        "created_ms": topic.created_ms,
        "earliest": topic.earliest,
        "evict_floor": topic.evict_floor,
        "losses": [list(loss) for loss in topic.losses],
        "delete_below": topic.delete_below,
        "reserved": topic.reserved,
        "gone": [list(pair) for pair in topic.gone],
        "lost": [list(pair) for pair in topic.lost],
        "head": topic.visible,
        "last_ts": topic.last_ts,
        "damaged": [[d.first_seq, d.last_seq, d.where] for d in topic.damaged],
        "changes": topic.settled_changes,
        "producers": topic.producers.to_wire(topic.visible),
        "consumers": [cursor.to_wire() for cursor in topic.consumers.values()],
    }
