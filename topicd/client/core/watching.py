"""A watch without I/O: what each shard is asked for, what has arrived, and what the reader is done with.

A face opens the feeds, gives every message to `take` and asks for events; when there are none it waits for more. Credit
goes back when the reader asks for what lies behind a batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from operator import length_hint
from secrets import randbits
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from topicd._native import core
from topicd.client.core.arguments import Match, Nodes, Start, node_names, start_place, tag_match
from topicd.client.core.batch import Batch
from topicd.client.core.decode import Decoder
from topicd.client.core.gaps import OnGap, shall_yield
from topicd.client.core.records import Event, Gap, Record, made_of, received
from topicd.client.core.shardmap import ShardMap
from topicd.errors import ConnectionLost, ConsumerHeld, FormatError, InvalidRequest, TopicdError, TopicNotFound
from topicd.ipc.protocol.codec import ERROR_OP, PUSH_OP, PUSHED, answer_map, error_of
from topicd.ipc.protocol.cutter import Arrived, Cutter
from topicd.ipc.protocol.following import Following, Wanted, plan
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import LENGTH_FIELD
from topicd.lists import check_list
from topicd.model import check_topic_name
from topicd.patterns import check_pattern, is_pattern

Resume: TypeAlias = dict[str, tuple[int, int]]  # (topic id, cursor) by topic

WINDOW_BATCHES = 4


def wanted_by(topics: str | Sequence[str], start: Start, match: Match, nodes: Nodes, committed: bool = False) -> Wanted:
    """What the user asks for, checked."""
    if not isinstance(topics, str):
        check_list(topics, "topics")
    given = [topics] if isinstance(topics, str) else list(topics)
    if not given:
        raise InvalidRequest("watch needs a topic, a list of topics or a pattern")
    patterns = [check_pattern(name) for name in given if isinstance(name, str) and is_pattern(name)]
    if patterns and len(given) > 1:
        raise InvalidRequest("a pattern is watched alone, not in a list")
    pattern = patterns[0] if patterns else None
    names = () if patterns else tuple(check_topic_name(name) for name in dict.fromkeys(given))
    return Wanted(names, pattern, start_place(start), tag_match(match), node_names(nodes), committed)


def wanted_of_consumer(
    topic: str, name: str, match: Match, nodes: Nodes, committed: bool, *, takeover: bool = False
) -> Wanted:
    """One topic; where to begin is what the daemon remembers."""
    wanted = wanted_by(topic, 0, match, nodes, committed)
    if wanted.pattern is not None:
        raise InvalidRequest("a consumer belongs to one topic, not to a pattern")
    return wanted._replace(consumer=name, holder=randbits(63) + 1, takeover=takeover)


class AnyConnection(Protocol):
    @property
    def cutter(self) -> Cutter: ...


C = TypeVar("C", bound=AnyConnection)


class Feed(Generic[C]):
    """One shard's part of a watch: what is followed there, and the connection it has at present."""

    def __init__(self, shard: int, following: Following) -> None:
        self.shard = shard
        self.following = following
        self.connection: C | None = None

    def refused(self, error: TopicNotFound, gone: list[TopicNotFound]) -> None:
        """A topic that was there before is not any more: it is added to `gone`, and the others go on."""
        if not self.following.missing(error):
            raise error
        gone.append(error)


F = TypeVar("F", bound=Feed[Any])


class Noticed(Exception):
    """Raised in the place of a batch: something happened in a channel that is watched."""

    def __init__(self, notice: dict[str, Any]) -> None:
        super().__init__(notice)
        self.notice = notice


class Ready(NamedTuple):
    """A batch that arrived, and the connection that its credit goes back to."""

    batch: Batch
    credit: int
    feed: Feed[Any]
    connection: Any


class Watching(Generic[F]):
    def __init__(self, wanted: Wanted, on_gap: OnGap, batch_bytes: int, decode: Decoder | None = None) -> None:
        self.feeds: dict[int, F] = {}
        self.told_to = 0  # the reader has heard of a gap up to this seq
        self._wanted = wanted
        self._on_gap = on_gap
        self._decode = decode
        self._window = WINDOW_BATCHES * batch_bytes
        self._planned: tuple[str, ...] = ()
        self._ready: deque[Ready | TopicdError | Noticed] = deque()
        self._records: Iterator[Record] = iter(())
        self._in_hand: tuple[int, Feed[Any], Any] | None = None  # what it cost, and where that goes back to

    # ---- feeds ----

    def plan(self, shard_map: ShardMap, make: Callable[[int, Following], F], resume: Resume | None = None) -> list[F]:
        """New feeds for the shards as they are now; the feeds of before are returned, to be closed."""
        self._planned = shard_map.paths
        before = list(self.feeds.values())
        earlier = [feed.following for feed in before]
        parts = plan(shard_map.shards(), shard_map.shard_of, self._wanted, earlier, self._window, resume)
        self.feeds = {shard: make(shard, part) for shard, part in parts.items()}
        return before

    def outdated(self, shard_map: ShardMap) -> bool:
        return self._planned != shard_map.paths

    @property
    def over(self) -> bool:
        """Every topic that was asked for is gone."""
        return all(feed.following.empty for feed in self.feeds.values())

    def cursors(self) -> dict[str, int]:
        """The last seq that arrived (not: was iterated), by topic."""
        return {name: c.from_seq for feed in self.feeds.values() for name, c in feed.following.cursors.items()}

    # ---- what arrives ----

    def take(self, feed: F, connection: Any, arrived: Arrived) -> bytes:
        """Takes a push or a notice in; what is to be sent back at once. Raises ConnectionLost when the daemon has ended
        the subscription, FormatError for what does not belong here."""
        if arrived.op == Op.PUSH:
            pushed = feed.following.pushed(connection.cutter.fetched(arrived))
            batch = Batch(pushed.topic, pushed.fetched).using(self._decode)
            if not len(batch) and batch.tombstone is None:
                return feed.following.consumed(pushed.credit)
            self._ready.append(Ready(batch, pushed.credit, feed, connection))
        elif arrived.op == Op.NOTICE:
            notice = answer_map(arrived.body())
            self._noticed(feed, feed.following.noticed(notice))
            if notice.get("event") == "channel":
                self._ready.append(Noticed(notice))
        elif arrived.op == ERROR_OP:
            error = error_of(arrived.body())
            raise ConnectionLost(error.message) if error.retriable else error
        else:
            raise FormatError(f"the daemon sent op 0x{arrived.op:02x} to a subscriber")
        return b""

    def take_plain(self, feed: F, connection: Any, size: int) -> Record | None:
        """`take`, `next_batch` and `begin` in one, for what a reader that keeps up gets: the first `size` bytes of the
        connection's buffer are all there is, and they are one push of records that come next. Its first record; None,
        and nothing has happened, if they are anything else."""
        buffer = connection.cutter.buffer
        if size < PUSHED.size:
            return None
        length, op, _, _, topic_id, next_from_seq, _, _, count, extras = PUSHED.unpack_from(buffer)
        if op != PUSH_OP or length + LENGTH_FIELD != size or extras or not count:
            return None
        try:
            decoded = core.decode_frames(buffer, PUSHED.size, size)
        except ValueError:
            return None
        topic = feed.following.comes_next(topic_id, decoded[0][0], next_from_seq) if decoded else None
        if topic is None:
            return None
        self._in_hand = (size - PUSHED.size, feed, connection)
        if len(decoded) == 1 and self._decode is None:
            return received(topic, decoded[0])
        self._records = iter(made_of(topic, decoded, self._decode))
        return next(self._records)

    def _noticed(self, feed: F, error: TopicdError | None) -> None:
        if error is None:
            return
        if isinstance(error, ConsumerHeld):
            feed.following.cursors.clear()  # somebody else reads on
        if error.retriable:
            raise ConnectionLost(f"the subscription ended: {error.message}")
        self._ready.append(error)

    def gone(self, errors: list[TopicNotFound]) -> None:
        """Topics that were there before are not any more; who watches a pattern does not miss them."""
        if self._wanted.pattern is None:
            self._ready.extend(errors)

    def failed(self, error: TopicdError) -> None:
        """The reader shall hear of it, behind what has arrived before."""
        self._ready.append(error)

    # ---- what the reader gets ----

    @property
    def waiting(self) -> bool:
        """`next_batch` has something."""
        return bool(self._ready)

    @property
    def buffered(self) -> bool:
        """The next event is here already."""
        return bool(self._ready) or length_hint(self._records) > 0

    def next_batch(self) -> Batch:
        """Only when `waiting`; raises what went wrong at this place."""
        found = self._ready.popleft()
        if isinstance(found, TopicdError | Noticed):
            raise found
        self._in_hand = (found.credit, found.feed, found.connection)
        return found.batch

    def done_with(self) -> tuple[Any, bytes] | None:
        """The reader is done with the batch in hand: (connection, what is to be sent on it), if anything is."""
        if self._in_hand is None:
            return None
        cost, feed, connection = self._in_hand
        self._in_hand = None
        # A new connection began with full credit.
        credit = feed.following.consumed(cost) if feed.connection is connection else b""
        return (connection, credit) if credit else None

    def next_record(self) -> Record | None:
        """Of the batch that was begun."""
        return next(self._records, None)

    def begin(self, batch: Batch) -> Event | None:
        """The first event of a batch: the gap before it, or its first record, or none."""
        self._records = iter(batch.records)
        if batch.gap is not None and self.shall_yield(batch.gap):
            return batch.gap
        return next(self._records, None)

    def shall_yield(self, gap: Gap) -> bool:
        self.told_to = gap.last_seq
        return shall_yield(self._on_gap, gap)


class WatchFigures:
    """What a watch tells of itself, on either face."""

    _watching: Watching[Any]

    @property
    def told_to(self) -> int:
        """The reader has heard of a gap up to this seq; 0: of none."""
        return self._watching.told_to

    def cursors(self) -> dict[str, int]:
        """The last seq that arrived (not: was iterated), by topic."""
        return self._watching.cursors()
