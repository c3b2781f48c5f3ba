"""Jobs from the lanes to whoever gets them. Promise: a job is leased before anybody sees it; what does not fit an
answer stays where it was; a record that cannot be read is handed to nobody and keeps nobody else waiting.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any

from topicd._native.interface import Buffer
from topicd.errors import StorageCorrupt, TopicdError
from topicd.frames import FrameType
from topicd.ipc.protocol.wire import JOB
from topicd.limits import MIB
from topicd.model import TopicConfig
from topicd.shards.delivery.queues.jobs import Jobs
from topicd.shards.delivery.queues.lanes import Picked
from topicd.shards.delivery.queues.leases import NUMBERS_AHEAD
from topicd.shards.delivery.queues.rates import Rate
from topicd.shards.delivery.queues.takers import Batch, Taker
from topicd.shards.delivery.queues.tools import Tools
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.delivery.writing.durability import Need

BATCH_BYTES = 8 * MIB  # of the jobs in one answer; one job may be larger


@lru_cache(1_024)
def _rows_struct(count: int) -> struct.Struct:
    return struct.Struct("<" + JOB.format[1:] * count)


def _plain_rows(first: int, last: int, base: int, deadline: int) -> list[int]:
    """Of neighbours that are delivered for the first time."""
    count = last - first + 1
    rows = [1] * (4 * count)
    rows[0::4] = range(first, last + 1)
    rows[1::4] = range(base, base + count)
    rows[2::4] = [deadline] * count
    return rows


class Handing:
    """Of one queue."""

    def __init__(self, tools: Tools, topic: Topic, jobs: Jobs) -> None:
        self._tools = tools
        self._topic = topic
        self._jobs = jobs
        self.rate = Rate()
        self._config: TopicConfig | None = None  # of which the following is known
        self._unlimited = False  # nothing but the number of jobs says how many may go
        self._lease_ms = 0

    def room(self, now_ms: int) -> int:
        """How many more the queue's own limits allow."""
        config = self._topic.config
        room = 1 << 30
        if config.max_in_flight:
            room = config.max_in_flight - self._jobs.in_flight
        if config.rate_per_s:
            room = min(room, self.rate.room(now_ms, config.rate_per_s))
        return room

    def hand_out(self, taker: Taker, most: int, now_ms: int) -> int:
        """At most so many jobs; how many went."""
        jobs = self._jobs
        most = min(most, self.room(now_ms))
        if most <= 0:
            return 0
        picked = jobs.lanes.pick(most, now_ms, jobs.limits)
        if not picked:
            return 0
        parts: list[Buffer] = []
        picked, size = self._read(picked, parts)
        if not picked:
            return 0
        count = sum([one.count for one in picked])
        if self._topic.config.rate_per_s:
            self.rate.take(count, now_ms, self._topic.config.rate_per_s)
        deadline = now_ms + (taker.lease_ms or self._topic.config.lease_ms)
        rows, leased = self._lease(picked, taker, deadline, now_ms)
        self._deliver(taker, Batch(count, rows, parts, size), leased)
        return count

    def hand_next(self, taker: Taker, now_ms: int) -> int:
        """One job, in the usual case: all that wait are plain and have not been handed out before, and nothing is
        limited. Until when it has it; 0: it is to be done as in every other case."""
        topic, jobs = self._topic, self._jobs
        if topic.config is not self._config:
            self._learn()
        lanes = jobs.lanes
        lane = lanes.plain
        usual = self._unlimited and lane.active and lane.ready == lanes.ready
        if not usual or lane.back or jobs.past or len(jobs.keys):
            return 0
        seq = lane.fresh[0][0]
        frame = self._tools.ahead.one(topic, seq)
        if frame is None:
            return 0
        lanes.take_next()
        leases = jobs.leases
        number, deadline = leases.next_number, now_ms + (taker.lease_ms or self._lease_ms)
        leases.next_number = number + 1
        grant = leases.give(seq, seq, number, deadline, taker.node, taker.holder)
        grant.since, grant.size = now_ms, len(frame)
        if leases.needs_mark:
            self._mark()
        self._tools.reader.delivered += 1
        taker.deliver_one(topic, lanes.ready, seq, number, deadline, frame)
        return deadline

    def _learn(self) -> None:
        config = self._config = self._topic.config
        limited = config.max_in_flight or config.rate_per_s or config.claim_jitter_ms
        self._unlimited = not limited and not self._jobs.logs_leases
        self._lease_ms = config.lease_ms

    # ---- reading ----

    def _read(self, picked: list[Picked], parts: list[Buffer]) -> tuple[list[Picked], int]:
        """Their frames, as far as they fit; what does not goes back. What was read, and its size."""
        jobs, size = self._jobs, 0
        taken: list[Picked] = []
        for index, one in enumerate(picked):
            room = BATCH_BYTES - size
            if taken and room <= 0:
                self._put_back(picked[index:])
                break
            try:
                answer = self._tools.ahead.fetch(self._topic, one.first, one.count, max(room, 1))
            except StorageCorrupt as error:
                self._note_damaged(one, error)
                self._put_back(picked[index + 1 :])
                break
            if answer.next_from != one.first + answer.count - 1 or not answer.count:
                # Its record is not where it should be: look again at what there is.
                jobs.stale = True
                self._put_back(picked[index:])
                break
            if taken and size + answer.bytes > BATCH_BYTES:
                self._put_back(picked[index:])
                break
            parts += answer.parts
            size += answer.bytes
            one.size = answer.bytes
            if answer.count < one.count:
                rest = Picked(one.first + answer.count, one.last, one.lane, one.back)
                one.last = rest.first - 1
                taken.append(one)
                self._put_back([rest, *picked[index + 1 :]])
                break
            taken.append(one)
        self._tools.reader.delivered += sum([one.count for one in taken])
        return taken, size

    def _put_back(self, picked: list[Picked]) -> None:
        for one in reversed(picked):
            self._jobs.lanes.put_back(one, 0)

    def _note_damaged(self, one: Picked, error: StorageCorrupt) -> None:
        jobs = self._jobs
        first = max(one.first, int(error.detail.get("first_seq", one.first)))
        last = min(one.last, int(error.detail.get("last_seq", one.last)))
        if first > last:
            first, last = one.first, one.last
        jobs.damaged.add(first, last)
        if last < one.last:
            self._put_back([Picked(last + 1, one.last, one.lane, one.back)])
        if one.first < first:
            self._put_back([Picked(one.first, first - 1, one.lane, one.back)])
        group = one.lane.group
        for _ in range(last - first + 1):
            if group.name:
                jobs.lanes.ended(group)

    # ---- leasing ----

    def _lease(self, picked: list[Picked], taker: Taker, deadline: int, now_ms: int) -> tuple[bytes, list[list[Any]]]:
        """(rows of the answer, what the log is told of leases)"""
        jobs, leases = self._jobs, self._jobs.leases
        keyed, logged = len(jobs.keys) > 0, jobs.logs_leases
        flat: list[int] = []
        told: list[list[Any]] = []
        for one in picked:
            first, last, base = one.first, one.last, leases.next_number
            leases.next_number = base + last - first + 1
            grant = leases.give(first, last, base, deadline, taker.node, taker.holder)
            grant.since, grant.size = now_ms, one.size
            if jobs.past or keyed:
                for seq in range(first, last + 1):
                    flat += (seq, base + seq - first, deadline, jobs.deliveries(seq) + 1)
                    if keyed:
                        jobs.keys.started(seq)
            elif last == first:
                flat += (first, base, deadline, 1)
            else:
                flat += _plain_rows(first, last, base, deadline)
            if logged:
                told.append([first, last, base, deadline, taker.node])
        if leases.needs_mark:
            self._mark()
        return _rows_struct(len(flat) // 4).pack(*flat), told

    def _mark(self) -> None:
        """Numbers up to there may be given out in this run. Not waited for: what outlives this process is enough."""
        leases, mark = self._jobs.leases, self._jobs.leases.next_number + NUMBERS_AHEAD
        leases.marked = mark
        self._tools.log.change(
            self._topic,
            FrameType.LEASE,
            {"mark": mark},
            seq=self._topic.seqs.head,
            need=Need.PLACED,
            numbered=True,
        )

    def _deliver(self, taker: Taker, batch: Batch, leased: list[list[Any]]) -> None:
        topic, jobs = self._topic, self._jobs
        taker.taken()
        if not leased or not topic.policy.logged:
            taker.deliver(topic, jobs.ready, batch)
            return
        body = {"at": self._tools.clock.now_ms(), "lease": leased}

        def applied() -> None:
            jobs.replay(FrameType.LEASE, body, 0)
            taker.deliver(topic, jobs.ready, batch)

        def refused(error: TopicdError) -> None:
            now = self._tools.clock.now_ms()
            for first, last, *_ in leased:
                for seq in range(first, last + 1):
                    jobs.release(seq, now)
            taker.not_granted(error)

        self._tools.log.change(
            topic,
            FrameType.LEASE,
            body,
            seq=topic.seqs.head,
            need=topic.policy.need,
            applied=applied,
            refused=refused,
            numbered=True,
        )
