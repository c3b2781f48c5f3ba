"""Where each job of a queue is: ready, held, delayed, on its way to the dead letters, done and kept. Promise: every
live record of the queue is in exactly one of these; what is usual (a plain job that waits) costs nothing.

The moves between them; what moves them is in jobs.py (the log) and service.py (time, and who asks).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from typing import Any

from topicd.model import TopicConfig
from topicd.shards.delivery.queues.crons import Cron
from topicd.shards.delivery.queues.facts import Kept, Past, Stop, Totals
from topicd.shards.delivery.queues.lanes import GroupLimits, Lane, Lanes
from topicd.shards.delivery.queues.leases import Grant, Leases
from topicd.shards.delivery.queues.options import Options
from topicd.shards.delivery.queues.placed import Placed
from topicd.shards.delivery.queues.uniques import UniqueKeys
from topicd.shards.delivery.topic.part import TopicPart
from topicd.shards.storage.ranges import Ranges

TOGETHER = 256  # jobs that are done together and kept as one


class JobStates(TopicPart):
    def __init__(self, config: TopicConfig) -> None:
        self.lanes = Lanes()
        self.placed = Placed()
        self.leases = Leases()
        self.finishing: dict[int, Grant] = {}  # held, and what ends that is on its way to the log
        self.past: dict[int, Past] = {}
        self.delayed: dict[int, int] = {}  # by seq: until when
        self._delays: list[tuple[int, int]] = []  # (until, seq): a heap of these, and of some that are over
        self.dying: set[int] = set()  # on their way to the dead letters
        self.kept: deque[Kept] = deque()  # done, and readable yet; the oldest first
        self.kept_seqs = Ranges()
        self._kept_by_first: dict[int, Kept] = {}
        self.keys = UniqueKeys()
        self.crons: dict[str, Cron] = {}
        self.paused: Stop | None = None
        self.draining: Stop | None = None
        self.totals = Totals()
        self.damaged = Ranges()  # cannot be read, so nobody gets them
        self.opened = False  # the lanes are filled
        self.stale = False  # records went that nobody told us of: see prune
        self.replaced: list[int] = []  # jobs whose records go because others took their place
        self._withdrawn: dict[int, int] = {}  # by seq, its delay or 0: somebody is about to take its place
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

    # ---- the ones that wait ----

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

    def fill(self, live: Iterable[tuple[int, int]], visible: int) -> None:
        """Fill the lanes: live records, without those that are somewhere else. What is known of records that went, by a
        cap, a TTL or a delete, goes too."""
        self.stale = False
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
            self.set_kept([_cut(row, a, b) for row in self.kept for a, b in alive.within(row.first, row.last)])

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

    def begin_end_whole(self, first: int, last: int, number: int) -> bool:
        """The same of all jobs that were handed out together; False: they are not, or some are not held any more."""
        grant = self.leases.end_whole(first, last, number)
        if grant is None:
            return False
        self.finishing.update(dict.fromkeys(range(first, last + 1), grant))
        return True

    def end_failed(self, seq: int) -> None:
        """It was not stored: whoever held it holds it again."""
        grant = self.finishing.pop(seq, None)
        if grant is not None:
            number = grant.number(seq)
            self.leases.give(seq, seq, number, grant.deadline, grant.node, grant.holder).since = grant.since

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

    # ---- the end ----

    def keep(self, row: Kept) -> None:
        """They are done, and readable for a while."""
        self.kept.append(row)
        self.kept_seqs.add(row.first, row.last)
        self._kept_by_first[row.first] = row

    def set_kept(self, rows: list[Kept]) -> None:
        self.kept, self.kept_seqs = deque(rows), Ranges((row.first, row.last) for row in rows)
        self._kept_by_first = {row.first: row for row in rows}

    def drop_kept(self, gone: Ranges) -> None:
        self.set_kept([_cut(row, a, b) for row in self.kept for a, b in gone.missing(row.first, row.last)])

    def kept_row(self, seq: int) -> Kept:
        """Of a job that is kept. A row has TOGETHER jobs at most, so its beginning is near."""
        first = seq
        while first not in self._kept_by_first:
            first -= 1
        return self._kept_by_first[first]

    def ran(self, seqs: list[int]) -> list[list[Any]]:
        """Of jobs that are about to be kept, ascending: rows of Kept without their time."""
        rows: list[list[Any]] = []
        for seq in seqs:
            grant, past = self.finishing.get(seq), self.past.get(seq)
            facts: list[Any] = [0 if grant is None else grant.since, self.deliveries(seq) + 1]
            facts += [self.lane_of(seq).group.name, "" if past is None else past.reason]
            last = rows[-1] if rows else None
            if last is not None and last[1] + 1 == seq and last[2:] == facts and seq - last[0] < TOGETHER:
                last[1] = seq
            else:
                rows.append([seq, seq, *facts])
        return rows

    def ended(self, first: int, last: int) -> int:
        """There are no such jobs any more. The bytes of their records; -1: that is not known."""
        keyed, placed, size = len(self.keys) > 0, len(self.placed) > 0, -1
        rest: Iterable[int] = range(first, last + 1)
        if not (keyed or placed or self.past or self.delayed):
            # The usual case: all of them were in the hands of somebody who has finished them.
            size, rest = self._finished(first, last)
        for seq in rest:
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
        return size

    def _finished(self, first: int, last: int) -> tuple[int, list[int]]:
        """(the bytes of their records or -1, those that nobody had finished)"""
        finishing, size = self.finishing, 0
        rest: list[int] = []
        seq = first
        while seq <= last:
            grant = finishing.pop(seq, None)
            if grant is None:
                rest.append(seq)
                size = -1
            elif grant.first == seq and grant.last <= last and grant.size >= 0 and size >= 0:
                # All that were handed out together, if none of them has ended in another way: then it is not here.
                size += grant.size
                while seq < grant.last:
                    seq += 1
                    if finishing.pop(seq, None) is not grant:
                        rest.append(seq)
                        size = -1
            else:
                size = -1
            seq += 1
        return size, rest


def _cut(row: Kept, first: int, last: int) -> Kept:
    return row._replace(first=first, last=last)
