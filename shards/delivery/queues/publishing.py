"""Jobs with options, on their way in. Promise: what is asked for is checked before anything is stored, and stands in
the log with the jobs, so that a crash keeps both or neither; of a key there is one job that waits or runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from topicd.errors import NotAQueue, TopicdError
from topicd.frames import FrameType, control_frame
from topicd.shards.delivery.place import Place
from topicd.shards.delivery.queues import options
from topicd.shards.delivery.queues.jobs import Jobs
from topicd.shards.delivery.queues.options import Asked
from topicd.shards.delivery.reading.live import LiveRecords
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.delivery.writing.log import Log

Told = Callable[[int, TopicdError | None], None]


class Publishing:
    def __init__(self, place: Place, log: Log, live: LiveRecords) -> None:
        self._clock = place.clock
        self._log = log
        self._live = live
        # Set by the queues: a look at one as it is now; and a word that one of its jobs may have become ready.
        self.look: Callable[[Topic], Jobs] = _no_queues
        self.moved: Callable[[Topic], None] = lambda topic: None

    def parse(self, topic: Topic, packed: memoryview, count: int) -> Asked:
        if topic.queue is None:
            raise NotAQueue(f"topic {topic.name!r} is a log: its records have no options", topic=topic.name)
        return options.parse(packed, count, self._clock.now_ms())

    def holder(self, topic: Topic, asked: Asked, told: Told) -> int:
        """The job that has the key, and keeps it; 0: the new one is stored. A job that waits may give way, or get the
        time of the new one: `told` says when that is stored."""
        if not asked.key:
            return 0
        jobs, now = self.look(topic), self._clock.now_ms()
        held = jobs.keys.holder(asked.key, now)
        if held is None:
            return 0
        if asked.on_conflict != "drop" and self._waits(topic, jobs, held.seq):
            if asked.on_conflict == "replace":
                asked.replaces = held.seq
                return 0
            asked.rescheduled = True
            self._reschedule(topic, jobs, held.seq, asked.rows[0].ready_at or now, told)
        return held.seq

    def _waits(self, topic: Topic, jobs: Jobs, seq: int) -> bool:
        if seq > topic.seqs.visible or not (seq in jobs.delayed or jobs.is_waiting(seq)):
            return False
        return self._live.first_from(topic, seq) == seq

    def _reschedule(self, topic: Topic, jobs: Jobs, seq: int, ready_at: int, told: Told) -> None:
        body: dict[str, Any] = {"at": self._clock.now_ms(), "sched": [[seq, ready_at]]}
        before = jobs.withdraw(seq)

        def stored() -> None:
            jobs.replay(FrameType.LEASE, body, 0)
            self.moved(topic)
            told(seq, None)

        def refused(error: TopicdError) -> None:
            jobs.put_again(seq, before)
            told(seq, error)

        self._log.change(
            topic,
            FrameType.LEASE,
            body,
            seq=topic.seqs.head,
            need=topic.policy.need,
            applied=stored,
            refused=refused,
            numbered=True,
        )

    @staticmethod
    def frame(topic: Topic, asked: Asked, first_seq: int, count: int, ts: int) -> bytes:
        """What stands in the log before the jobs. The queue knows of it from now on, and forgets it if they fail."""
        jobs = topic.queue
        assert jobs is not None
        rows = asked.at(first_seq)
        body: dict[str, Any] = {"n": count, "opts": [row.to_log() for row in rows]}
        if asked.replaces:
            body["replaces"] = asked.replaces
        if asked.tick is not None:
            body["tick"] = list(asked.tick)
        jobs.announce(first_seq, rows, asked.replaces, asked.tick)
        return control_frame(FrameType.LEASE, topic.id, first_seq, ts, body, more=True)


def _no_queues(topic: Topic) -> Jobs:
    raise NotImplementedError
