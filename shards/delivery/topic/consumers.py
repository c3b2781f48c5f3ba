"""Named durable consumers: cursors in the log. Promise: an acknowledgement is stored as the topic's class says
before it is answered; with `retain: acked` what every consumer acknowledged is deleted, silently, and what any
has not is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from topicd.errors import Conflict, ConsumerNotFound, Throttled, TopicdError
from topicd.frames import FrameType, control_frame
from topicd.model import Durability
from topicd.shards.delivery.writing.outlet import NEED_OF, ControlEntry, Need

if TYPE_CHECKING:
    from topicd.shards.delivery.actor import Actor
    from topicd.shards.delivery.topic.topic import Topic

Done = Callable[[dict[str, Any] | None, TopicdError | None], None]
Start = tuple[str, int]  # as a checked message says it: earliest, latest, seq or ts
CONSUMERS_MAX = 1_000  # per topic


@dataclass(slots=True)
class Cursor:
    """A named consumer: up to where it has acknowledged."""

    name: str
    acked: int
    updated_ms: int

    def to_wire(self) -> list[Any]:
        return [self.name, self.acked, self.updated_ms]


class Cursors:
    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    def rows(self, topic: Topic) -> list[dict[str, Any]]:
        return [self._row(topic, cursor) for _, cursor in sorted(topic.consumers.items())]

    def state(self, topic: Topic, name: str) -> dict[str, Any]:
        return self._row(topic, self._get(topic, name))

    def replay(self, topic: Topic, body: dict[str, Any], ts: int) -> None:
        """Requests that were under way together: the first to open wins, an acknowledgement only goes forward and
        does not bring a removed consumer back."""
        name, acked, action = str(body["name"]), body["acked"], body["action"]
        known = topic.consumers.get(name)
        if action == "open":
            counts = known is None
        elif action == "ack":
            counts = known is not None and known.acked < acked
        else:
            counts = True
        if counts and acked is None:
            topic.consumers.pop(name, None)
        elif counts:
            topic.consumers[name] = Cursor(name, int(acked), ts)

    def largest_lag(self, topic: Topic) -> int:
        """Of the consumer that is furthest behind; 0 without consumers."""
        return max((self._lag(topic, cursor) for cursor in topic.consumers.values()), default=0)

    @staticmethod
    def _lag(topic: Topic, cursor: Cursor) -> int:
        return max(0, topic.visible - max(cursor.acked, topic.earliest - 1))

    def free_acked(self, topic: Topic) -> None:
        """retain: acked. A topic nobody consumes by name keeps everything."""
        if topic.config.retain != "acked" or not topic.consumers:
            return
        through = min(topic.visible, *(cursor.acked for cursor in topic.consumers.values()))
        if through >= topic.earliest:
            self._actor.deletion.free_through(topic, through)

    def open(self, topic: Topic, name: str, start: Start | None, done: Done) -> None:
        cursor = topic.consumers.get(name)
        if cursor is not None:
            done({**self._row(topic, cursor), "created": False}, None)
            return
        if len(topic.consumers) >= CONSUMERS_MAX:
            raise Throttled(f"{CONSUMERS_MAX} consumers exist already", limit="consumers", retry_after_ms=1_000)

        def opened(row: dict[str, Any] | None, error: TopicdError | None) -> None:
            done(None if row is None else {**row, "created": True}, error)

        self._log(topic, "open", name, self._start(topic, start), opened)

    def ack(self, topic: Topic, name: str, seq: int, done: Done) -> None:
        cursor = self._get(topic, name)
        if self._at_seq(topic, seq) <= cursor.acked:
            done(self._row(topic, cursor), None)
        else:
            self._log(topic, "ack", name, seq, done)

    def reset(self, topic: Topic, name: str, start: Start | None, done: Done) -> None:
        self._get(topic, name)
        self._log(topic, "reset", name, self._start(topic, start), done)

    def remove(self, topic: Topic, name: str, done: Done) -> None:
        self._get(topic, name)
        self._log(topic, "remove", name, None, done)

    def _log(self, topic: Topic, action: str, name: str, acked: int | None, done: Done) -> None:
        now = self._actor.clock.now_ms()
        number = topic.begin_change()
        body = {"action": action, "name": name, "acked": acked, "no": number}

        def stored() -> None:
            topic.end_change(number)
            self.replay(topic, body, now)
            self.free_acked(topic)
            cursor = topic.consumers.get(name)
            if cursor is not None:
                done(self._row(topic, cursor), None)
            elif action == "remove":
                done({"name": name}, None)
            else:
                done(None, self._not_found(topic, name))

        def refused(error: TopicdError) -> None:
            topic.end_change(number)
            done(None, error)

        need = max(NEED_OF[Durability(topic.config.durability)], Need.WRITTEN)
        frame = control_frame(FrameType.CURSOR, topic.id, acked or 0, now, body)
        self._actor.submit_control(topic, frame, ControlEntry(need, stored, refused))

    def _start(self, topic: Topic, start: Start | None) -> int:
        """The seq up to which a consumer counts as having acknowledged everything."""
        kind, at = start or ("earliest", 0)
        if kind == "earliest":
            return topic.earliest - 1
        if kind == "latest":
            return topic.visible
        return self._at_seq(topic, at) if kind == "seq" else self._actor.reader.start_at(topic, at)

    @staticmethod
    def _at_seq(topic: Topic, seq: int) -> int:
        if seq > topic.visible:
            raise Conflict(f"seq {seq} does not exist yet, the newest is {topic.visible}", head_seq=topic.visible)
        return seq

    def _get(self, topic: Topic, name: str) -> Cursor:
        cursor = topic.consumers.get(name)
        if cursor is None:
            raise self._not_found(topic, name)
        return cursor

    @staticmethod
    def _not_found(topic: Topic, name: str) -> ConsumerNotFound:
        return ConsumerNotFound(f"topic {topic.name!r} has no consumer {name!r}", topic=topic.name, name=name)

    def _row(self, topic: Topic, cursor: Cursor) -> dict[str, Any]:
        return {
            "name": cursor.name,
            "acked_seq": cursor.acked,
            "head_seq": topic.visible,
            "lag": self._lag(topic, cursor),
            "updated_ts": cursor.updated_ms,
            "topic_id": topic.id,
        }
