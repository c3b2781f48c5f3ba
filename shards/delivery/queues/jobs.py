"""The jobs of a queue: which are ready, held, delayed, on their way to the dead letters, done and kept. Promise: every
live record of the queue is in exactly one of these; it changes by frames of the log only, so that a start finds what
was answered; what is usual (a plain job that waits) costs nothing.

Not in the log, and gone with the process: leases, unless the queue is configured so, and what is under way.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NamedTuple

from topicd.frames import FrameType
from topicd.model import TopicConfig
from topicd.shards.delivery.queues.crons import Cron
from topicd.shards.delivery.queues.lanes import GroupLimits, Lane, Lanes
from topicd.shards.delivery.queues.leases import Grant, Leases
from topicd.shards.delivery.queues.options import Options
from topicd.shards.delivery.queues.placed import Placed
from topicd.shards.delivery.queues.uniques import Held, UniqueKeys
from topicd.shards.delivery.topic.part import TopicPart
from topicd.shards.storage.ranges import Ranges


class Past(NamedTuple):
    """Of a job that was handed out and is not done."""

    deliveries: int  # that ended and count
    first_ms: int
    last_ms: int
    reason: str  # of the last that gave one


class Stop(NamedTuple):
    """Why nothing is handed out, or taken in."""

    by: str  # user or breaker
    reason: str
    since: int


class Totals(NamedTuple):
    """Since creation."""

    acked: int = 0
    dead: int = 0
    failed: int = 0
    released: int = 0
    expired: int = 0


class _Upcoming:
    """Options of a batch that is on its way."""

    __slots__ = ("before", "replaces", "rows", "tick")

    def __init__(self, rows: list[Options], replaces: int, before: Held | None) -> None:
        self.rows = rows
        self.replaces = replaces  # a job that goes when this one is there; 0: none
        self.tick: tuple[str, int, int] | None = None
        self.before = before  # who held the key of it


class Jobs(TopicPart):
    KEY: ClassVar[str] = "queue"
    FRAMES: ClassVar[frozenset[FrameType]] = frozenset({FrameType.LEASE})

    def __init__(self, config: TopicConfig) -> None:
        self.lanes = Lanes()
        self.placed = Placed()
        self.leases = Leases()
        self.finishing: dict[int, Grant] = {}  # held, and what ends that is on its way to the log
        self.past: dict[int, Past] = {}
        self.delayed: dict[int, int] = {}  # by seq: until when
        self._delays: list[tuple[int, int]] = []  # (until, seq): a heap of these, and of some that are over
        self.dying: set[int] = set()  # on their way to the dead letters
        self.kept: deque[tuple[int, int, int]] = deque()  # (when, first, last): done, and readable yet
        self.kept_seqs = Ranges()
        self.keys = UniqueKeys()
        self.crons: dict[str, Cron] = {}
        self.paused: Stop | None = None
        self.draining: Stop | None = None
        self.totals = Totals()
        self.damaged = Ranges()  # cannot be read, so nobody gets them
        self.opened = False  # the lanes are filled
        self.stale = False  # records went that nobody told us of: see prune
        self.replaced: list[int] = []  # jobs whose records go because others took their place
        self._seen = 0  # newest seq that is in one of these
        self._upcoming: dict[int, _Upcoming] = {}  # by first seq
        self._withdrawn: dict[int, int] = {}  # by seq, its delay or 0: somebody is about to take its place
        self._through = 0  # newest seq whose options a snapshot holds
        self.configure(config)

    def configure(self, config: TopicConfig) -> None:
        self.limits = GroupLimits(config.group_max_in_flight, config.group_rate_per_s)
        self.logs_leases = config.leases_durable
        self.lanes.unpark_all()

    # ---- counters ----

    @property
    def ready(self) -> int:
        return self.lanes.ready

    @property
    def in_flight(self) -> int:
        return len(self.leases) + len(self.finishing)

    @property
    def kept_count(self) -> int:
        return self.kept_seqs.covered

    def figures(self, visible: int, earliest: int) -> tuple[int, ...]:
        """Ready, in flight, delayed, dead, acknowledged."""
        return self.ready, self.in_flight, len(self.delayed), self.totals.dead, self.totals.acked

    # ---- jobs come ----

    def announce(
        self, first_seq: int, rows: list[Options], replaces: int = 0, tick: tuple[str, int, int] | None = None
    ) -> None:
        """Options of a batch whose records will be, or were just, given these seqs."""
        before: Held | None = None
        for row in rows:
            if row.key:
                before = self.keys.holder(row.key, 0)
                self.keys.hold(row.key, row.first, row.until, row.key_ms)
        if replaces:
            self.withdraw(replaces)
        upcoming = self._upcoming[first_seq] = _Upcoming(rows, replaces, before)
        upcoming.tick = tick

    def take_back(self, first_seq: int) -> None:
        """That batch was not stored."""
        upcoming = self._upcoming.pop(first_seq, None)
        if upcoming is None:
            return
        for row in upcoming.rows:
            if row.key:
                self.keys.take_back(row.first)
                if upcoming.before is not None:
                    self.keys.hold(row.key, *upcoming.before)
        if upcoming.replaces in self._withdrawn:
            self.put_again(upcoming.replaces, self._withdrawn[upcoming.replaces])

    def replay_options(self, first_seq: int, body: dict[str, Any]) -> None:
        """From the log, with a batch that is whole."""
        if first_seq <= self._through:
            # The snapshot holds them, and what became of these jobs since; but not that the one replaced is dead.
            if body.get("replaces"):
                self.replaced.append(int(body["replaces"]))
            return
        rows = [Options.from_log(row) for row in body.get("opts", ())]
        tick = tuple(body["tick"]) if "tick" in body else None
        self.announce(first_seq, rows, int(body.get("replaces", 0)), tick)
        self.catch_up(max((row.last for row in rows), default=first_seq), 0)

    def catch_up(self, visible: int, now_ms: int) -> None:
        """Jobs up to there can be read: they are ready, or delayed."""
        if visible <= self._seen:
            return
        first = self._seen + 1
        if self._upcoming:
            for seq in sorted(seq for seq in self._upcoming if seq <= visible):
                upcoming = self._upcoming.pop(seq)
                for row in upcoming.rows:
                    if first < row.first and self.opened:
                        self.lanes.add_fresh(self.lanes.plain, first, row.first - 1)
                    self._place(row, now_ms)
                    first = max(first, row.last + 1)
                if upcoming.tick is not None:
                    self._ticked(*upcoming.tick)
                if upcoming.replaces:
                    self._ended(upcoming.replaces, upcoming.replaces)
                    self.replaced.append(upcoming.replaces)
        if first <= visible and self.opened:
            self.lanes.add_fresh(self.lanes.plain, first, visible)
        self._seen = visible

    def _place(self, row: Options, now_ms: int) -> None:
        lane = self.lanes.plain
        if row.placed:
            lane = self.lanes.get(row.priority, row.group)
            self.placed.add(row.first, row.last, lane)
        if row.ready_at > now_ms:
            for seq in range(row.first, row.last + 1):
                self._delay(seq, row.ready_at)
        elif self.opened:
            self.lanes.add_fresh(lane, row.first, row.last)

    def _delay(self, seq: int, ready_at: int) -> None:
        self.delayed[seq] = ready_at
        heapq.heappush(self._delays, (ready_at, seq))

    def withdraw(self, seq: int) -> int:
        """Out of those that are ready (0) or delayed (until then); nobody gets it meanwhile."""
        ready_at = 0
        if seq in self.delayed:
            ready_at = self.delayed.pop(seq)
        elif self.opened:
            self.lanes.remove(self.lane_of(seq), seq)
        self._withdrawn[seq] = ready_at
        return ready_at

    def put_again(self, seq: int, ready_at: int) -> None:
        """Nothing came of what it was withdrawn for."""
        if self._withdrawn.pop(seq, None) is None:
            return
        if ready_at:
            self._delay(seq, ready_at)
        elif self.opened:
            self.lanes.add_back(self.lane_of(seq), seq, 0)

    def lane_of(self, seq: int) -> Lane:
        return (self.placed.lane_of(seq) if len(self.placed) else None) or self.lanes.plain

    # ---- the ready ones ----

    def open(self, live: Iterable[tuple[int, int]], visible: int, now_ms: int) -> None:
        """Fill the lanes: live records, without those that are somewhere else. What is known of records that went, by a
        cap, a TTL or a delete, goes too."""
        self.stale = False
        self.catch_up(visible, now_ms)
        alive = Ranges(live)
        self._prune(alive, visible)
        self.lanes.clear()
        self._recount(alive)
        elsewhere = [*self.leases.seqs(), *self.finishing, *self.delayed, *self.dying, *self._withdrawn, *self.past]
        elsewhere += self.replaced
        elsewhere.sort()
        out = Ranges((seq, seq) for seq in elsewhere)
        out.update(self.kept_seqs)
        out.update(self.damaged)
        self.opened = True
        for first, last in alive:
            for a, b in out.missing(first, last):
                self._fill(a, b)
        for seq, past in self.past.items():
            if self.is_waiting(seq):
                self.lanes.add_back(self.lane_of(seq), seq, past.last_ms)

    def is_waiting(self, seq: int) -> bool:
        """Of a live job: it is neither held nor delayed, nor has it ended."""
        return not (
            seq in self.leases
            or seq in self.finishing
            or seq in self.delayed
            or seq in self.dying
            or seq in self._withdrawn
            or seq in self.kept_seqs
            or seq in self.damaged
        )

    def _fill(self, first: int, last: int) -> None:
        lanes = self.lanes
        for run in self.placed.between(first, last) if len(self.placed) else ():
            if run.first > first:
                lanes.add_fresh(lanes.plain, first, run.first - 1)
            a, b = max(first, run.first), min(last, run.last)
            lanes.add_fresh(run.lane, a, b)
            first = b + 1
        if first <= last:
            lanes.add_fresh(lanes.plain, first, last)

    def _recount(self, alive: Ranges) -> None:
        """What hangs on the number of jobs."""
        for lane in self.lanes:
            lane.jobs = 0
        for run in self.placed:
            run.left = alive.count_within(run.first, run.last)
            run.lane.jobs += run.left
        for group in self.lanes.groups.values():
            group.in_flight = 0
        for seq in [*self.leases.seqs(), *self.finishing]:
            self.lane_of(seq).group.in_flight += 1

    def _prune(self, alive: Ranges, visible: int) -> None:
        for seq in self.leases.seqs():
            if seq not in alive:
                self.leases.end(seq)
        self.finishing = {seq: grant for seq, grant in self.finishing.items() if seq in alive}
        self.past = {seq: past for seq, past in self.past.items() if seq in alive}
        self.delayed = {seq: at for seq, at in self.delayed.items() if seq in alive}
        self._withdrawn = {seq: at for seq, at in self._withdrawn.items() if seq in alive}
        self.dying = {seq for seq in self.dying if seq in alive}
        for seq in self.keys.seqs():
            if seq <= visible and seq not in alive:
                self.keys.ended(seq)
        if self.kept:
            kept = [(at, a, b) for at, first, last in self.kept for a, b in alive.within(first, last)]
            self.kept, self.kept_seqs = deque(kept), Ranges((a, b) for _, a, b in kept)

    # ---- time ----

    def wake_delayed(self, now_ms: int) -> None:
        """Those whose time has come are ready."""
        delays = self._delays
        while delays and delays[0][0] <= now_ms:
            ready_at, seq = heapq.heappop(delays)
            if self.delayed.get(seq) == ready_at:
                del self.delayed[seq]
                self.lanes.add_back(self.lane_of(seq), seq, ready_at)

    @property
    def next_ready(self) -> int | None:
        delays = self._delays
        while delays and self.delayed.get(delays[0][1]) != delays[0][0]:
            heapq.heappop(delays)
        return delays[0][0] if delays else None

    # ---- leases ----

    def begin_end(self, seq: int) -> None:
        """What ends it is on its way to the log: until then it is held, and by nobody who could end it again."""
        grant = self.leases.end(seq)
        if grant is not None:
            self.finishing[seq] = grant

    def end_failed(self, seq: int) -> None:
        """It was not stored: whoever held it holds it again."""
        grant = self.finishing.pop(seq, None)
        if grant is not None:
            number = grant.number(seq)
            self.leases.give(seq, seq, number, grant.deadline, grant.node, grant.holder)

    def release(self, seq: int, now_ms: int) -> None:
        """Nobody holds it: it is as if it had not been handed out."""
        if self.leases.end(seq) is None and self.finishing.pop(seq, None) is None:
            return
        self._left(seq)
        self.lanes.add_back(self.lane_of(seq), seq, now_ms)

    def expired(self, seq: int, deadline: int, now_ms: int) -> Past:
        """Its lease is over, and counts as a delivery. The caller says where it goes: back_again, or to its end."""
        past = self.attempt(seq, deadline, "")
        self.past[seq] = past
        self._left(seq)
        return past

    def back_again(self, seq: int, since_ms: int) -> None:
        self.lanes.add_back(self.lane_of(seq), seq, since_ms)

    def attempt(self, seq: int, now_ms: int, reason: str) -> Past:
        """What is known of a job when one more delivery has ended."""
        past = self.past.get(seq)
        if past is None:
            return Past(1, now_ms, now_ms, reason)
        return Past(past.deliveries + 1, past.first_ms or now_ms, now_ms, reason or past.reason)

    def deliveries(self, seq: int) -> int:
        past = self.past.get(seq)
        return 0 if past is None else past.deliveries

    def _left(self, seq: int) -> None:
        """It is in flight no more."""
        if len(self.placed):
            lane = self.placed.lane_of(seq)
            if lane is not None and lane.group.name:
                self.lanes.ended(lane.group)

    # ---- changes ----

    def replay(self, kind: FrameType, body: dict[str, Any], ts: int) -> None:
        for key, change in _CHANGES:
            if key in body:
                change(self, body)

    def _replay_done(self, body: dict[str, Any]) -> None:
        done, at = body["done"], int(body["at"])
        for i in range(0, len(done), 2):
            first, last = int(done[i]), int(done[i + 1])
            self._ended(first, last)
            if body.get("keep"):
                self.kept.append((at, first, last))
                self.kept_seqs.add(first, last)

    def _replay_buried(self, body: dict[str, Any]) -> None:
        """In the dead letters."""
        for first, last in _pairs(body["buried"]):
            self._ended(first, last)

    def _replay_gone(self, body: dict[str, Any]) -> None:
        """Done and kept long enough."""
        gone = Ranges((int(first), int(last)) for first, last in _pairs(body["gone"]))
        kept = [(at, a, b) for at, first, last in self.kept for a, b in gone.missing(first, last)]
        self.kept, self.kept_seqs = deque(kept), Ranges((a, b) for _, a, b in kept)

    def _ended(self, first: int, last: int) -> None:
        """There are no such jobs any more."""
        keyed = len(self.keys) > 0
        for seq in range(first, last + 1):
            if self.leases.end(seq) is not None or self.finishing.pop(seq, None) is not None:
                self._left(seq)
            if self.past:
                self.past.pop(seq, None)
            if self.delayed:
                self.delayed.pop(seq, None)
            if keyed:
                self.keys.ended(seq)
        if self.dying:
            self.dying.difference_update(range(first, last + 1))
        if self._withdrawn:
            for seq in range(first, last + 1):
                self._withdrawn.pop(seq, None)
        if len(self.placed):
            for lane in self.placed.done(first, last):
                self.lanes.forget(lane)

    def _replay_back(self, body: dict[str, Any]) -> None:
        """Given back, with what is to be known of it."""
        at = int(body["at"])
        for seq, deliveries, first_ms, last_ms, reason, ready_at in body["back"]:
            if self.leases.end(seq) is not None or self.finishing.pop(seq, None) is not None:
                self._left(seq)
            self.dying.discard(seq)
            self.past[seq] = Past(deliveries, first_ms, last_ms, reason)
            if ready_at > at:
                self._delay(seq, ready_at)
            elif self.opened:
                self.lanes.add_back(self.lane_of(seq), seq, at)

    def _replay_dying(self, body: dict[str, Any]) -> None:
        for seq, deliveries, first_ms, last_ms, reason in body["dying"]:
            if self.leases.end(seq) is not None or self.finishing.pop(seq, None) is not None:
                self._left(seq)
            self.delayed.pop(seq, None)
            self.past[seq] = Past(deliveries, first_ms, last_ms, reason)
            self.dying.add(seq)

    def _replay_leases(self, body: dict[str, Any]) -> None:
        """Of a queue that keeps them: given out, or extended."""
        for first, last, base, deadline, node in body["lease"]:
            for seq in range(first, last + 1):
                self.delayed.pop(seq, None)
            if not self.opened:
                self.leases.give(first, last, base, deadline, node, None)
                self.leases.next_number = max(self.leases.next_number, base + last - first + 1)

    def _replay_free(self, body: dict[str, Any]) -> None:
        """Nobody holds these any more."""
        for first, last in _pairs(body["free"]):
            for seq in range(first, last + 1):
                if self.leases.end(seq) is not None and self.opened:
                    self._left(seq)
                    self.lanes.add_back(self.lane_of(seq), seq, int(body["at"]))

    def _replay_schedule(self, body: dict[str, Any]) -> None:
        """A job that waits has another time."""
        for seq, ready_at in body["sched"]:
            if self.opened:
                self.delayed.pop(seq, None)
                self._withdrawn.pop(seq, None)
                if ready_at <= int(body["at"]):
                    self.lanes.add_back(self.lane_of(seq), seq, ready_at)
                    continue
            self._delay(seq, ready_at)

    def _replay_stops(self, body: dict[str, Any]) -> None:
        if "pause" in body:
            self.paused = None if body["pause"] is None else Stop(*body["pause"])
        if "drain" in body:
            self.draining = None if body["drain"] is None else Stop(*body["drain"])

    def _replay_mark(self, body: dict[str, Any]) -> None:
        self.leases.marked = max(self.leases.marked, int(body["mark"]))

    def _replay_totals(self, body: dict[str, Any]) -> None:
        self.totals = Totals(*(max(a, b) for a, b in zip(self.totals, body["totals"], strict=True)))

    def _replay_crons(self, body: dict[str, Any]) -> None:
        if "cron" in body:
            cron = Cron.from_row(body["cron"])
            self.crons[cron.name] = cron
        if "uncron" in body:
            self.crons.pop(str(body["uncron"]), None)

    def _ticked(self, name: str, at_ms: int, next_ms: int) -> None:
        """A schedule has fired for this time."""
        cron = self.crons.get(name)
        if cron is not None and at_ms > cron.last_ms:
            self.crons[name] = cron._replace(last_ms=at_ms, next_ms=next_ms)

    # ---- snapshots ----

    def to_snapshot(self, visible: int) -> dict[str, Any]:
        self.catch_up(visible, 0)
        rows = [[run.first, run.last, run.lane.band.priority, run.lane.group.name] for run in self.placed]
        leases = self.leases.rows() if self.logs_leases else []
        if self.logs_leases:
            leases += [[seq, seq, g.number(seq), g.deadline, g.node] for seq, g in self.finishing.items()]
        return {
            "through": visible,
            "placed": rows,
            "past": [[seq, *past] for seq, past in self.past.items()],
            "delayed": [[seq, at] for seq, at in [*self.delayed.items(), *self._withdrawn.items()] if at],
            "dying": sorted(self.dying),
            "kept": [list(row) for row in self.kept],
            "unique": self.keys.rows(visible),
            "leases": leases,
            "mark": self.leases.marked,
            "paused": None if self.paused is None else list(self.paused),
            "draining": None if self.draining is None else list(self.draining),
            "totals": list(self.totals),
            "replaced": list(self.replaced),
            "crons": [cron.to_row() for cron in self.crons.values()],
        }

    def restore(self, body: dict[str, Any]) -> None:
        self._through = self._seen = int(body["through"])
        for first, last, priority, group in body["placed"]:
            self.placed.add(first, last, self.lanes.get(priority, group))
        self.past = {row[0]: Past(*row[1:]) for row in body["past"]}
        for seq, ready_at in body["delayed"]:
            self._delay(seq, ready_at)
        self.dying = set(body["dying"])
        self.kept = deque((row[0], row[1], row[2]) for row in body["kept"])
        self.kept_seqs = Ranges((first, last) for _, first, last in self.kept)
        self.keys.restore(body["unique"])
        self.leases.marked = int(body["mark"])
        for first, last, base, deadline, node in body["leases"]:
            self.leases.give(first, last, base, deadline, node, None)
        self.paused = None if body["paused"] is None else Stop(*body["paused"])
        self.draining = None if body["draining"] is None else Stop(*body["draining"])
        self.totals = Totals(*body["totals"])
        self.replaced = list(body["replaced"])
        for row in body["crons"]:
            cron = Cron.from_row(row)
            self.crons[cron.name] = cron


def _pairs(flat: list[int]) -> list[tuple[int, int]]:
    return [(flat[i], flat[i + 1]) for i in range(0, len(flat), 2)]


# In this order: what ends a job comes before what is said of others.
_CHANGES: tuple[tuple[str, Callable[[Jobs, dict[str, Any]], None]], ...] = (
    ("done", Jobs._replay_done),
    ("buried", Jobs._replay_buried),
    ("gone", Jobs._replay_gone),
    ("back", Jobs._replay_back),
    ("dying", Jobs._replay_dying),
    ("lease", Jobs._replay_leases),
    ("free", Jobs._replay_free),
    ("sched", Jobs._replay_schedule),
    ("pause", Jobs._replay_stops),
    ("drain", Jobs._replay_stops),
    ("mark", Jobs._replay_mark),
    ("totals", Jobs._replay_totals),
    ("cron", Jobs._replay_crons),
    ("uncron", Jobs._replay_crons),
)
