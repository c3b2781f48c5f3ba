"""When checkpoints happen. Promise: memory stays bounded, and what is in segments was synced before the shard forgets
its own copy.

The threads get bytes and paths; every change of state happens in the shard's own thread, when they are done. A full
checkpoint goes through the topics in rounds of so many at most, each planned, stored and applied by itself: however
many topics there are, requests are served in between.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Executor
from typing import Any

from topicd.limits import MIB
from topicd.shards.delivery.agenda import Agenda
from topicd.shards.delivery.place import Place
from topicd.shards.delivery.removing.reclaim import Reclaimer
from topicd.shards.delivery.storing.apply import Apply, Failures
from topicd.shards.delivery.storing.backlog import Backlog
from topicd.shards.delivery.storing.checkpoint_round import CheckpointRound
from topicd.shards.delivery.storing.pressure import Pressure
from topicd.shards.delivery.storing.snapshots import Snapshots
from topicd.shards.delivery.topic.catalog import Catalog
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.delivery.writing.direct import DirectWrites
from topicd.shards.delivery.writing.outlet import Outlet
from topicd.shards.delivery.writing.wal_sync import WalSync
from topicd.shards.storage.segment.jobs import JobResult, run_marks

log = logging.getLogger(__name__)

_RETRY_S = 1.0
_STAGED_TOGETHER = 8 * MIB
_GATHERING_S = 0.015
_TOPICS = 1_024  # in one round of a full checkpoint: a few milliseconds of planning
_SETTLING_ROUNDS = 1_000  # of a checkpoint that somebody waits for
_RELIEF = 4  # times checkpoint_bytes may be replayed before it has to go to disk: serving again comes first


class FullCheckpoint:
    """What waited when it began, as far as no round has taken it."""

    def __init__(self, marks: list[int], topics: list[Topic], unmarked: list[Topic]) -> None:
        self.marks = marks  # ring positions: up to there the log is absorbed when everything is stored
        self.topics = topics
        self.unmarked = unmarked

    @property
    def over(self) -> bool:
        return not (self.topics or self.unmarked)


class Rounds:
    def __init__(
        self,
        place: Place,
        loop: asyncio.AbstractEventLoop,
        pool: Executor,
        outlets: list[Outlet],
        agenda: Agenda,
        catalog: Catalog,
        backlog: Backlog,
        pressure: Pressure,
        direct: DirectWrites,
        wal_sync: WalSync,
        apply: Apply,
        failures: Failures,
        reclaimer: Reclaimer,
        snapshots: Snapshots,
    ) -> None:
        self._place = place
        self._loop = loop
        self._pool = pool
        self._outlets = outlets
        self._agenda = agenda
        self._catalog = catalog
        self._backlog = backlog
        self._pressure = pressure
        self._direct = direct
        self._wal_sync = wal_sync
        self._apply = apply
        self._failures = failures
        self._reclaimer = reclaimer
        self._snapshots = snapshots
        self._gathering = False  # stages wait a moment for more
        self._due = False  # a full checkpoint
        self._full: FullCheckpoint | None = None  # begun and not over
        self._timer: asyncio.TimerHandle | None = None
        self._round: asyncio.Future[None] | None = None
        self._opened = False
        # Of these topics, by id those whose copies must wait: their sources are not durable so far. Set by the routers.
        self.unsafe_copies: Callable[[list[Topic]], Awaitable[set[int]]] = _none
        self.done = 0
        self.failed = 0
        backlog.on_work = self._arm
        backlog.on_direct = self._direct_waits
        backlog.on_doomed = self._remove_doomed

    # ---- life ----

    def open(self) -> None:
        """After recovery: what was replayed is in tails and segments, so one round absorbs history."""
        self._opened = True
        for topic in self._catalog.by_name.values():
            if topic.contents.active is not None:
                self._backlog.active[topic.id] = topic
            self._backlog.reclaimable[topic.id] = topic
        self._backlog.total_bytes = sum(topic.contents.bytes for topic in self._catalog.by_name.values())
        self._backlog.metadata_changed = True
        self.checkpoint_now()
        self.tick()

    def tick(self) -> None:
        """After each look at all topics: seal by age, clear debris, snapshot when due."""
        if self._backlog.aged or self._backlog.debris:
            self.checkpoint_now()
        if self._opened and self._snapshots.due:
            self._snapshots.start()

    def checkpoint_now(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due = True
        self._next()

    async def settle(self) -> None:
        """What is in memory now goes to segments, and is there when this returns, unless the disk refuses."""
        self.checkpoint_now()
        for _ in range(_SETTLING_ROUNDS):
            if self._round is None:
                return
            await asyncio.wait([self._round])

    def relieve(self) -> Iterator[None]:
        """During recovery memory is bounded too: store what exceeds the bound at once. Yields after each round."""
        if self._backlog.tail_bytes < _RELIEF * self._place.settings.checkpoint_bytes:
            return
        while True:
            work = self._plan(full=True)
            self._finish(work, work.store(self._place.fs), run_marks(self._place.fs, work.mark_jobs))
            if self._full is None:
                return
            yield

    async def close(self) -> None:
        """Everything to segments, then the snapshot that says so. Not if there is no WAL shard left that could go
        ahead: rings and log hold everything, and the next start waits for us to leave."""
        self._opened = False  # records that still become visible start no round beside these
        if self._timer is not None:
            self._timer.cancel()
        for under_way in (self._round, self._snapshots.round):
            if under_way is not None:
                await under_way
        backlog = self._backlog
        for _ in range(3):
            more = bool(backlog.dirty or backlog.unmarked or backlog.direct)
            while more and not self._wal_sync.wal_is_away:
                self._round = asyncio.ensure_future(self._run_round(full=True), loop=self._loop)
                await self._round
                more = self._full is not None
        if self._snapshots.round is not None:
            await self._snapshots.round
        if not self._wal_sync.wal_is_away:
            await self._snapshots.take()
        self._pool.shutdown(wait=True)

    def page(self) -> dict[str, Any]:
        """For the stats page."""
        return {
            "tail_bytes": self._backlog.tail_bytes,
            "stored_bytes": self._backlog.total_bytes,
            "checkpoints": self.done,
            "checkpoint_failures": self.failed + self._snapshots.failures,
            "snapshots": self._snapshots.saved,
            "snapshot_failing": int(self._snapshots.failing),
        }

    # ---- when ----

    def _arm(self) -> None:
        if not self._opened or self._round is not None:
            return
        settings = self._place.settings
        if self._backlog.tail_bytes >= settings.checkpoint_bytes:
            self.checkpoint_now()
        elif self._timer is None:
            self._timer = self._loop.call_later(settings.checkpoint_ms / 1000, self.checkpoint_now)

    def _direct_waits(self, topic: Topic) -> None:
        """Somebody waits for it: at once, or when the round under way ends. Who fills a stage waits for its end only:
        one write of a few batches takes less than one of each."""
        if topic.policy.internal and self._direct.bytes < _STAGED_TOGETHER and self._opened:
            if not self._gathering:
                self._gathering = True
                self._loop.call_later(_GATHERING_S, self._gathered)
            return
        self._next()

    def _gathered(self) -> None:
        self._gathering = False
        self._next()

    def _next(self) -> None:
        """The next round, if there is anything to do and none under way."""
        if self._round is None and self._opened and (self._due or self._full is not None or self._backlog.direct):
            full = self._full is not None or self._due
            if self._full is None:
                self._due = False
            self._round = asyncio.ensure_future(self._run_round(full=full), loop=self._loop)

    # ---- a round ----

    async def _run_round(self, *, full: bool) -> None:
        work = self._plan(full=full)
        self._failures.begin_round()
        ok = True
        try:
            if work.holds_log:
                await self._wal_sync.wait()
            copied = [topic for topic in work.topics if topic.inflows.derived is not None]
            if copied:
                work.leave_out(await self.unsafe_copies(copied))
            results = await self._loop.run_in_executor(self._pool, work.store, self._place.fs)
            self._apply.settle_direct(work, results)
            if work.direct:
                self._agenda.run_turn()
            marked: list[JobResult] = []
            if work.mark_jobs:
                marked = await self._loop.run_in_executor(self._pool, run_marks, self._place.fs, work.mark_jobs)
            ok = self._finish(work, results, marked)
            self.done += 1
        except Exception as exc:
            ok = False
            self._give_back(work)
            self._failures.note_exception(exc)
            work.unclear.update(work.ends)
            for topic, _ in work.direct:
                self._apply.refuse_direct(work, topic)
        finally:
            self._round = None
        self._after_round(ok)

    def _finish(self, work: CheckpointRound, results: list[JobResult], marked: list[JobResult]) -> bool:
        ok = self._apply.results(work, results, marked)
        if not ok:
            self._give_back(work)
        elif work.full and self._full is not None and self._full.over:
            self._snapshots.note_stored(self._full.marks)
            self._full = None
        return ok

    def _give_back(self, work: CheckpointRound) -> None:
        """Of a full checkpoint that failed: its topics are dirty still, and marks wait for the next one."""
        left, self._full = self._full.unmarked if self._full is not None else [], None
        for topic in [*left, *(topic for topic, _, _ in work.marked)]:
            if topic.live and topic.contents.unmarked:
                self._backlog.unmarked[topic.id] = topic

    def _after_round(self, ok: bool) -> None:
        self._remove_doomed()
        self._note_outcome(ok)
        self._pressure.wake_writers()
        if self._backlog.dirty or self._backlog.unmarked:
            if ok:
                self._arm()
            elif self._timer is None and not self._wal_sync.draining:
                self._timer = self._loop.call_later(_RETRY_S, self.checkpoint_now)
        self._next()
        if ok and self._snapshots.wal_is_long:
            self._snapshots.start()

    def _plan(self, *, full: bool) -> CheckpointRound:
        place, backlog = self._place, self._backlog
        now = place.clock.now_ms()
        work = CheckpointRound(full)
        topics, backlog.direct = backlog.direct, {}
        waiting = self._full
        if full and waiting is None:
            waiting = self._full = self._begin()
        if full and waiting is not None:
            topics = {topic.id: topic for topic in _taken(waiting.topics)} | topics
        for topic in topics.values():
            topic.inflows.plan(topic.seqs.visible)
            direct = self._direct.storable(topic)
            work.add(topic, place.topic_dir(topic.id), direct, place.settings, now, backlog.unsure_marks)
        if not full or waiting is None or waiting.topics:
            return work
        for topic in _taken(waiting.unmarked):
            for first_seq, ranges in topic.contents.unmarked.items():
                work.add_marks(place.topic_dir(topic.id), topic, first_seq, ranges, backlog.unsure_marks)
        return work

    def _begin(self) -> FullCheckpoint:
        backlog = self._backlog
        topics = {**backlog.dirty, **backlog.aged, **backlog.debris}
        begun = FullCheckpoint(
            [outlet.settled_pos for outlet in self._outlets], list(topics.values()), list(backlog.unmarked.values())
        )
        backlog.aged, backlog.unmarked = {}, {}
        return begun

    def _note_outcome(self, ok: bool) -> None:
        if not ok:
            self.failed += 1
            self._pressure.failing = self._failures.errno
            return
        if self._pressure.failing:
            log.info("checkpoints work again", extra={"errno": self._pressure.failing})
        self._pressure.failing = 0
        self._failures.clear()

    def release(self) -> None:
        """The backup is over: what waited for that goes on."""
        self._snapshots.publish_absorbed()
        self._remove_doomed()

    def _remove_doomed(self) -> None:
        """Directories of deleted topics. Not while a round may be writing to one of them, or a backup reads it."""
        if self._round is not None or self._backlog.held:
            return
        doomed, self._backlog.doomed = self._backlog.doomed, []
        for topic_id in doomed:
            if self._opened:
                self._pool.submit(self._reclaimer.remove_topic, topic_id)
            else:
                self._reclaimer.remove_topic(topic_id)


async def _none(topics: list[Topic]) -> set[int]:
    return set()


def _taken(waiting: list[Topic]) -> list[Topic]:
    """As many as one round takes; those that are gone are passed over."""
    taken = [topic for topic in waiting[:_TOPICS] if topic.live]
    del waiting[:_TOPICS]
    return taken
