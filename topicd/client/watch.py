"""A blocking watch: records and gaps as they happen, across restarts of the daemon."""

from __future__ import annotations

import contextlib
import selectors
from collections import deque
from collections.abc import Callable, Iterator
from operator import length_hint
from typing import Any, Literal, TypeAlias

from topicd.client.backoff import Patience
from topicd.client.batch import Batch, fetched_from
from topicd.client.connection import Connection
from topicd.client.engine import Engine
from topicd.client.forksafe import track
from topicd.client.records import Gap, Record, RecordsMissed
from topicd.client.subscription import Subscription, Wanted, plan
from topicd.client.wire import answer_map, packed
from topicd.errors import ConnectionLost, FormatError, InvalidRequest, TopicdError, TopicNotFound, WrongShard
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import ANSWER, message

OnGap: TypeAlias = Literal["yield", "raise"] | Callable[[Gap], Any]
Event: TypeAlias = Record | Gap

WINDOW_BATCHES = 4
CREATE_TRIES = 3  # somebody else may delete what we have just made


def checked_on_gap(on_gap: OnGap) -> OnGap:
    if on_gap not in ("yield", "raise") and not callable(on_gap):
        raise InvalidRequest(f"on_gap must be yield, raise or a function, not {on_gap!r:.100}")
    return on_gap


class Feed:
    """One shard's part of a watch: the subscription and the connection it has at present."""

    def __init__(self, engine: Engine, shard: int, subscription: Subscription) -> None:
        self.shard = shard
        self.subscription = subscription
        self.connection: Connection | None = None
        self._engine = engine

    def open(self, timeout: float) -> list[TopicNotFound]:
        """Connects and subscribes. Raises what the daemon refuses with; topics that are gone by now are returned."""
        connection = self._engine.dial(self.shard, timeout)
        gone: list[TopicNotFound] = []
        tries = 0
        try:
            while True:
                request_id = connection.next_id()
                connection.send(message(Op.SUBSCRIBE, request_id, packed(self.subscription.request())))
                try:
                    arrived = connection.answer(request_id, Op.SUBSCRIBE | ANSWER)
                except TopicNotFound as exc:
                    if self.subscription.missing(exc):
                        gone.append(exc)
                    elif self.subscription.resumed or tries == CREATE_TRIES:
                        raise
                    else:
                        tries += 1
                        self._create(connection)
                    continue
                self.subscription.accepted(answer_map(arrived.body()), request_id)
                break
        except BaseException:
            connection.close()
            raise
        connection.set_timeout(None)
        self.connection = connection
        return gone

    def _create(self, connection: Connection) -> None:
        """Watching may begin before the first record is written; what was deleted later stays deleted."""
        for name in self.subscription.cursors:
            connection.call(Op.OPEN, {"topic": name, "create": True})

    @property
    def broken(self) -> bool:
        """It has topics and no connection that could bring their records."""
        return not self.subscription.empty and (self.connection is None or self.connection.closed)

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None


class Watch:
    """Iterate it for `Record` and `Gap` events, or `batches()` for whole batches. Use it in one thread;
    `close` may come from any.

    >>> seq = client.publish("orders", b"hello")
    >>> with client.watch("orders", start="earliest") as events:
    ...     next(events)
    Record(orders#1, b'hello')
    """

    def __init__(self, engine: Engine, wanted: Wanted, *, on_gap: OnGap, batch_bytes: int) -> None:
        self._engine = engine
        self._wanted = wanted
        self._on_gap = checked_on_gap(on_gap)
        self._window = WINDOW_BATCHES * batch_bytes
        self._feeds: dict[int, Feed] = {}
        self._planned: tuple[str, ...] = ()
        self._selector: selectors.BaseSelector | None = None
        self._ready: deque[tuple[Feed, Connection, Batch] | TopicdError] = deque()
        self._records: Iterator[Record] = iter(())
        self._looked_at: tuple[Feed, Connection, Batch] | None = None
        self._closed = False
        track(self)

    def forked(self) -> None:
        self._closed = True
        for feed in self._feeds.values():
            if feed.connection is not None:
                feed.connection.abandon()

    # ---- life ----

    def open(self, resume: dict[str, tuple[int, int]] | None = None) -> Watch:
        """Subscribes; from here on nothing is missed. `resume` gives topics their (topic id, cursor) of before."""
        self._plan(resume)
        for feed in list(self._feeds.values()):
            self._restore(feed)
        return self

    def _plan(self, resume: dict[str, tuple[int, int]] | None = None) -> None:
        self._planned = self._engine.directory.map.paths
        before = [feed.subscription for feed in self._feeds.values()]
        for feed in self._feeds.values():
            feed.close()
        parts = plan(self._engine.directory, self._wanted, before, self._window, resume)
        self._feeds = {shard: Feed(self._engine, shard, part) for shard, part in parts.items()}

    def _restore(self, lost: Feed) -> None:
        patience = Patience(self._engine.tempo, self._engine.timeout)
        todo = [lost]
        while todo and not self._closed:
            if todo[-1].subscription.empty:
                todo.pop()
                continue
            if self._planned != self._engine.directory.map.paths:
                self._plan()
                todo = list(self._feeds.values())
            try:
                gone = todo[-1].open(patience.remaining())
                if self._wanted.pattern is None:
                    self._ready.extend(gone)
                todo.pop()
            except WrongShard as exc:
                patience.pause(exc)
                self._plan()
                todo = list(self._feeds.values())
            except TopicdError as exc:
                patience.pause(exc)
        self._register()

    def _register(self) -> None:
        if self._selector is not None:
            self._selector.close()
            self._selector = None
        if len(self._feeds) > 1:
            self._selector = selectors.DefaultSelector()
            for feed in self._feeds.values():
                if feed.connection is not None and not feed.connection.closed:
                    self._selector.register(feed.connection.sock, selectors.EVENT_READ, feed)

    def close(self) -> None:
        self._closed = True
        for feed in list(self._feeds.values()):
            feed.close()

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def buffered(self) -> bool:
        """The next event is here already."""
        return bool(self._ready) or length_hint(self._records) > 0

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- events ----

    def __iter__(self) -> Watch:
        return self

    def __next__(self) -> Event:
        for record in self._records:
            return record
        while True:
            batch = self._next_batch()
            self._records = iter(batch.records)
            gap = batch.gap
            if gap is not None and self._shall_yield(gap):
                return gap
            for record in self._records:
                return record

    def batches(self) -> Iterator[Batch]:
        """Whole batches; `batch.gap` tells what is missing before its first record."""
        return _Batches(self)

    def cursors(self) -> dict[str, int]:
        """The last seq that arrived (not: was iterated), by topic."""
        return {n: c.from_seq for feed in self._feeds.values() for n, c in feed.subscription.cursors.items()}

    def _shall_yield(self, gap: Gap) -> bool:
        if self._on_gap == "raise":
            raise RecordsMissed(gap)
        if self._on_gap == "yield":
            return True
        self._on_gap(gap)
        return False

    def _next_batch(self) -> Batch:
        self._return_credit()
        while not self._ready:
            if self._closed or all(feed.subscription.empty for feed in self._feeds.values()):
                raise StopIteration
            for feed in self._readable():
                self._receive(feed)
        found = self._ready.popleft()
        if isinstance(found, TopicdError):
            raise found
        self._looked_at = found
        return found[2]

    def _readable(self) -> list[Feed]:
        if self._selector is None:
            return [feed for feed in self._feeds.values() if not feed.subscription.empty]
        # What came along with an earlier message makes no socket readable, and neither does a connection that broke
        # while credit was returned: receiving from it finds out.
        begun = [
            f for f in self._feeds.values() if f.broken or (f.connection is not None and f.connection.inbox.pending)
        ]
        return begun or [key.data for key, _ in self._selector.select()]

    def _receive(self, feed: Feed) -> None:
        """Blocks for one message of this feed, then takes along whatever has arrived behind it."""
        connection, subscription = feed.connection, feed.subscription
        try:
            if connection is None:
                raise ConnectionLost("not connected")
            arrived = connection.receive()
            while True:
                if arrived.op == Op.PUSH:
                    batch = subscription.pushed(fetched_from(arrived, connection.inbox.buffer))
                    if len(batch) or batch.tombstone is not None:
                        self._ready.append((feed, connection, batch))
                    else:
                        self._grant(feed, connection, batch)
                elif arrived.op == Op.NOTICE:
                    self._notice(subscription.noticed(answer_map(arrived.body())))
                else:
                    raise FormatError(f"the daemon sent op 0x{arrived.op:02x} to a subscriber")
                more = connection.inbox.take()
                if more is None:
                    return
                arrived = more
        except FormatError:
            self.close()
            raise
        except (ConnectionLost, WrongShard):
            if not self._closed:
                feed.close()
                self._restore(feed)

    def _notice(self, error: TopicdError | None) -> None:
        if error is None:
            return
        if error.retriable:
            raise ConnectionLost(f"the subscription ended: {error.message}")
        self._ready.append(error)

    def _return_credit(self) -> None:
        if self._looked_at is None:
            return
        done, self._looked_at = self._looked_at, None
        self._grant(*done)

    def _grant(self, feed: Feed, connection: Connection, batch: Batch) -> None:
        if feed.connection is not connection:
            return  # A new connection began with full credit.
        credit = feed.subscription.consumed(batch.credit)
        if credit:
            # A broken connection shows at the next receive.
            with contextlib.suppress(ConnectionLost):
                connection.send(credit)


class _Batches:
    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._held: Batch | None = None

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> Batch:
        if self._held is None:
            self._held = self._watch._next_batch()
            gap = self._held.gap
            if gap is not None:
                # May raise; the batch behind the gap comes with the next call.
                self._watch._shall_yield(gap)
        batch, self._held = self._held, None
        return batch
