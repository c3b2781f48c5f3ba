"""What refuses a write before its records are looked at. Promise: every limit is here, once; the quick path for plain
appends asks the same question; a batch for which room is held is measured against no limit of what is stored again.
"""

from __future__ import annotations

import errno

from topicd.errors import (
    BatchTooLarge,
    Conflict,
    InvalidRequest,
    NotReady,
    RecordTooLarge,
    Throttled,
    TopicdError,
    TopicFull,
)
from topicd.ipc.pressure import Board
from topicd.limits import FRAME_OVERHEAD, MAX_BATCH_RECORDS
from topicd.model import TopicConfig
from topicd.shards.delivery.place import Place
from topicd.shards.delivery.removing.retention import Retention
from topicd.shards.delivery.storing.backlog import Backlog
from topicd.shards.delivery.storing.pressure import Pressure
from topicd.shards.delivery.topic.policy import Policy
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.delivery.writing.direct import DirectWrites
from topicd.shards.delivery.writing.durability import storage_failed
from topicd.shards.delivery.writing.log import Log

_RETRY_MS = 20
_PRESSED_MS = 200  # two looks of the supervisor


class WriteAdmission:
    def __init__(
        self,
        place: Place,
        log: Log,
        direct: DirectWrites,
        backlog: Backlog,
        pressure: Pressure,
        retention: Retention,
        board: Board,
    ) -> None:
        self._place = place
        self._log = log
        self._direct = direct
        self._backlog = backlog
        self._pressure = pressure
        self._retention = retention
        self._board = board
        self.draining = False

    def refusal(self, topic: Topic, size: int, count: int, producer_id: int = 0) -> TopicdError | None:
        """Why a batch of so many bytes, with framing, and so many records is not taken; None: it is."""
        policy, pressure, outlet = topic.policy, self._pressure, self._log.outlets[topic.outlet]
        if self.draining:
            return NotReady("the daemon is stopping", retry_after_ms=500)
        if not 0 < count <= MAX_BATCH_RECORDS:
            code = BatchTooLarge if count else InvalidRequest
            return code(f"a write has 1 to {MAX_BATCH_RECORDS} records, this one says {count}")
        granted = False
        if len(topic.commits):
            if topic.commits.is_fenced(producer_id):
                return Conflict(f"this commit into topic {topic.name} is being abandoned", topic=topic.name)
            content = size - FRAME_OVERHEAD * count
            granted = topic.commits.covers(producer_id, count, content, self._place.clock.now_ms())
        if policy.logged and outlet.read_only_errno:
            return outlet.refusal()
        if not granted and (error := _drained(topic)) is not None:
            return error
        if topic.flight.debris:
            return storage_failed(pressure.failing or errno.EIO)
        settings = self._place.settings
        under_way = outlet.in_flight_bytes + self._direct.bytes
        if under_way and under_way + size > settings.max_inflight_bytes:
            return Throttled(
                f"{under_way} bytes are under way, {settings.max_inflight_bytes} are allowed",
                limit="max_inflight_bytes",
                retry_after_ms=_RETRY_MS,
            )
        if self._board.refusing and policy.logged and outlet.full:
            return Throttled(
                "the daemon is under full pressure and this topic's way to the log is full",
                limit="pressure",
                retry_after_ms=_PRESSED_MS,
            )
        if pressure.failing and policy.logged and pressure.behind:
            return storage_failed(pressure.failing)
        if pressure.full:
            return Throttled(
                "the disk does not keep up: too much waits in memory for its checkpoint",
                limit="checkpoint_bytes",
                retry_after_ms=100,
            )
        if granted:
            return None
        if settings.max_total_bytes and (error := self._total_refusal(size)) is not None:
            return error
        if not policy.capped:
            return None
        return self._cap_refusal(topic, producer_id, count, size - FRAME_OVERHEAD * count)

    def first_refusal(self, config: TopicConfig, size: int, count: int) -> TopicdError | None:
        """Why a topic of this configuration would not take such a first write."""
        if self.draining:
            return NotReady("the daemon is stopping", retry_after_ms=500)
        if self._pressure.full:
            return Throttled("the disk does not keep up", limit="checkpoint_bytes", retry_after_ms=100)
        if self._place.settings.max_total_bytes and (error := self._total_refusal(size)) is not None:
            return error
        policy = Policy(config, internal=False)
        return _never_fits(policy, count, size - FRAME_OVERHEAD * count) if policy.rejects else None

    def _total_refusal(self, size: int) -> TopicdError | None:
        limit = self._place.settings.max_total_bytes
        if size <= self._place.tally.room(self._backlog.total_bytes, limit):
            return None
        return Throttled(
            f"there are nearly {limit} bytes, and no more may be stored (max_total_bytes)",
            limit="max_total_bytes",
            max=limit,
            retry_after_ms=1_000,
        )

    def commit_refusal(self, topic: Topic, producer_id: int, count: int, content: int) -> TopicdError | None:
        """Why no room can be held for so much; None: it can. A topic that discards the old has always room, one that
        rejects says so before anything is decided."""
        if self.draining:
            return NotReady("the daemon is stopping", retry_after_ms=500)
        outlet = self._log.outlets[topic.outlet]
        if topic.policy.logged and outlet.read_only_errno:
            return outlet.refusal()
        if (error := _drained(topic)) is not None:
            return error
        if self._place.settings.max_total_bytes and (error := self._total_refusal(content)) is not None:
            return error
        self._retention.expire(topic)
        return self._full(topic, producer_id, count, content)

    def _cap_refusal(self, topic: Topic, producer_id: int, count: int, content: int) -> TopicdError | None:
        policy = topic.policy
        if policy.rejects and (error := _never_fits(policy, count, content)) is not None:
            return error
        if self._full(topic, producer_id, count, content) is None:
            return None
        self._retention.expire(topic)
        return self._full(topic, producer_id, count, content)

    def _full(self, topic: Topic, producer_id: int, count: int, content: int) -> TopicFull | None:
        """With what is under way, and what is held for commits of others."""
        policy = topic.policy
        if not policy.rejects:
            return None
        commits, held, held_bytes = topic.commits, 0, 0
        if len(commits):
            held, held_bytes = commits.held(producer_id, self._place.clock.now_ms())
        contents, flight = topic.contents, topic.flight
        places = (
            (policy.cap_records, contents.count + flight.count, held, count, "records"),
            (policy.cap_bytes, contents.bytes + flight.bytes, held_bytes, content, "bytes"),
        )
        for cap, used, kept, size, what in places:
            if cap and used + kept + size > cap:
                message = f"topic {topic.name} holds {used} {what} of {cap}"
                if kept:
                    message += f", {kept} are kept for commits under way"
                return TopicFull(
                    f"{message}: {size} more do not fit",
                    cap=cap,
                    used=used,
                    held=kept,
                    what=what,
                    topic=topic.name,
                    cap_records=policy.cap_records,
                    cap_bytes=policy.cap_bytes,
                    head_seq=topic.seqs.visible,
                    earliest_seq=topic.floors.earliest,
                )
        return None


def _drained(topic: Topic) -> TopicdError | None:
    if topic.queue is None or topic.queue.draining is None:
        return None
    return Conflict(f"queue {topic.name} is being drained: it takes no jobs", topic=topic.name)


def _never_fits(policy: Policy, count: int, content: int) -> TopicdError | None:
    """A topic that refuses what is too much can never take a write that is larger than all it may hold."""
    for cap, size, what in ((policy.cap_records, count, "records"), (policy.cap_bytes, content, "bytes")):
        if cap and size > cap:
            return RecordTooLarge(
                f"one write of {size} {what} is larger than the whole cap of {cap} {what}", cap=cap, what=what
            )
    return None
