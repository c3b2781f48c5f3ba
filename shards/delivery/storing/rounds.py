"""From memory to segments, beside the work of the shard. Promise: memory stays bounded, and what is in segments was
synced before the shard forgets its own copy.

The threads get bytes and paths; every change of state happens here, in the actor's thread, when they are done.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from topicd.limits import MIB
from topicd.shards.delivery.removing.deletion import forget_tags
from topicd.shards.delivery.removing.reclaim import Reclaimer
from topicd.shards.delivery.storing.checkpoint_round import Round
from topicd.shards.delivery.storing.segmenting import Draft
from topicd.shards.delivery.storing.snapshots import Snapshots
from topicd.shards.delivery.topic.topic import Damaged
from topicd.shards.delivery.writing.outlet import storage_failed
from topicd.shards.storage.ranges import Ranges
from topicd.shards.storage.segment.jobs import JobResult, run_marks

if TYPE_CHECKING:
    from topicd.shards.delivery.actor import Actor
    from topicd.shards.delivery.sessions.session import Session
    from topicd.shards.delivery.topic.tail import Blob
    from topicd.shards.delivery.topic.topic import Topic
    from topicd.shards.delivery.writing.outlet import Outlet

log = logging.getLogger(__name__)

_RETRY_S = 1.0
_STAGED_TOGETHER = 8 * MIB
_GATHERING_S = 0.015
_RELIEF = 4  # times checkpoint_bytes may be replayed before it has to go to disk: serving again comes first
_BEHIND = 4  # times checkpoint_bytes in memory: writers wait
_FULL = 8  # times checkpoint_bytes in memory: writers are refused


class Checkpointer:
    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="checkpoint")
        self.reclaimer = Reclaimer(actor)
        self.snapshots = Snapshots(actor, self._pool, self.reclaimer)
        self._dirty: dict[int, Topic] = {}
        self._unmarked: dict[int, Topic] = {}
        self._unsure_marks: set[tuple[int, int]] = set()  # (topic, segment) whose last marks failed
        self._aged: dict[int, Topic] = {}
        self._doomed: list[int] = []
        self._active: dict[int, Topic] = {}
        self._direct: dict[int, Topic] = {}  # whose lane has something to store
        self._debris: dict[int, Topic] = {}
        self._gathering = False  # stages wait a moment for more
        self._due = False  # a full round
        self.tail_bytes = 0  # in memory and in no segment yet
        self._timer: asyncio.TimerHandle | None = None
        self._round: asyncio.Future[None] | None = None
        self._total_bytes = 0
        self._opened = False
        self.waiting: set[Session] = set()  # writers that are not read from until memory is free again
        self._errno = 0  # of the round under way
        self._told: set[int] = set()  # topics whose failure was logged since a round went well
        self.checkpoints = 0
        self.failures = 0
        self.failing = 0  # errno of the last round; 0: it went well

    # ---- what the actor tells ----

    def note_blob(self, topic: Topic, blob: Blob) -> None:
        if topic.ephemeral:
            return
        size = blob.end - blob.start
        self.tail_bytes += size
        self._total_bytes += size
        self._dirty[topic.id] = topic
        self._arm()

    def note_direct(self, topic: Topic) -> None:
        """Somebody waits for it: at once, or when the round under way ends. Who fills a stage waits for its end only:
        one write of a few batches takes less than one of each."""
        self._direct[topic.id] = topic
        if topic.internal and self._actor.direct.bytes < _STAGED_TOGETHER and self._opened:
            if not self._gathering:
                self._gathering = True
                self._actor.loop.call_later(_GATHERING_S, self._gathered)
            return
        self._next()

    def _gathered(self) -> None:
        self._gathering = False
        self._next()

    def note_marks(self, topic: Topic) -> None:
        self._unmarked[topic.id] = topic
        self._arm()

    def note_control(self, outlet: Outlet, size: int) -> None:
        self.snapshots.dirty = True

    def note_metadata(self, topic: Topic) -> None:
        self.snapshots.dirty = True

    def note_reclaimable(self, topic: Topic) -> None:
        self.snapshots.dirty = True
        self.reclaimer.note(topic)

    def note_deleted(self, topic: Topic) -> None:
        self.snapshots.dirty = True
        for place in (self._dirty, self._unmarked, self._active, self._aged, self._direct, self._debris):
            place.pop(topic.id, None)
        self._actor.direct.fail(topic, self._actor.topic_gone(topic))
        self.tail_bytes -= topic.tail.bytes if not topic.ephemeral else 0
        self._doomed.append(topic.id)
        self._remove_doomed()

    def _remove_doomed(self) -> None:
        """Directories of deleted topics. Not while a round may be writing to one of them."""
        if self._round is not None:
            return
        doomed, self._doomed = self._doomed, []
        for topic_id in doomed:
            if self._opened:
                self._pool.submit(self.reclaimer.remove_topic, topic_id)
            else:
                self.reclaimer.remove_topic(topic_id)

    @property
    def behind(self) -> bool:
        """More is in memory than the disk keeps up with."""
        return self.tail_bytes > _BEHIND * self._actor.settings.checkpoint_bytes

    @property
    def holds_writers(self) -> bool:
        """Shall writers wait? Not while the disk refuses checkpoints: then they are refused, with the reason."""
        return self.behind and not self.failing

    @property
    def full(self) -> bool:
        return self.tail_bytes > _FULL * self._actor.settings.checkpoint_bytes

    def _wake_writers(self) -> None:
        if not self.holds_writers:
            waiting, self.waiting = self.waiting, set()
            for session in waiting:
                self._actor.loop.call_soon(session.go_on)

    def total_bytes(self) -> int:
        return self._total_bytes

    # ---- life ----

    def open(self) -> None:
        """After recovery: what was replayed is in tails and segments, so one round absorbs history."""
        self._opened = True
        for topic in self._actor.topics.by_name.values():
            if topic.segments and not topic.segments[-1].sealed:
                self._active[topic.id] = topic
            self.reclaimer.note(topic)
        self.snapshots.dirty = True
        self._arm(soon=True)
        self.tick()

    def tick(self) -> None:
        """Once a second: expire, seal by age, clear debris, snapshot when due."""
        self._actor.retention.sweep()
        topics = self._actor.topics.by_name.values()
        self._total_bytes = sum(topic.bytes for topic in topics)
        self._seal_aged()
        if self._debris:
            self._start()
        if self._opened and self.snapshots.due:
            self.snapshots.start()

    def checkpoint_now(self) -> None:
        self._start()

    def snapshot_now(self) -> None:
        self.snapshots.start()

    def relieve(self) -> None:
        """During recovery memory is bounded too: store what exceeds the bound at once."""
        if self.tail_bytes >= _RELIEF * self._actor.settings.checkpoint_bytes:
            work = self._plan(full=True)
            self._apply(work, work.store(self._actor.fs), run_marks(self._actor.fs, work.mark_jobs))

    async def close(self) -> None:
        """Everything to segments, then the snapshot that says so. Not if there is no WAL shard left that could go
        ahead: rings and log hold everything, and the next start waits for us to leave."""
        self._opened = False  # records that still become visible start no round beside these
        if self._timer is not None:
            self._timer.cancel()
        for under_way in (self._round, self.snapshots.round):
            if under_way is not None:
                await under_way
        for _ in range(3):
            if (self._dirty or self._unmarked or self._direct) and not self._actor.wal_is_away:
                self._round = asyncio.ensure_future(self._run_round(full=True), loop=self._actor.loop)
                await self._round
        if self.snapshots.round is not None:
            await self.snapshots.round
        if not self._actor.wal_is_away:
            await self.snapshots.take()
        self._pool.shutdown(wait=True)

    def counters(self) -> dict[str, Any]:
        return {
            "tail_bytes": self.tail_bytes,
            "stored_bytes": self._total_bytes,
            "checkpoints": self.checkpoints,
            "checkpoint_failures": self.failures + self.snapshots.failures,
            "snapshots": self.snapshots.saved,
            "mapped_bytes": self._actor.readers.mapped_bytes,
        }

    # ---- rounds ----

    def _arm(self, *, soon: bool = False) -> None:
        if not self._opened or self._round is not None:
            return
        settings = self._actor.settings
        if soon or self.tail_bytes >= settings.checkpoint_bytes:
            self._start()
        elif self._timer is None:
            self._timer = self._actor.loop.call_later(settings.checkpoint_ms / 1000, self._start)

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due = True
        self._next()

    def _next(self) -> None:
        """The next round, if there is anything to do and none under way."""
        if self._round is None and self._opened and (self._due or self._direct):
            full, self._due = self._due, False
            self._round = asyncio.ensure_future(self._run_round(full=full), loop=self._actor.loop)

    async def _run_round(self, *, full: bool) -> None:
        work = self._plan(full=full)
        ok, self._errno = True, errno.EIO
        try:
            loop = self._actor.loop
            if work.holds_log:
                await self._actor.wait_synced()
            results = await loop.run_in_executor(self._pool, work.store, self._actor.fs)
            self._settle_direct(work, results)
            marked: list[JobResult] = []
            if work.mark_jobs:
                marked = await loop.run_in_executor(self._pool, run_marks, self._actor.fs, work.mark_jobs)
            ok = self._apply(work, results, marked)
            self.checkpoints += 1
        except Exception as exc:
            ok = False
            self._note_exception(exc)
            work.unclear.update(work.ends)
            for topic, _ in work.direct:
                self._fail_direct(work, topic)
        finally:
            self._round = None
        self._remove_doomed()
        self._note_outcome(ok)
        self._wake_writers()
        if self._dirty or self._unmarked:
            if ok:
                self._arm()
            elif self._timer is None and not self._actor.draining:
                self._timer = self._actor.loop.call_later(_RETRY_S, self._start)
        self._next()
        if ok and self.snapshots.wal_is_long:
            self.snapshots.start()

    def _plan(self, *, full: bool) -> Round:
        actor = self._actor
        now = actor.clock.now_ms()
        work = Round([outlet.settled_pos for outlet in actor.outlets], full)
        topics, self._direct = self._direct, {}
        if full:
            topics = {**self._dirty, **self._aged, **self._debris, **topics}
            self._aged = {}
        for topic in topics.values():
            work.add(actor, topic, now, self._unsure_marks)
        if not full:
            return work
        for topic in self._unmarked.values():
            for first_seq, ranges in topic.unmarked.items():
                work.add_marks(actor.topic_dir(topic.id), topic, first_seq, ranges, self._unsure_marks)
        self._unmarked = {}
        return work

    # ---- results ----

    def _settle_direct(self, work: Round, results: list[JobResult]) -> None:
        """Those who wait for direct writes hear of them, and followers get them from memory, before the tail goes."""
        for topic in [self._debris[topic_id] for topic_id in work.ends if topic_id in self._debris]:
            topic.debris = False
            del self._debris[topic.id]
        if not work.direct:
            return
        reached: dict[int, int] = {}
        failed: dict[int, JobResult] = {}
        for (topic, draft), result in zip(work.drafts, results, strict=True):
            if result.stored and topic.id not in failed:
                reached[topic.id] = draft.last_seq
            else:
                failed.setdefault(topic.id, result)
        for topic, entries in work.direct:
            if not topic.live:
                continue
            stored = [entry for entry in entries if entry.last_seq <= reached.get(topic.id, 0)]
            self._actor.direct.stored(topic, stored)
            if len(stored) < len(entries):
                self._errno = failed[topic.id].errno or errno.EIO
                self._fail_direct(work, topic)
        self._actor.end_turn()

    def _fail_direct(self, work: Round, topic: Topic) -> None:
        """Until what they may have left is cleared away, the topic takes nothing: the same seqs are given out again."""
        if not topic.live:
            return
        if topic.id in work.unclear:
            topic.debris = True
            self._debris[topic.id] = topic
        self._actor.direct.fail(topic, storage_failed(self._errno))

    def _apply(self, work: Round, results: list[JobResult], marked: list[JobResult]) -> bool:
        failed: set[int] = set()
        for (topic, draft), result in zip(work.drafts, results, strict=True):
            if topic.id in failed or not topic.live:
                continue
            if not result.stored:
                failed.add(topic.id)
                self._note_failure(topic, result)
                continue
            self._store(topic, draft, result)
        for (topic, first_seq, ranges), result in zip(work.marked, marked, strict=True):
            self._note_marked(topic, first_seq, ranges, result)
        ok = not failed and not self._unmarked
        for topic, _ in work.drafts:
            if topic.id not in failed and not len(topic.tail):
                self._dirty.pop(topic.id, None)
        if ok and work.full:
            self.snapshots.note_stored(work.marks)
        return ok

    def _store(self, topic: Topic, draft: Draft, result: JobResult) -> None:
        info = self._info_after(topic, draft, result)
        before = topic.tail.bytes
        topic.stored = draft.last_seq
        topic.tail.drop_through(topic.stored)
        self.tail_bytes -= before - topic.tail.bytes
        self._move_dead(topic, draft)
        if info.sealed:
            self._active.pop(topic.id, None)
            forget_tags(topic, info.last_seq)
        else:
            self._active[topic.id] = topic
        for damage in result.damage:
            log.error("storage is damaged", extra={"damage": str(damage)})
            if not damage.repaired:
                topic.damaged.append(Damaged(damage.first_seq, damage.last_seq, damage.path.name))

    def _info_after(self, topic: Topic, draft: Draft, result: JobResult) -> Any:
        if topic.segments and topic.segments[-1].first_seq == draft.first_seq:
            info = topic.segments[-1]
            info.count, info.data_bytes, info.last_ts = draft.count, draft.bytes, draft.last_ts
        else:
            info = draft.info()
            topic.segments.append(info)
        if result.sealed is not None:
            info.sealed = True
        elif draft.seal:
            log.error("segment not sealed", extra={"topic": topic.name, "error": str(result.error)})
        return info

    def _move_dead(self, topic: Topic, draft: Draft) -> None:
        """Deleted while in the tail: from now on they are marks of the segment."""
        moved = topic.tail_dead.within(draft.first_seq, topic.stored)
        if not moved:
            return
        marks = topic.marks.setdefault(draft.first_seq, Ranges())
        info = topic.segments[-1]
        sizes = self._actor.segment_sizes(topic, info)
        for first, last in moved:
            info.dead += marks.add(first, last)
            info.dead_bytes += sizes.offset(last + 1) - sizes.offset(first)
        topic.unmarked.setdefault(draft.first_seq, Ranges()).update(moved)
        self._unmarked[topic.id] = topic
        topic.tail_dead = Ranges(topic.tail_dead.within(topic.stored + 1, topic.head))

    def _note_marked(self, topic: Topic, first_seq: int, ranges: Ranges, result: JobResult) -> None:
        if not result.stored:
            self._unmarked[topic.id] = topic
            self._unsure_marks.add((topic.id, first_seq))
            self._note_failure(topic, result)
            return
        self._unsure_marks.discard((topic.id, first_seq))
        left = topic.unmarked.get(first_seq)
        if left is None:
            return
        rest = [part for first, last in left for part in ranges.missing(first, last)]
        if rest:
            topic.unmarked[first_seq] = Ranges(rest)
        else:
            del topic.unmarked[first_seq]
            if not topic.unmarked:
                self._unmarked.pop(topic.id, None)

    def _note_failure(self, topic: Topic, result: JobResult) -> None:
        self._errno = result.errno or errno.EIO
        # A full disk stays full for hours: said once, not once a second.
        if topic.id not in self._told:
            self._told.add(topic.id)
            log.error("checkpoint of topic failed", extra={"topic": topic.name, "error": str(result.error)})

    def _note_exception(self, exc: Exception) -> None:
        if not isinstance(exc, OSError):
            log.error("checkpoint failed", exc_info=exc)
            return
        self._errno = exc.errno or errno.EIO
        if 0 not in self._told:
            self._told.add(0)  # no topic's
            log.error("checkpoint failed", extra={"error": str(exc)})

    def _note_outcome(self, ok: bool) -> None:
        if not ok:
            self.failures += 1
            self.failing = self._errno
            return
        if self.failing:
            log.info("checkpoints work again", extra={"errno": self.failing})
        self.failing = 0
        self._told.clear()

    def _seal_aged(self) -> None:
        """Active segments that are old enough are sealed with the next round, whether they have new records or not."""
        age = self._actor.settings.segment_max_age_ms
        if not age:
            return
        now = self._actor.clock.now_ms()
        aged = {t.id: t for t in self._active.values() if now - t.segments[-1].created_ms >= age}
        if aged:
            self._aged = aged
            self._start()
