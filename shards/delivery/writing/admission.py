"""What refuses a write before its records are looked at. Promise: every limit is here, once; the quick path for plain
appends asks the same question.
"""

from __future__ import annotations

import errno

from topicd.errors import BatchTooLarge, InvalidRequest, NotReady, Throttled, TopicdError, TopicFull
from topicd.limits import FRAME_OVERHEAD, MAX_BATCH_RECORDS
from topicd.shards.delivery.place import Place
from topicd.shards.delivery.removing.retention import Retention
from topicd.shards.delivery.storing.backlog import Backlog
from topicd.shards.delivery.storing.pressure import Pressure
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.delivery.writing.direct import DirectWrites
from topicd.shards.delivery.writing.durability import storage_failed
from topicd.shards.delivery.writing.log import Log

_RETRY_MS = 20


class WriteAdmission:
    def __init__(
        self, place: Place, log: Log, direct: DirectWrites, backlog: Backlog, pressure: Pressure, retention: Retention
    ) -> None:
        self._place = place
        self._log = log
        self._direct = direct
        self._backlog = backlog
        self._pressure = pressure
        self._retention = retention
        self.draining = False

    def refusal(self, topic: Topic, size: int, count: int) -> TopicdError | None:
        """Why a batch of so many bytes, with framing, and so many records is not taken; None: it is."""
        policy, pressure, outlet = topic.policy, self._pressure, self._log.outlets[topic.outlet]
        if self.draining:
            return NotReady("the daemon is stopping", retry_after_ms=500)
        if not 0 < count <= MAX_BATCH_RECORDS:
            code = BatchTooLarge if count else InvalidRequest
            return code(f"a write has 1 to {MAX_BATCH_RECORDS} records, this one says {count}")
        if policy.logged and outlet.read_only_errno:
            return outlet.refusal()
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
        if pressure.failing and policy.logged and pressure.behind:
            return storage_failed(pressure.failing)
        if pressure.full:
            return Throttled(
                "the disk does not keep up: too much waits in memory for its checkpoint",
                limit="checkpoint_bytes",
                retry_after_ms=100,
            )
        if settings.max_total_bytes and (error := self._total_refusal(size)) is not None:
            return error
        return self._cap_refusal(topic, count, size - FRAME_OVERHEAD * count) if policy.capped else None

    def _total_refusal(self, size: int) -> TopicdError | None:
        held, share = self._backlog.total_bytes, self._place.share_of(self._place.settings.max_total_bytes)
        if share is None or held + size <= share:
            return None
        return Throttled(
            f"this shard holds {held} bytes, its share of max_total_bytes is {share}",
            limit="max_total_bytes",
            retry_after_ms=1_000,
        )

    def _cap_refusal(self, topic: Topic, count: int, content: int) -> TopicdError | None:
        policy = topic.policy
        for cap, size, what in ((policy.cap_records, count, "records"), (policy.cap_bytes, content, "bytes")):
            if not cap:
                continue
            if size > cap:
                return InvalidRequest(f"one write of {size} {what} is larger than the whole cap of {cap} {what}")
            if policy.rejects and _used(topic, what) + size > cap:
                self._retention.expire(topic)
                used = _used(topic, what)
                if used + size > cap:
                    return TopicFull(f"topic {topic.name} holds {used} {what} of {cap}", cap=cap, used=used, what=what)
        return None


def _used(topic: Topic, what: str) -> int:
    if what == "records":
        return topic.contents.count + topic.flight.count
    return topic.contents.bytes + topic.flight.bytes
