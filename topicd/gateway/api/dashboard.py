"""The stream that feeds the dashboard's pages. Contract: docs/dashboard.md. Promise: one stream per page carries the
pulse of the daemon and, if asked for, the newest records of a topic, at most RATE_MAX a second; what is left out is
counted.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import msgspec

from topicd.gateway.api.topics import known_name
from topicd.gateway.batches import TopicBatch
from topicd.gateway.dashboard.pulse import STEP_S
from topicd.gateway.dashboard.showing import shown
from topicd.gateway.endpoints import Call, endpoint
from topicd.gateway.keys import GUEST, READING_GUEST, require, require_name
from topicd.gateway.schemas import clamp
from topicd.gateway.sse import RETRY, EventStream, error_frame, frame
from topicd.gateway.tails import Tail
from topicd.gateway.web.messages import Reply

RATE_MAX = 200
_RATE = 20
_FLUSH_S = 0.25

_text = msgspec.json.encode


@endpoint(
    "GET",
    "/dashboard/stream",
    kind="pulse",
    query={"tail": "a topic whose newest records are told, too", "rate": "of these, at most so many a second"},
    answers={200: "a stream", 404: "no such topic"},
)
async def stream(call: Call) -> Reply | None:
    """Everything a page shows that moves: hello, history, tick; of a tail also records and skipped."""
    service = call.service
    topic = call.params.get("tail", "")
    if topic:
        known_name(topic)
        require(call.rights, ("read",))
        require_name(call.rights, topic)
    with service.usage.stream(call.key):
        follower = Newest(clamp(call.number("rate", _RATE), 1, RATE_MAX))
        if topic:
            await service.shards.id_of(topic)  # an absent one is an answer, not an event
        tail = await service.tails.follow(topic, follower) if topic else None
        try:
            events = call.events()
            await _feed(call, events, follower if tail is not None else None)
        finally:
            if tail is not None:
                service.tails.unfollow(tail, follower)
    return None


async def _feed(call: Call, events: EventStream, follower: Newest | None) -> None:
    service = call.service
    reads = "read" in call.rights.scopes and not call.rights.prefixes
    events.write(RETRY)
    events.write(frame(b"hello", _text(_hello(call))))
    events.write(frame(b"history", _text({"step_s": STEP_S, "rows": list(service.pulse.history)})))

    def told(whole: bytes, bare: bytes) -> None:
        if events.has_room():
            events.write(frame(b"tick", whole if reads else bare))

    end = service.pulse.watch(told)
    telling = asyncio.ensure_future(_tell(events, follower)) if follower is not None else None
    try:
        await events.until_over()
    finally:
        end()
        if telling is not None:
            telling.cancel()


def _hello(call: Call) -> dict[str, Any]:
    service, rights = call.service, call.rights
    return {
        "tokens": service.keys.needed,
        "guest": rights in (GUEST, READING_GUEST),
        "name": rights.name,
        "scopes": sorted(rights.scopes),
        "prefixes": list(rights.prefixes),
        "chat": service.settings.chat,
        "run_dir": str(service.settings.run_dir) if not rights.prefixes and "admin" in rights.scopes else "",
        "ready": service.ready,
    }


class Newest:
    """The newest records of a topic, as many as may be told; those between are counted."""

    def __init__(self, rate: int) -> None:
        self._each = max(1, int(rate * _FLUSH_S))
        self._found: deque[Any] = deque(maxlen=self._each)
        self._came = 0
        self.over = ""  # why nothing more comes

    def pushed(self, tail: Tail, batch: TopicBatch) -> None:
        self._came += batch.count
        self._found.extend(batch.records[-self._each :])

    def ended(self, tail: Tail) -> None:
        self.over = "topic_deleted"

    def failed(self, tail: Tail) -> None:
        self.over = "internal"

    def take(self) -> tuple[list[dict[str, Any]], int]:
        """What there is to tell, and how many came beside it."""
        found, came = list(self._found), self._came
        self._found.clear()
        self._came = 0
        return [shown(record) for record in found], came - len(found)


async def _tell(events: EventStream, follower: Newest) -> None:
    while not follower.over:
        rows, skipped = follower.take()
        if rows and events.has_room():
            events.write(frame(b"records", _text({"records": rows, "skipped": skipped})))
        await asyncio.sleep(_FLUSH_S)
    events.write(error_frame(404 if follower.over == "topic_deleted" else 500, follower.over))
