"""The topics of one shard that are followed, without the connection. Promise: after a reconnect a subscription goes on
exactly behind the last record that arrived, whatever the daemon did in between.

The cursors advance when records arrive, not when somebody looks at them: what has arrived is kept by the owner and not
asked for again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from topicd.errors import FormatError, InvalidRequest, TopicdError, TopicNotFound, from_wire
from topicd.frames import parse_header
from topicd.ipc.protocol.codec import Fetched, number
from topicd.ipc.protocol.messages import Op, Subscribe, SubscribedTopic, WatchChannel
from topicd.ipc.protocol.selecting import select
from topicd.ipc.protocol.wire import CREDIT, message
from topicd.limits import SUBSCRIPTION_TOPICS_MAX
from topicd.model import TagMatch

_BEGINNING = ("seq", 0)


class ChannelWanted(NamedTuple):
    """A channel, on behalf of a user; `events`: also what happens beside its messages."""

    handler: str
    user: str | None
    events: bool


class Wanted(NamedTuple):
    """Topics by name, or all of a pattern. `start` is ("earliest" or "latest", 0), ("seq", n) or ("ts", ms)."""

    names: tuple[str, ...]
    pattern: str | None
    start: tuple[str, int]
    match: TagMatch | None
    nodes: tuple[bytes, ...]
    committed: bool = False  # nothing of a commit before all of it is there
    channel: ChannelWanted | None = None  # then `names` is the one topic that places it
    consumer: str = ""  # that is read as
    holder: int = 0
    takeover: bool = False


class Pushed(NamedTuple):
    """What the daemon sent of one topic; it cost `credit` bytes of the window."""

    topic: str
    fetched: Fetched
    credit: int


class Cursor:
    """How far one topic was read. Until the daemon confirmed it, `topic_id` is 0 and `start` says where to
    begin."""

    __slots__ = ("from_seq", "start", "suppress_first", "topic", "topic_id")

    def __init__(self, topic: str, start: tuple[str, int]) -> None:
        self.topic = topic
        self.topic_id = 0
        self.from_seq = 0
        self.start = start
        # Who asks for the earliest there is does not miss what was removed before.
        self.suppress_first = start[0] == "earliest"

    def message(self) -> SubscribedTopic:
        if self.topic_id:
            return SubscribedTopic(topic=self.topic, from_seq=self.from_seq, epoch=self.topic_id)
        return SubscribedTopic(topic=self.topic, **_position(self.start))

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
    found = select(fetched.buffer, fetched.start, fetched.end, after_seq=seq)
    view = memoryview(fetched.buffer)
    frames = b"".join(view[start:end] for start, end in found.ranges)
    return fetched._replace(buffer=frames, start=0, end=len(frames), records=found.count)


def _position(start: tuple[str, int]) -> dict[str, Any]:
    """The fields of a message that say where to begin."""
    kind, at = start
    if kind == "ts":
        return {"from_ts": at}
    return {"tail": True} if kind == "latest" else {"from_seq": at}


class Following:
    """One subscription: what to ask for, how far each topic has come, and the credit to give back."""

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

    def request(self) -> Subscribe | WatchChannel:
        if self._wanted.channel is not None:
            return self._watch_channel(self._wanted.channel)
        # Beyond the limit, those that would have the least to skip are read from the start once more, and skipped.
        listed = sorted(self.cursors.values(), key=lambda cursor: -cursor.from_seq)[:SUBSCRIPTION_TOPICS_MAX]
        if len(listed) < len(self.cursors) and self._wanted.pattern is None:
            raise InvalidRequest(
                f"{len(self.cursors)} topics on one shard; one watch takes {SUBSCRIPTION_TOPICS_MAX}",
                limit=SUBSCRIPTION_TOPICS_MAX,
            )
        # Topics we have not heard of: where the user said at first, later from their first record.
        others = _position(_BEGINNING if self.resumed else self._wanted.start) if self._wanted.pattern else {}
        return Subscribe(
            topics=tuple(cursor.message() for cursor in listed),
            pattern=self._wanted.pattern or "",
            credit=self._window,
            match=self._wanted.match,
            nodes=self._wanted.nodes,
            committed=self._wanted.committed,
            wait=True,
            consumer=self._wanted.consumer,
            holder=self._wanted.holder,
            # Once: who was replaced later does not take it back by itself.
            takeover=self._wanted.takeover and not self.resumed,
            **others,
        )

    def _watch_channel(self, channel: ChannelWanted) -> WatchChannel:
        (cursor,) = self.cursors.values()
        place: dict[str, int] = {"from_seq": 0}
        if cursor.topic_id:
            place = {"from_seq": cursor.from_seq, "epoch": cursor.topic_id}
        elif cursor.start[0] != "earliest":
            place = {} if cursor.start[0] == "latest" else {"from_seq": cursor.start[1]}
        handler, user, events = channel
        return WatchChannel(channel=handler, user=user, events=events, credit=self._window, **place)

    def accepted(self, answer: dict[str, Any], request_id: int) -> None:
        """The daemon's answer to `request`."""
        topics = answer.get("topics")
        if not isinstance(topics, list) or not all(isinstance(entry, dict) for entry in topics):
            raise FormatError(f"the daemon's subscription names no topics but {topics!r:.100}")
        self._by_id.clear()
        for entry in topics:
            self._known(str(entry.get("topic")), number(entry, "topic_id"), number(entry, "from_seq"))
        for cursor in self.cursors.values():
            if not cursor.topic_id:
                cursor.start = _BEGINNING  # not there yet: nothing of it is older than the watch
        self.resumed = True
        self._request_id = request_id
        self._used = 0

    def _known(self, name: str, topic_id: int, from_seq: int) -> None:
        cursor = self.cursors.get(name)
        if cursor is None:
            cursor = self.cursors[name] = Cursor(name, _BEGINNING if self.resumed else self._wanted.start)
        if cursor.topic_id != topic_id:
            cursor.confirmed(topic_id, from_seq)
        self._by_id[topic_id] = cursor

    def missing(self, error: TopicNotFound) -> bool:
        """A topic is gone that was there before. True if the subscription can go on without it."""
        name = error.detail.get("topic")
        return self.resumed and self.cursors.pop(str(name), None) is not None and not self.empty

    def pushed(self, fetched: Fetched) -> Pushed:
        cursor = self._by_id.get(fetched.topic_id)
        if cursor is None:
            raise FormatError(f"the daemon pushed records of topic id {fetched.topic_id}, which was not asked for")
        return Pushed(cursor.topic, cursor.advanced(fetched), fetched.end - fetched.start)

    def comes_next(self, topic_id: int, first_seq: int, next_from_seq: int) -> str | None:
        """Moves behind a push without a gap whose first record lies behind the last one that arrived: its topic. None,
        and nothing moves, if it is another kind of push."""
        cursor = self._by_id.get(topic_id)
        if cursor is None or first_seq <= cursor.from_seq:
            return None
        cursor.from_seq = max(cursor.from_seq, next_from_seq)
        cursor.suppress_first = False
        return cursor.topic

    def noticed(self, notice: dict[str, Any]) -> TopicdError | None:
        """Takes a notice in; what its owner has to hear of is returned."""
        event = notice.get("event")
        if event == "channel" and notice.get("ends"):
            self.cursors.clear()
        elif event == "topic":
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
        """Bytes of a push that somebody is done with: a CREDIT message once it is worth one, else nothing."""
        self._used += size
        if self._used < self._window // 4:
            return b""
        credit, self._used = self._used, 0
        return message(Op.CREDIT, 0, CREDIT.pack(self._request_id, min(credit, 0xFFFFFFFF)))


def plan(
    shards: Iterable[int],
    shard_of: Callable[[str], int],
    wanted: Wanted,
    before: list[Following],
    window: int,
    resume: dict[str, tuple[int, int]] | None = None,
) -> dict[int, Following]:
    """A subscription for each shard that is concerned. Cursors of `before` outlive a change of shards; `resume` gives
    topics the (topic id, cursor) they had in an earlier life."""
    known = {name: cursor for part in before for name, cursor in part.cursors.items()}
    groups: dict[int, list[str]] = {}
    if wanted.pattern is not None:
        groups = {shard: [] for shard in shards}
    for name in known if before else wanted.names:
        groups.setdefault(shard_of(name), []).append(name)
    parts = {shard: Following(wanted, names, window) for shard, names in groups.items()}
    for part in parts.values():
        part.cursors.update({name: known[name] for name in part.cursors if name in known})
        part.resumed = any(earlier.resumed for earlier in before)
        for name, cursor in part.cursors.items():
            if resume is not None and name in resume:
                cursor.confirmed(*resume[name])
                cursor.suppress_first = False
    return parts
