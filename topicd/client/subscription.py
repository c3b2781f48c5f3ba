"""The state of a subscription on one shard, without its connection. Promise: after a reconnect it goes on
exactly behind the last record that arrived, whatever the daemon did in between.

The cursors advance when records arrive, not when the user looks at them: what has arrived is kept here and
not asked for again.
"""

from __future__ import annotations

from typing import Any

from topicd._native import core
from topicd.client.batch import Batch
from topicd.client.directory import Directory
from topicd.client.serial import Match, Start, match_wire, nodes_wire, start_wire
from topicd.client.wire import Fetched, number
from topicd.errors import FormatError, InvalidRequest, TopicdError, TopicNotFound, from_wire
from topicd.frames import parse_header
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import CREDIT, message
from topicd.limits import MAX_SEQ, SUBSCRIPTION_TOPICS_MAX
from topicd.model import check_topic_name


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
        return {"topic": self.topic, **position_wire(self.start)}

    def confirmed(self, topic_id: int, from_seq: int) -> None:
        self.topic_id = topic_id
        self.from_seq = from_seq

    def advanced(self, fetched: Fetched) -> Fetched:
        """Moves behind what arrived; what of it is new."""
        if fetched.records and parse_header(fetched.buffer, fetched.start).seq <= self.from_seq:
            fetched = _behind(fetched, self.from_seq)
        self.from_seq = max(self.from_seq, fetched.next_from_seq)
        gap, suppress = fetched.tombstone, self.suppress_first
        self.suppress_first = False
        if gap is not None and suppress and gap.gap_from <= 1:
            fetched = fetched._replace(tombstone=None)
        return fetched


def _behind(fetched: Fetched, seq: int) -> Fetched:
    """Without the records up to seq."""
    found = core.select_frames(
        fetched.buffer, fetched.start, fetched.end, seq, MAX_SEQ, MAX_SEQ, MAX_SEQ, 0, None, None, (), b""
    )
    view = memoryview(fetched.buffer)
    frames = b"".join(view[start:end] for start, end in found.ranges)
    return fetched._replace(buffer=frames, start=0, end=len(frames), records=found.count)


def position_wire(start: dict[str, Any]) -> dict[str, Any]:
    if "ts" in start:
        return {"from_ts": start["ts"]}
    if start.get("at") == "latest":
        return {"tail": True}
    return {"from_seq": start.get("seq", 0)}


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
        self.resumed = False  # it was accepted before
        self._wanted = wanted
        self._window = window
        self._by_id: dict[int, Cursor] = {}
        self._used = 0
        self._request_id = 0

    @property
    def empty(self) -> bool:
        return not self.cursors and self._wanted.pattern is None

    def request(self) -> dict[str, Any]:
        # Beyond the limit, those who would have the least to skip are read from the start once more, and skipped.
        listed = sorted(self.cursors.values(), key=lambda cursor: -cursor.from_seq)[:SUBSCRIPTION_TOPICS_MAX]
        if len(listed) < len(self.cursors) and self._wanted.pattern is None:
            raise InvalidRequest(
                f"{len(self.cursors)} topics on one shard; one watch takes {SUBSCRIPTION_TOPICS_MAX}",
                limit=SUBSCRIPTION_TOPICS_MAX,
            )
        body: dict[str, Any] = {"topics": [cursor.wire() for cursor in listed], "credit": self._window}
        if self._wanted.pattern is not None:
            # Topics we have not heard of: where the user said at first, later from their first record.
            body["pattern"] = self._wanted.pattern
            body.update(position_wire({"seq": 0} if self.resumed else self._wanted.start))
        if self._wanted.match is not None:
            body["match"] = self._wanted.match
        if self._wanted.nodes is not None:
            body["nodes"] = self._wanted.nodes
        return body

    def accepted(self, answer: dict[str, Any], request_id: int) -> None:
        """The daemon's answer to `request`."""
        topics = answer.get("topics")
        if not isinstance(topics, list) or not all(isinstance(entry, dict) for entry in topics):
            raise FormatError(f"the daemon's subscription names no topics but {topics!r:.100}")
        self._by_id.clear()
        for entry in topics:
            self._known(str(entry.get("topic")), number(entry, "topic_id"), number(entry, "from_seq"))
        self.resumed = True
        self._request_id = request_id
        self._used = 0

    def _known(self, name: str, topic_id: int, from_seq: int) -> None:
        cursor = self.cursors.get(name)
        if cursor is None:
            cursor = self.cursors[name] = Cursor(name, {"seq": 0} if self.resumed else self._wanted.start)
        if cursor.topic_id != topic_id:
            cursor.confirmed(topic_id, from_seq)
        self._by_id[topic_id] = cursor

    def missing(self, error: TopicNotFound) -> bool:
        """A topic is gone that was there before. True if the subscription can go on without it."""
        name = error.detail.get("topic")
        return self.resumed and self.cursors.pop(str(name), None) is not None and not self.empty

    def pushed(self, fetched: Fetched) -> Batch:
        cursor = self._by_id.get(fetched.topic_id)
        if cursor is None:
            raise FormatError(f"the daemon pushed records of topic id {fetched.topic_id}, which was not asked for")
        batch = Batch(cursor.topic, cursor.advanced(fetched))
        batch.credit = fetched.end - fetched.start
        return batch

    def noticed(self, notice: dict[str, Any]) -> TopicdError | None:
        """Takes a notice in; what the user has to hear of is returned."""
        event = notice.get("event")
        if event == "topic":
            self._known(str(notice.get("topic")), number(notice, "topic_id"), 0)
        elif event == "topic_deleted":
            gone = self._by_id.pop(number(notice, "topic_id"), None)
            if gone is not None:
                self.cursors.pop(gone.topic, None)
                if self._wanted.pattern is None:
                    return TopicNotFound(f"topic {gone.topic} was deleted while it was watched", topic=gone.topic)
        elif event == "error":
            return from_wire(notice)
        return None

    def consumed(self, size: int) -> bytes:
        """Bytes of a push the user is done with: a CREDIT message once it is worth one, else nothing."""
        self._used += size
        if self._used < self._window // 4:
            return b""
        credit, self._used = self._used, 0
        return message(Op.CREDIT, 0, CREDIT.pack(self._request_id, min(credit, 0xFFFFFFFF)))


def plan(
    directory: Directory,
    wanted: Wanted,
    before: list[Subscription],
    window: int,
    resume: dict[str, tuple[int, int]] | None = None,
) -> dict[int, Subscription]:
    """A subscription for each shard that is concerned. Cursors of `before` outlive a change of shards; `resume` gives
    topics the (topic id, cursor) they had in an earlier life."""
    known = {name: cursor for part in before for name, cursor in part.cursors.items()}
    groups: dict[int, list[str]] = {}
    if wanted.pattern is not None:
        groups = {shard: [] for shard in directory.shards()}
    for name in known if before else wanted.names:
        groups.setdefault(directory.shard_of(name), []).append(name)
    parts = {shard: Subscription(wanted, names, window) for shard, names in groups.items()}
    for part in parts.values():
        part.cursors.update({name: known[name] for name in part.cursors if name in known})
        part.resumed = any(earlier.resumed for earlier in before)
        for name, cursor in part.cursors.items():
            if resume is not None and name in resume:
                cursor.confirmed(*resume[name])
                cursor.suppress_first = False
    return parts
