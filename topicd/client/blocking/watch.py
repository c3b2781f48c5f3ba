"""A blocking watch: records and gaps as they happen, across restarts of the daemon."""

from __future__ import annotations

import contextlib
import select
import selectors
from collections.abc import Iterator
from typing import Generic, cast

from topicd.client.blocking.caller import Caller
from topicd.client.blocking.connection import Connection
from topicd.client.blocking.forksafe import track
from topicd.client.core.batch import Batch
from topicd.client.core.decode import Decoder
from topicd.client.core.gaps import OnGap
from topicd.client.core.records import E_co, Event
from topicd.client.core.watching import Feed, Resume, WatchFigures, Watching
from topicd.errors import (
    ConnectionLost,
    Forbidden,
    FormatError,
    TopicdError,
    TopicNotFound,
    Unauthorized,
    WrongShard,
)
from topicd.ipc.protocol.codec import answer_map, packed
from topicd.ipc.protocol.following import Following, Wanted
from topicd.ipc.protocol.retry import FOREVER_S, Patience
from topicd.ipc.protocol.wire import ANSWER, message

SHORT_S = 0.1  # to connect anew, for who polls without waiting


class BlockingFeed(Feed[Connection]):
    def __init__(self, caller: Caller, shard: int, following: Following) -> None:
        super().__init__(shard, following)
        self._caller = caller

    def open(self, timeout: float) -> list[TopicNotFound]:
        """Connects and subscribes. Raises what the daemon refuses with; topics that are gone by now are returned."""
        connection = self._caller.dial(self.shard, timeout)
        gone: list[TopicNotFound] = []
        try:
            while not self._subscribed(connection, gone):
                pass
        except BaseException:
            connection.close()
            raise
        connection.set_timeout(None)
        self.connection = connection
        return gone

    def _subscribed(self, connection: Connection, gone: list[TopicNotFound]) -> bool:
        request_id = connection.next_id()
        request = self.following.request()
        connection.send(message(request.OP, request_id, packed(request.to_wire())))
        try:
            arrived = connection.answer(request_id, request.OP | ANSWER)
        except TopicNotFound as exc:
            self.refused(exc, gone)
            return False
        self.following.accepted(answer_map(arrived.body()), request_id)
        return True

    @property
    def broken(self) -> bool:
        """It has topics and no connection that could bring their records."""
        return not self.following.empty and (self.connection is None or self.connection.closed)

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None


class Watch(WatchFigures, Generic[E_co]):
    """Iterate it for records (and gaps, with `gaps=True`), `poll` it for the next one, or take whole `batches()`. Use
    it in one thread; `close` may come from any.

    >>> seq = client.publish("orders", b"hello")
    >>> with client.watch("orders", start="earliest") as events:
    ...     next(events)
    Record(orders#1, b'hello')
    """

    def __init__(
        self, caller: Caller, wanted: Wanted, *, on_gap: OnGap, batch_bytes: int, decode: Decoder | None = None
    ) -> None:
        self._caller = caller
        self._watching: Watching[BlockingFeed] = Watching(wanted, on_gap, batch_bytes, decode)
        self._selector: selectors.BaseSelector | None = None
        self._only: BlockingFeed | None = None  # there is no other one
        self._closed = False
        track(self)

    def forked(self) -> None:
        self._closed = True
        for feed in self._feeds:
            if feed.connection is not None:
                feed.connection.abandon()

    @property
    def _feeds(self) -> list[BlockingFeed]:
        return list(self._watching.feeds.values())

    # ---- life ----

    def open(self, resume: Resume | None = None) -> Watch[E_co]:
        """Subscribes; from here on nothing is missed. `resume` gives topics their (topic id, cursor) of before."""
        self._plan(resume)
        for feed in self._feeds:
            self._restore(feed, self._caller.timeout)
        return self

    def _plan(self, resume: Resume | None = None) -> None:
        def make(shard: int, following: Following) -> BlockingFeed:
            return BlockingFeed(self._caller, shard, following)

        for feed in self._watching.plan(self._caller.shard_map, make, resume):
            feed.close()

    def _restore(self, lost: BlockingFeed, within: float = FOREVER_S) -> None:
        """Once it was open, it waits for the daemon as long as that takes."""
        patience = Patience(self._caller.tempo, within)
        todo = [lost]
        while todo and not self._closed:
            if todo[-1].following.empty:
                todo.pop()
                continue
            if self._watching.outdated(self._caller.shard_map):
                self._plan()
                todo = self._feeds
            try:
                self._watching.gone(todo[-1].open(patience.remaining()))
                todo.pop()
            except WrongShard as exc:
                patience.pause(exc)
                self._plan()
                todo = self._feeds
            except TopicdError as exc:
                patience.pause(exc)
        self._register()

    def _register(self) -> None:
        if self._selector is not None:
            self._selector.close()
            self._selector = None
        feeds = self._feeds
        self._only = feeds[0] if len(feeds) == 1 else None
        if len(feeds) > 1:
            self._selector = selectors.DefaultSelector()
            for feed in feeds:
                if feed.connection is not None and not feed.connection.closed:
                    self._selector.register(feed.connection.sock, selectors.EVENT_READ, feed)

    def close(self) -> None:
        """Ends it; what was not iterated is given up."""
        self._closed = True
        for feed in self._feeds:
            feed.close()

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def buffered(self) -> bool:
        """The next event is here already."""
        return self._watching.buffered

    def __enter__(self) -> Watch[E_co]:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- events ----

    def __iter__(self) -> Watch[E_co]:
        return self

    def __next__(self) -> E_co:
        event: Event | None = self._watching.next_record()
        if event is None and self._only is not None:
            event = self._next_plain(self._only)
        while event is None:
            event = self._watching.begin(self._next_batch())
        return cast(E_co, event)

    def _next_plain(self, feed: BlockingFeed) -> Event | None:
        """The short way of a reader that keeps up, which runs cold for each record: receives, and has the record if
        nothing but a plain push has come. None: the long way finds whatever there is."""
        watching, connection = self._watching, feed.connection
        if (done := watching.done_with()) is not None:
            self._send(*done)
        if connection is None or connection.closed or watching.waiting or connection.cutter.pending or watching.over:
            return None
        try:
            size = connection.receive_some()
        except ConnectionLost as exc:
            self._recover(feed, exc, FOREVER_S)
            return None
        event = watching.take_plain(feed, connection, size)
        if event is None:
            connection.cutter.received(size)
        return event

    def poll(self, timeout: float = 0.0) -> E_co | None:
        """The next one, or None if there is none within so many seconds or the watch is over."""
        event: Event | None = self._watching.next_record()
        ends = self._caller.tempo.monotonic() + timeout
        while event is None:
            if not self._wait(ends):
                return None
            event = self._watching.begin(self._watching.next_batch())
        return cast("E_co | None", event)

    def batches(self) -> Iterator[Batch]:
        """Whole batches; `batch.gap` tells what is missing before its first record."""
        return _Batches(self)

    def _next_batch(self) -> Batch:
        if not self._wait(None):
            raise StopIteration
        return self._watching.next_batch()

    def _wait(self, ends: float | None) -> bool:
        """Until something has arrived; False when the time is over or nothing will come any more."""
        if (done := self._watching.done_with()) is not None:
            self._send(*done)
        while not self._watching.waiting:
            if self._closed or self._watching.over:
                return False
            if ends is None:
                for feed in self._readable():
                    self._receive(feed)
                continue
            left = max(0.0, ends - self._caller.tempo.monotonic())
            ready = self._readable_within(left)
            for feed in ready:
                self._receive(feed, left)
            if (not ready or not left) and not self._watching.waiting:
                return False
        return True

    def _readable_within(self, seconds: float) -> list[BlockingFeed]:
        feeds = [feed for feed in self._feeds if not feed.following.empty]
        begun = [f for f in feeds if f.broken or (f.connection is not None and f.connection.cutter.pending)]
        if begun:
            return begun
        poll = select.poll()
        by_descriptor = {f.connection.sock.fileno(): f for f in feeds if f.connection is not None}
        for descriptor in by_descriptor:
            poll.register(descriptor, select.POLLIN)
        return [by_descriptor[found] for found, _ in poll.poll(min(seconds, FOREVER_S) * 1000)]

    def _readable(self) -> list[BlockingFeed]:
        if self._selector is None:
            return [feed for feed in self._feeds if not feed.following.empty]
        # What came along with an earlier message makes no socket readable, and neither does a connection that broke
        # while credit was returned: receiving from it finds out.
        begun = [f for f in self._feeds if f.broken or (f.connection is not None and f.connection.cutter.pending)]
        return begun or [key.data for key, _ in self._selector.select()]

    def _receive(self, feed: BlockingFeed, within: float = FOREVER_S) -> None:
        """Blocks for one message of this feed, then takes along whatever has arrived behind it. One that is broken is
        made anew, if that can be done in time."""
        connection = feed.connection
        try:
            if connection is None:
                raise ConnectionLost("not connected")
            arrived = connection.receive()
            while True:
                if credit := self._watching.take(feed, connection, arrived):
                    self._send(connection, credit)
                more = connection.cutter.take()
                if more is None:
                    return
                arrived = more
        except (FormatError, Unauthorized, Forbidden):
            self.close()
            raise
        except (ConnectionLost, WrongShard) as exc:
            self._recover(feed, exc, within)

    def _recover(self, feed: BlockingFeed, exc: TopicdError, within: float) -> None:
        if self._closed:
            return
        self._caller.events.lost(feed.shard, exc)
        feed.close()
        try:
            self._restore(feed, max(within, SHORT_S))
        except TopicdError as again:
            if within >= FOREVER_S or not again.retriable:
                raise

    def _send(self, connection: Connection, credit: bytes) -> None:
        # A broken connection shows at the next receive.
        with contextlib.suppress(ConnectionLost):
            connection.send(credit)


class _Batches:
    def __init__(self, watch: Watch[Event]) -> None:
        self._watch = watch
        self._held: Batch | None = None

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> Batch:
        if self._held is None:
            self._held = self._watch._next_batch()
            if self._held.gap is not None:
                # May raise; the batch behind the gap comes with the next call.
                self._watch._watching.shall_yield(self._held.gap)
        batch, self._held = self._held, None
        return batch
