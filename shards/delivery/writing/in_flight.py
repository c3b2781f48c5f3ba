"""Batches of a topic on their way, and what becomes of them. Promise: all of them become visible together, or none does
and the topic is as it was before.
"""

from __future__ import annotations

from topicd.errors import TopicdError
from topicd.frames import ts_at
from topicd.limits import FRAME_OVERHEAD
from topicd.shards.delivery.agenda import Agenda
from topicd.shards.delivery.counters import Counters
from topicd.shards.delivery.storing.backlog import Backlog
from topicd.shards.delivery.topic.flight import InFlight
from topicd.shards.delivery.topic.idempotency_keys import IdempotencyKeys
from topicd.shards.delivery.topic.inflows import is_routed
from topicd.shards.delivery.topic.tail import Blob
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.delivery.writing.direct import DirectWrites
from topicd.shards.delivery.writing.durability import Need
from topicd.shards.delivery.writing.outlet import Outlet

_SERVED_FIRST = 8  # followers of a topic; of more, a writer would notice the time that their pushes take


class Commits:
    """Those that have to know when records became visible, or did not."""

    def __init__(
        self,
        counters: Counters,
        agenda: Agenda,
        backlog: Backlog,
        keys: IdempotencyKeys,
        direct: DirectWrites,
        outlets: list[Outlet],
    ) -> None:
        self.counters = counters
        self.agenda = agenda
        self.backlog = backlog
        self.keys = keys
        self.direct = direct
        self.outlets = outlets


class AppendEntry(InFlight):
    __slots__ = ("_commits", "topic")

    def __init__(self, commits: Commits, topic: Topic, need: Need, ts: int) -> None:
        super().__init__(need, topic.seqs.head + 1, ts)
        self._commits = commits
        self.topic = topic

    @property
    def awaited(self) -> bool:
        return 0 < len(self.topic.followers) <= _SERVED_FIRST

    @property
    def took_us(self) -> tuple[int, int, int]:
        topic = self.topic
        return self._commits.outlets[topic.outlet].took_us if topic.policy.logged else (0, 0, 0)

    def committed(self) -> None:
        topic, commits = self.topic, self._commits
        count, content, blob = len(self.offsets), self.content, self.blob()
        topic.flight.leave(self, content)
        topic.commits.stored(self.producers)
        if len(topic.inflows):
            for producer_id, _ in self.producers:
                topic.inflows.stored(producer_id)
        topic.seqs.commit(self.first_seq + count - 1)
        topic.contents.add(blob, count, content, untagged=self.untagged)
        topic.last_write_ms = self.ts
        counters = commits.counters
        counters.appends += 1
        counters.records += count
        counters.bytes_taken += len(self.frames)
        commits.agenda.ready.add(topic)
        commits.backlog.note_records(topic, blob)
        if topic.flight.behind_direct:
            commits.direct.look(topic)

    def failed(self, error: TopicdError) -> None:
        topic, waiting = self.topic, self.topic.flight.behind_direct
        if waiting and waiting[-1].first_seq > self.first_seq:
            self._commits.direct.fail(topic, error)  # what comes later goes first
        topic.flight.leave(self, self.content)
        topic.seqs.roll_back(self.first_seq)
        topic.commits.failed(self.producers)
        for producer_id, batch_no in reversed(self.producers):
            if is_routed(producer_id):
                topic.inflows.failed(producer_id)
            else:
                topic.producers.take_back(producer_id, batch_no)
        if topic.queue is not None:
            for first_seq in reversed(self.optioned):
                topic.queue.take_back(first_seq)
        for key in self.keys:
            self._commits.keys.forget(topic.id, key)
        self.refuse_waiters(error)


class DerivedEntry(AppendEntry):
    """Copies that no log has. Each has its own time; and what is made again may have gone before it was lost."""

    __slots__ = ()

    def blob(self) -> Blob:
        first_ts = ts_at(self.frames, self.offsets[0])
        return Blob(self.frames, 0, len(self.frames), self.first_seq, self.offsets, first_ts, self.ts)

    def committed(self) -> None:
        super().committed()
        floors, floor = self.topic.floors, self.topic.floors.missed_from
        gone = min(floor, self.last_seq + 1) - self.first_seq
        if gone > 0:
            size = self.offsets[gone] if gone < self.count else len(self.frames)
            self.topic.contents.remove(gone, size - FRAME_OVERHEAD * gone)
            floors.advance(self.first_seq + gone)
