"""The records of a router's source, in order: of this shard as a follower, of another by an ordinary subscription.
Promise: what is handed out begins right behind the cursor; a destination that stands still costs a bounded window of
bytes here and nothing there.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from topicd.errors import TopicdError, TopicNotFound, from_wire
from topicd.ipc.protocol.codec import Fetched
from topicd.ipc.protocol.messages import SourceHead, Subscribe, SubscribedTopic
from topicd.limits import KIB, MIB, ROUTED_RECORDS
from topicd.shards.delivery.reading.elsewhere import NotNow, StillComing
from topicd.shards.delivery.reading.filters import ReadFilter
from topicd.shards.delivery.reading.reading import Reader
from topicd.shards.delivery.relay import Followed, Listener, Relay
from topicd.shards.delivery.routing.definition import Definition
from topicd.shards.delivery.routing.pauses import Pauses
from topicd.shards.delivery.topic.catalog import Catalog
from topicd.shards.delivery.topic.follower import Told
from topicd.shards.delivery.topic.topic import Topic

_WINDOW = MIB
_READ_BYTES = MIB
_JOINED = 128 * KIB  # pieces below that are handed out as one


class Piece(NamedTuple):
    """Frames buffer[start:end] behind the cursor, up to a seq; before them, records that were gone already."""

    buffer: Any
    start: int
    end: int
    next_from: int
    gap: tuple[int, int] | None


class Feed:
    remote = False  # is the source in another shard?
    head = 0  # the source's, as far as it is known
    begins: int | None = None  # the source's head when the feed was opened, once that is known
    opened = 0  # how often it has reached its source

    def open(self, position: int) -> None:
        raise NotImplementedError

    def take(self, position: int) -> Piece | None:
        """What comes next; None: nothing now, and `on_news` is called when there is. Raises why it cannot be had."""
        raise NotImplementedError

    def done(self, piece: Piece) -> None:
        """All of it was used."""

    def rewind(self, position: int) -> None:
        """Go on behind this seq: something that was handed out was not stored."""

    def ends_at(self, position: int) -> bool:
        """Is it known without asking that there is nothing behind it?"""
        return False

    async def ask_head(self) -> int:
        """Up to where records of the source were acknowledged before now."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class LocalFeed(Feed):
    def __init__(self, one: Definition, catalog: Catalog, reader: Reader, on_news: Callable[[], None]) -> None:
        self._one = one
        self._catalog = catalog
        self._reader = reader
        self._filter = ReadFilter(one.filter)
        self._on_news = on_news
        self._told = Told(on_news, on_news)
        self._topic: Topic | None = None

    def open(self, position: int) -> None:
        self._topic = self._catalog.by_id.get(self._one.source_id)
        if self._topic is not None:
            self._topic.followers.add(self._told)
            # The newest of a derived one may be on their way back: it says nothing about what was there.
            self.begins = None if self._topic.inflows.derived is not None else self._topic.seqs.visible

    @property
    def _source(self) -> Topic:
        topic = self._topic
        if topic is None or self._catalog.by_id.get(topic.id) is not topic:
            raise TopicNotFound(f"source {self._one.source!r} is gone", topic=self._one.source)
        return topic

    def take(self, position: int) -> Piece | None:
        topic = self._source
        self.head = topic.seqs.visible
        if position >= self.head:
            return None
        try:
            answer = self._reader.fetch(topic, position, ROUTED_RECORDS, _READ_BYTES, self._filter)
        except (StillComing, NotNow) as not_yet:
            not_yet.then(self._on_news)
            return None
        parts = answer.parts
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        stone = answer.tombstone
        gap = None if stone is None else (max(stone.gap_from, position + 1), stone.gap_to)
        return Piece(data, 0, len(data), answer.next_from, gap)

    def ends_at(self, position: int) -> bool:
        return self._topic is not None and position >= self._topic.seqs.visible

    async def ask_head(self) -> int:
        self.head = self._source.seqs.visible
        return self.head

    def close(self) -> None:
        if self._topic is not None:
            self._topic.followers.discard(self._told)


class RemoteFeed(Feed, Listener):
    remote = True

    def __init__(
        self, one: Definition, relay: Relay, loop: asyncio.AbstractEventLoop, on_news: Callable[[], None]
    ) -> None:
        self._one = one
        self._relay = relay
        self._loop = loop
        self._on_news = on_news
        self._pieces: deque[tuple[Piece, int]] = deque()
        self._followed: Followed | None = None
        self._pauses = Pauses()
        self._timer: asyncio.TimerHandle | None = None
        self._position = 0  # of the last piece that arrived
        self._error: TopicdError | None = None
        self._closed = False

    def open(self, position: int) -> None:
        self._position = position
        self.begins = None
        self._error = None
        self._connect()

    def _connect(self) -> None:
        self._timer = None
        source = SubscribedTopic(topic=self._one.source, from_seq=self._position, epoch=self._one.source_id)
        want = Subscribe(topics=(source,), credit=_WINDOW, match=self._one.filter, nodes=(), progress=True)
        try:
            self._followed = self._relay.follow(self._relay.shard_of(self._one.source), want, self)
        except TopicdError as exc:
            self.lost(exc)

    def take(self, position: int) -> Piece | None:
        if not self._pieces:
            if self._error is not None:
                raise self._error
            return None
        if len(self._pieces) > 1:
            self._join()
        return self._pieces[0][0]

    def _join(self) -> None:
        """Records that came one by one while the router did something else are one piece of work."""
        pieces = self._pieces
        joined, size = [pieces.popleft()], 0
        while pieces and pieces[0][0].gap is None:
            size += joined[-1][1]
            if size >= _JOINED:
                break
            joined.append(pieces.popleft())
        first, last = joined[0][0], joined[-1][0]
        if len(joined) > 1:
            data = b"".join(memoryview(piece.buffer)[piece.start : piece.end] for piece, _ in joined)
            first = Piece(data, 0, len(data), last.next_from, first.gap)
        pieces.appendleft((first, sum(cost for _, cost in joined)))

    def done(self, piece: Piece) -> None:
        if self._pieces and self._pieces[0][0] is piece:
            _, cost = self._pieces.popleft()
            if self._followed is not None:
                self._followed.grant(cost)

    def rewind(self, position: int) -> None:
        self._stop()
        self.open(position)

    async def ask_head(self) -> int:
        answer = await self._relay.ask(self._relay.shard_of(self._one.source), SourceHead(topic=self._one.source))
        if answer.get("topic_id") != self._one.source_id:
            raise TopicNotFound(f"source {self._one.source!r} is gone", topic=self._one.source)
        self.head = max(self.head, int(answer["head_seq"]))
        return int(answer["head_seq"])

    def close(self) -> None:
        self._closed = True
        self._stop()

    def _stop(self) -> None:
        self._pieces.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._followed is not None:
            self._followed.close()
            self._followed = None

    # ---- what comes ----

    def accepted(self, answer: dict[str, Any]) -> None:
        if [entry.get("topic_id") for entry in answer.get("topics") or []] != [self._one.source_id]:
            self._fail(TopicNotFound(f"source {self._one.source!r} is gone", topic=self._one.source))
            return
        started = answer["topics"][0]
        head = int(started.get("head_seq", self._position))
        self.begins = None if started.get("derived") else head
        self.head = max(self.head, head)
        self.opened += 1
        self._error = None
        self._pauses.reset()
        self._on_news()

    def pushed(self, fetched: Fetched) -> None:
        stone = fetched.tombstone
        gap = None if stone is None else (max(stone.gap_from, self._position + 1), stone.gap_to)
        self._position = max(self._position, fetched.next_from_seq)
        self.head = max(self.head, fetched.head_seq)
        piece = Piece(fetched.buffer, fetched.start, fetched.end, fetched.next_from_seq, gap)
        self._pieces.append((piece, fetched.end - fetched.start))
        self._on_news()

    def noticed(self, notice: dict[str, Any]) -> None:
        if notice.get("event") == "topic_deleted":
            self._fail(TopicNotFound(f"source {self._one.source!r} is gone", topic=self._one.source))
        elif notice.get("event") == "error":
            self._fail(from_wire(notice))

    def lost(self, error: TopicdError) -> None:
        self._followed = None
        self._fail(error)

    def _fail(self, error: TopicdError) -> None:
        """What has arrived stays; the rest is asked for again behind it, in a while."""
        self._error = error
        if self._followed is not None:
            self._followed.close()
            self._followed = None
        if not self._closed and self._timer is None:
            self._timer = self._loop.call_later(self._pauses.next(), self._connect)
        self._on_news()
