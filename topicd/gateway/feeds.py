"""One topic on its way to one reader: first what is there, then what comes. Promise: the reader is told everything
behind its cursor once and in order, or of the gap; a reader without room costs nothing until it has some again.

    reading ──(nothing is left)──▶ live ──(no room, or something to look up)──▶ reading
       └──(no room)──▶ waiting ──(resume)──▶ reading

A live feed takes what the tail pushes, which all readers of the topic share; it has no task of its own.
"""

from __future__ import annotations

import asyncio
import logging
from enum import Enum
from typing import Any, NamedTuple, Protocol

from topicd.client.core.requests import fetch
from topicd.errors import TopicdError, TopicNotFound
from topicd.gateway.batches import TopicBatch
from topicd.gateway.shards import Shards
from topicd.gateway.tails import Tail, Tails
from topicd.ipc.protocol.codec import Fetched
from topicd.ipc.protocol.messages import SyncTopic
from topicd.ipc.protocol.retry import Backoff

_LONGEST_PAUSE_S = 1.0

log = logging.getLogger(__name__)


class Wants(NamedTuple):
    limit: int  # records in one message
    max_bytes: int
    nodes: tuple[str, ...] = ()  # whose records are left out
    strong: bool = False  # only what is synced


class Place(NamedTuple):
    """How far a topic was delivered; the seq belongs to the topic with that id."""

    seq: int
    topic_id: int
    head_seq: int


class Source(Protocol):
    """Where records come from."""

    shards: Shards
    tails: Tails


class Reader(Protocol):
    """Who a feed tells. The feed's cursor is where it stood before; `at` is where it stands afterwards."""

    def has_room(self) -> bool: ...

    def records(self, feed: Feed, batch: TopicBatch, *, drained: bool) -> None: ...

    def gap(self, feed: Feed, gap: dict[str, Any], *, at: int, first: bool) -> None: ...

    def caught_up(self, feed: Feed, head_seq: int) -> None: ...

    def deleted(self, feed: Feed) -> None: ...

    def troubled(self, feed: Feed, error: TopicdError, retry_s: float) -> None: ...

    def failed(self, feed: Feed) -> None:
        """A fault of ours: nothing more comes, and the reader must notice."""
        ...

    def blocked(self) -> None:
        """A feed waits for room: `resume` it when there is some."""
        ...


class State(Enum):
    READING = 1
    LIVE = 2
    WAITING = 3
    OVER = 4


class Feed:
    def __init__(self, source: Source, reader: Reader, topic: str, place: Place, wants: Wants) -> None:
        self._source = source
        self._reader = reader
        self.topic = topic
        self.cursor, self.topic_id, self.head_seq = place
        self._wants = wants
        self._excluded = frozenset(name.encode() for name in wants.nodes)
        self._state = State.WAITING
        self._tail: Tail | None = None
        self._task: asyncio.Task[None] | None = None
        self._looked = False
        self._behind = True  # since the reader was last told that it is not

    @property
    def over(self) -> bool:
        return self._state is State.OVER

    def start(self) -> None:
        self._read()

    def resume(self) -> None:
        """The reader has room."""
        if self._state is State.WAITING:
            self._read()

    def close(self) -> None:
        self._state = State.OVER
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if self._tail is not None:
            self._source.tails.unfollow(self._tail, self)
            self._tail = None

    # ---- what is there ----

    def _read(self) -> None:
        self._state = State.READING
        self._task = asyncio.get_running_loop().create_task(self._read_on())
        self._task.add_done_callback(self._was_read)

    def _was_read(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("feed failed", exc_info=error, extra={"topic": self.topic})
            self._fail()

    async def _read_on(self) -> None:
        backoff = Backoff(longest=_LONGEST_PAUSE_S)
        while self._state is State.READING:
            try:
                tail = await self._follow()
                found, recreated = await self._look(tail)
                if self._wants.strong and found.next_from_seq > self.cursor:
                    await self._synced(tail, found.next_from_seq)
            except TopicNotFound:
                self._gone()
                return
            except TopicdError as exc:
                delay = backoff.next()
                self._reader.troubled(self, exc, delay)
                await asyncio.sleep(delay)
                continue
            if self.over:
                return
            backoff.reset()
            drained = found.next_from_seq >= found.head_seq and found.next_from_seq >= tail.position
            self._take(TopicBatch(self.topic, self.cursor, found), drained=drained, recreated=recreated)
            if drained:
                self._state = State.LIVE
            elif not self._reader.has_room():
                self._wait()

    async def _follow(self) -> Tail:
        """The end of that very topic; at the first look also that of a later one with its name."""
        if self._tail is not None:
            if self._tail.over:
                raise TopicNotFound(f"topic {self.topic} was deleted", topic=self.topic)
            return self._tail
        self._tail = await self._source.tails.follow(self.topic, self, self.topic_id)
        return self._tail

    async def _look(self, tail: Tail) -> tuple[Fetched, bool]:
        """What is behind the cursor, and whether the cursor was one of an earlier topic."""
        recreated = bool(self.topic_id) and tail.topic_id != self.topic_id
        if recreated and self._looked:
            raise TopicNotFound(f"topic {self.topic} was deleted", topic=self.topic)
        self.topic_id = tail.topic_id
        found = await self._fetch(0 if recreated else self.cursor)
        if not recreated and self.cursor > found.head_seq:
            recreated = True
            found = await self._fetch(0)
        if recreated:
            recreated, self.cursor = self.cursor > 0, 0
        return found, recreated

    async def _fetch(self, seq: int) -> Fetched:
        wants = self._wants
        request = fetch(
            seq,
            limit=wants.limit,
            max_bytes=wants.max_bytes,
            match=None,
            nodes=wants.nodes or None,
            from_time=None,
            metadata_only=False,
            performance=False,
            epoch=None,
        )
        return await self._source.shards.fetch(self.topic, request, self.topic_id)

    async def _synced(self, tail: Tail, seq: int) -> None:
        """Until everything up to seq is."""
        while tail.synced < seq:
            answer = await self._source.shards.ask(self.topic, SyncTopic(topic=self.topic))
            if answer["topic_id"] != self.topic_id:
                raise TopicNotFound(f"topic {self.topic} was deleted", topic=self.topic)
            tail.synced = max(tail.synced, int(answer["head_seq"]))

    # ---- telling ----

    def _take(self, batch: TopicBatch, *, drained: bool, recreated: bool = False) -> None:
        reader, first, self._looked = self._reader, not self._looked, True
        self.head_seq = batch.head_seq
        if (gap := batch.gap(recreated=recreated)) is not None:
            at = 0 if recreated else max(self.cursor, int(gap["gap_to"]))
            reader.gap(self, gap, at=at, first=first)
            self.cursor, self._behind = at, True
            batch = batch.starting(at)
        if batch.count:
            self._behind = not drained
            reader.records(self, batch, drained=drained)
        self.cursor = max(self.cursor, batch.to_seq)
        if drained and self._behind:
            self._behind = False
            reader.caught_up(self, batch.head_seq)

    def _gone(self) -> None:
        self.close()
        self._reader.deleted(self)

    def _fail(self) -> None:
        if not self.over:
            self.close()
            self._reader.failed(self)

    def _wait(self) -> None:
        self._state = State.WAITING
        self._reader.blocked()

    # ---- what comes ----

    def pushed(self, tail: Tail, batch: TopicBatch) -> None:
        if self._state is not State.LIVE or batch.to_seq <= self.cursor:
            return
        self._behind = True
        if not self._reader.has_room():
            self._wait()
        elif self._wants.strong or batch.from_seq > self.cursor or not self._excluded.isdisjoint(self._nodes(batch)):
            self._read()
        else:
            self._deliver(batch if batch.from_seq == self.cursor else batch.behind(self.cursor))

    def _nodes(self, batch: TopicBatch) -> frozenset[bytes]:
        return batch.nodes if self._excluded else self._excluded

    def _deliver(self, batch: TopicBatch) -> None:
        for piece in batch.pieces(self._wants.limit, self._wants.max_bytes):
            if not self._reader.has_room():
                self._wait()
                return
            self._take(piece, drained=piece.to_seq >= piece.head_seq)

    def failed(self, tail: Tail) -> None:
        self._fail()

    def ended(self, tail: Tail) -> None:
        if self._state is not State.OVER:
            self._gone()
