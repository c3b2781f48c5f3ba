"""The state of a subscription on one shard, without its connection. Promise: after a reconnect it goes on
exactly behind the last record that arrived, whatever the daemon did in between.

The cursors advance when records arrive, not when the user looks at them: what has arrived is kept here and
not asked for again.
"""

from __future__ import annotations

from typing import Any

from topicd.client.batch import Batch
from topicd.client.serial import Match, Start, match_wire, nodes_wire, start_wire
from topicd.client.wire import Fetched, number
from topicd.errors import FormatError, InvalidRequest, TopicdError, TopicNotFound, from_wire
from topicd.ipc.protocol import CREDIT, Op, message
from topicd.limits import SUBSCRIPTION_TOPICS_MAX
from topicd.model import Tombstone, check_topic_name


class Cursor:
    """How far one topic was read. Until the daemon confirmed it, `topic_id` is 0 and `start` says where to
    begin."""

    __slots__ = ("from_seq", "start", "suppress_first", "topic", "topic_id")

    def __init__(self, topic: str, start: dict[str, Any]) -> None:
        self.topic = topic
        self.topic_id = 0
        self.from_seq = 0
        self.start = start
        # Who asks for the earliest there is does not miss what was removed before.
        self.suppress_first = start.get("at") == "earliest"

    def wire(self) -> dict[str, Any]:
        if self.topic_id:
            return {"topic": self.topic, "from_seq": self.from_seq, "epoch": self.topic_id}
        if "ts" in self.start:
            return {"topic": self.topic, "from_ts": self.start["ts"]}
        if self.start.get("at") == "latest":
            return {"topic": self.topic, "tail": True}
        return {"topic": self.topic, "from_seq": self.start.get("seq", 0)}

    def confirmed(self, topic_id: int, from_seq: int) -> None:
        self.topic_id = topic_id
        self.from_seq = from_seq

    def advanced(self, fetched: Fetched) -> Tombstone | None:
        """Moves behind what arrived; the gap to report, if there is one."""
        self.from_seq = fetched.next_from_seq
        found, suppress = fetched.tombstone, self.suppress_first
        self.suppress_first = False
        return None if suppress and found is not None and found.gap_from <= 1 else found


class Wanted:
    """What a watch was asked for, split by shard later."""

    def __init__(
        self,
        topics: str | list[str] | tuple[str, ...],
        start: Start,
        match: Match,
        nodes: str | list[str] | None,
    ) -> None:
        self.start = start_wire(start)
        self.match = match_wire(match)
        self.nodes = nodes_wire(nodes)
        given = [topics] if isinstance(topics, str) else list(topics)
        if not given:
            raise InvalidRequest("watch needs a topic, a list of topics or a pattern")
        patterns = [name for name in given if isinstance(name, str) and name.endswith("*")]
        if patterns and len(given) > 1:
            raise InvalidRequest("a pattern is watched alone, not in a list")
        self.pattern = patterns[0] if patterns else None
        if self.pattern is not None and "*" in self.pattern[:-1]:
            raise InvalidRequest(f"a pattern has one trailing '*', got {self.pattern!r:.300}")
        self.names = [] if patterns else [check_topic_name(name) for name in dict.fromkeys(given)]


class Subscription:
    def __init__(self, wanted: Wanted, names: list[str], window: int) -> None:
        self.cursors = {name: Cursor(name, wanted.start) for name in names}
        self._wanted = wanted
        self._window = window
        self._by_id: dict[int, Cursor] = {}
        self._used = 0
        self.request_id = 0

    @property
    def pattern(self) -> str | None:
        return self._wanted.pattern

    def known(self, name: str, fresh: bool) -> None:
        """A topic that the pattern matches. One that appeared later is read from its first record."""
        if name not in self.cursors:
            self.cursors[name] = Cursor(name, {"seq": 0} if fresh else self._wanted.start)

    def request(self) -> dict[str, Any]:
        if len(self.cursors) > SUBSCRIPTION_TOPICS_MAX:
            raise InvalidRequest(
                f"{len(self.cursors)} topics on one shard; one watch takes {SUBSCRIPTION_TOPICS_MAX}",
                limit=SUBSCRIPTION_TOPICS_MAX,
            )
        body: dict[str, Any] = {
            "topics": [cursor.wire() for cursor in self.cursors.values()],
            "credit": self._window,
        }
        if self._wanted.pattern is not None:
            body["pattern"] = self._wanted.pattern
        if self._wanted.match is not None:
            body["match"] = self._wanted.match
        if self._wanted.nodes is not None:
            body["nodes"] = self._wanted.nodes
        return body

    def accepted(self, answer: dict[str, Any], request_id: int) -> list[str]:
        """The daemon's answer to `request`. Names that the pattern matched and we had not listed are
        returned: they came to be a moment ago and must be asked for from their first record."""
        topics = answer.get("topics")
        if not isinstance(topics, list) or not all(isinstance(entry, dict) for entry in topics):
            raise FormatError(f"the daemon's subscription names no topics but {topics!r:.100}")
        unlisted = []
        self._by_id.clear()
        for entry in topics:
            name = str(entry.get("topic"))
            cursor = self.cursors.get(name)
            if cursor is None:
                unlisted.append(name)
                continue
            cursor.confirmed(number(entry, "topic_id"), number(entry, "from_seq"))
            self._by_id[cursor.topic_id] = cursor
        self.request_id = request_id
        self._used = 0
        return unlisted

    def pushed(self, fetched: Fetched) -> Batch:
        cursor = self._by_id.get(fetched.topic_id)
        if cursor is None:
            raise FormatError(
                f"the daemon pushed records of topic id {fetched.topic_id}, which was not asked for"
            )
        gap = cursor.advanced(fetched)
        return Batch(cursor.topic, fetched if gap is fetched.tombstone else fetched._replace(tombstone=None))

    def noticed(self, notice: dict[str, Any]) -> TopicdError | None:
        """Takes a notice in; what the user has to hear of is returned."""
        event = notice.get("event")
        if event == "topic":
            name = str(notice.get("topic"))
            self.known(name, fresh=True)
            cursor = self.cursors[name]
            if not cursor.topic_id:
                cursor.confirmed(number(notice, "topic_id"), 0)
            self._by_id[cursor.topic_id] = cursor
        elif event == "topic_deleted":
            gone = self._by_id.pop(number(notice, "topic_id"), None)
            if gone is not None:
                self.cursors.pop(gone.topic, None)
                if self._wanted.pattern is None:
                    return TopicNotFound(
                        f"topic {gone.topic} was deleted while it was watched", topic=gone.topic
                    )
        elif event == "error":
            return from_wire(notice)
        return None

    def consumed(self, size: int) -> bytes:
        """Bytes of a push the user is done with: a CREDIT message once it is worth one, else nothing."""
        self._used += size
        if self._used < self._window // 4:
            return b""
        credit, self._used = self._used, 0
        return message(Op.CREDIT, 0, CREDIT.pack(self.request_id, min(credit, 0xFFFFFFFF)))
