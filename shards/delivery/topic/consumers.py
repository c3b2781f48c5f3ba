"""Named durable consumers: cursors in the log. Promise: an acknowledgement is stored as the topic's class says
before it is answered; with `retain: acked` what every consumer acknowledged is deleted, silently, and what any
has not is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from topicd.errors import Conflict, ConsumerNotFound, InvalidRequest, Throttled, TopicdError
from topicd.frames import FrameType, control_frame
from topicd.limits import MAX_SEQ, TOPIC_NAME, TOPIC_NAME_RULE
from topicd.model import Durability, check_topic_name
from topicd.shards.delivery.writing.outlet import NEED_OF, ControlEntry, Need

if TYPE_CHECKING:
    from topicd.shards.delivery.actor import Actor
    from topicd.shards.delivery.topic.topic import Topic

Done = Callable[[dict[str, Any] | None, TopicdError | None], None]
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

    def handle(self, fields: dict[str, Any], done: Done) -> None:
        topic = self._actor.topics.get(check_topic_name(fields.get("topic")))
        self._actor.retention.expire(topic)
        action = fields.get("action")
        if action == "list":
            rows = [self._row(topic, cursor) for _, cursor in sorted(topic.consumers.items())]
            done({"consumers": rows}, None)
            return
        name = _check_name(fields.get("name"))
        if action == "open":
            self._open(topic, name, fields, done)
        elif action == "ack":
            self._ack(topic, self._get(topic, name), fields.get("seq"), done)
        elif action == "reset":
            self._get(topic, name)
            self._log(topic, action, name, self._start(topic, fields.get("start")), done)
        elif action == "remove":
            self._get(topic, name)
            self._log(topic, action, name, None, done)
        elif action == "state":
            done(self._row(topic, self._get(topic, name)), None)
        else:
            raise InvalidRequest(f"action must be open, ack, list, reset, remove or state, not {action!r:.50}")

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

    def _open(self, topic: Topic, name: str, fields: dict[str, Any], done: Done) -> None:
        cursor = topic.consumers.get(name)
        if cursor is not None:
            done({**self._row(topic, cursor), "created": False}, None)
            return
        if len(topic.consumers) >= CONSUMERS_MAX:
            raise Throttled(f"{CONSUMERS_MAX} consumers exist already", limit="consumers", retry_after_ms=1_000)

        def opened(row: dict[str, Any] | None, error: TopicdError | None) -> None:
            done(None if row is None else {**row, "created": True}, error)

        self._log(topic, "open", name, self._start(topic, fields.get("start")), opened)

    def _ack(self, topic: Topic, cursor: Cursor, seq: Any, done: Done) -> None:
        if isinstance(seq, bool) or not isinstance(seq, int) or not 0 <= seq <= MAX_SEQ:
            raise InvalidRequest(f"seq must be an integer from 0, not {seq!r:.50}")
        if self._at_seq(topic, seq) <= cursor.acked:
            done(self._row(topic, cursor), None)
            return
        self._log(topic, "ack", cursor.name, seq, done)

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

    def _start(self, topic: Topic, start: Any) -> int:
        """The seq up to which a consumer counts as having acknowledged everything."""
        if start is None or start == {"at": "earliest"}:
            return topic.earliest - 1
        if start == {"at": "latest"}:
            return topic.visible
        if isinstance(start, dict):
            for key, low in (("seq", 0), ("ts", 0)):
                value = start.get(key)
                if isinstance(value, int) and not isinstance(value, bool) and low <= value <= MAX_SEQ:
                    return self._at_seq(topic, value) if key == "seq" else self._actor.reader.start_at(topic, value)
        raise InvalidRequest(f"start must be {{at: earliest or latest}}, {{seq: n}} or {{ts: ms}}, not {start!r:.100}")

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


def _check_name(name: Any) -> str:
    if not isinstance(name, str) or not TOPIC_NAME.fullmatch(name):
        raise InvalidRequest(f"consumer name {name!r:.300} is not allowed: {TOPIC_NAME_RULE}")
    return name
