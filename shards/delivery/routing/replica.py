"""The definitions of all routers, as this shard knows them: the records of `topicd.routers`, followed. Promise: what is
in the graph was stored, in the order in which it was stored; after a broken connection the whole is read again, so
nothing that went meanwhile stays.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from topicd.errors import FormatError, StorageCorrupt, TopicdError
from topicd.frames import core
from topicd.ipc.protocol.codec import Fetched
from topicd.ipc.protocol.messages import Subscribe, SubscribedTopic
from topicd.limits import FETCH_BYTES_MAX, FETCH_RECORDS_MAX, MIB, ROUTERS
from topicd.shards.delivery.place import Place
from topicd.shards.delivery.reading.filters import NO_FILTER
from topicd.shards.delivery.reading.reading import Reader
from topicd.shards.delivery.relay import Followed, Listener, Relay
from topicd.shards.delivery.routing.definition import Definition, parse_record
from topicd.shards.delivery.routing.graph import Graph
from topicd.shards.delivery.routing.pauses import Pauses
from topicd.shards.delivery.topic.catalog import Catalog
from topicd.shards.delivery.topic.follower import Told
from topicd.shards.delivery.topic.topic import Topic

log = logging.getLogger(__name__)

_WINDOW = MIB


class Replica(Listener):
    def __init__(
        self, place: Place, loop: asyncio.AbstractEventLoop, catalog: Catalog, reader: Reader, relay: Relay
    ) -> None:
        self._loop = loop
        self._catalog = catalog
        self._reader = reader
        self._relay = relay
        self.owner = relay.shard_of(ROUTERS)
        self.is_owner = self.owner == place.index
        self.graph = Graph()
        self.applied = 0
        self.loaded = False
        self.seqs: dict[str, int] = {}  # by name: the record that says what it is
        self.stale: set[str] = set()  # names with records that say nothing any more; known to the owner
        # Told of what changes, one router at a time.
        self.on_put: Callable[[Definition], None] = lambda one: None
        self.on_gone: Callable[[Definition], None] = lambda one: None
        self.on_loaded: Callable[[], None] = lambda: None
        self._fresh: Graph | None = None  # while the whole is read
        self._followed: Followed | None = None
        self._pauses = Pauses()
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        self._closed = False
        self.opened = False

    def open(self) -> None:
        self.opened = True
        if not self.is_owner:
            self._connect()
            return
        topic = self._catalog.by_name.get(ROUTERS)
        if topic is not None:
            self._attach(topic)
        self._catalog.on_born.append(self._born)
        self._settle_load()

    def close(self) -> None:
        self._closed = True
        if self._followed is not None:
            self._followed.close()

    def when_applied(self, up_to: int, then: Callable[[], None]) -> None:
        """`then` when the definitions up to this seq are in force here."""
        if self.loaded and self.applied >= up_to:
            then()
        else:
            self._waiting.append((up_to, then))

    # ---- in the shard that owns the topic ----

    def _born(self, topic: Topic) -> None:
        if topic.name == ROUTERS:
            self._attach(topic)

    def _attach(self, topic: Topic) -> None:
        def moved() -> None:
            while self.applied < topic.seqs.visible:
                try:
                    answer = self._reader.fetch(topic, self.applied, FETCH_RECORDS_MAX, FETCH_BYTES_MAX, NO_FILTER)
                except StorageCorrupt as exc:
                    log.error("definitions of routers cannot be read", extra={"error": exc.message})
                    self.applied = max(self.applied + 1, int(exc.detail.get("last_seq", 0)))
                    continue
                for part in answer.parts:
                    self._apply(part, 0, len(part))
                self.applied = answer.next_from
            self._tell()

        topic.followers.add(Told(moved, lambda: None))
        moved()

    # ---- in the others ----

    def _connect(self) -> None:
        if self._closed:
            return
        # It may not be there yet.
        want = Subscribe(topics=(SubscribedTopic(topic=ROUTERS),), wait=True, credit=_WINDOW, match=None, nodes=())
        try:
            self._followed = self._relay.follow(self.owner, want, self)
        except TopicdError as exc:
            self.lost(exc)

    def accepted(self, answer: dict[str, Any]) -> None:
        self._pauses.reset()
        self.applied = 0
        self._fresh = Graph()
        if not answer.get("topics"):
            self._settle_load()

    def pushed(self, fetched: Fetched) -> None:
        self._apply(fetched.buffer, fetched.start, fetched.end)
        self.applied = fetched.next_from_seq
        if self._followed is not None:
            self._followed.grant(fetched.end - fetched.start)
        if self._fresh is not None and self.applied >= fetched.head_seq:
            self._settle_load()
        self._tell()

    def noticed(self, notice: dict[str, Any]) -> None:
        if notice.get("event") == "error":
            log.error("definitions of routers cannot be read", extra={"error": notice.get("message")})
            followed, self._followed = self._followed, None
            if followed is not None:
                followed.close()
            self._loop.call_later(self._pauses.next(), self._connect)

    def lost(self, error: TopicdError) -> None:
        self._followed = None
        if not self._closed:
            self._loop.call_later(self._pauses.next(), self._connect)

    def _settle_load(self) -> None:
        """The whole was read: what is not in it is gone."""
        fresh, self._fresh = self._fresh, None
        if fresh is not None:
            before, self.graph = self.graph, fresh
            for one in before.by_name.values():
                if fresh.by_id.get(one.id) is None:
                    self.on_gone(one)
            for one in fresh.by_name.values():
                self.on_put(one)
        self.loaded = True
        self.on_loaded()
        self._tell()

    # ---- records ----

    def _apply(self, buffer: Any, start: int, end: int) -> None:
        for seq, _, _, _, _, data in core.decode_frames(buffer, start, end):
            try:
                said = parse_record(data, seq)
            except FormatError as exc:
                log.error("definition passed over", extra={"error": exc.message})
                continue
            if isinstance(said, Definition):
                self._put(said, seq)
            else:
                self._forget(said)

    def _put(self, one: Definition, seq: int) -> None:
        graph = self.graph if self._fresh is None else self._fresh
        before = graph.by_name.get(one.router)
        if self.is_owner:
            self.seqs[one.router] = seq
            if before is not None:
                self.stale.add(one.router)
        graph.put(one)
        if self._fresh is None:
            if before is not None and before.id != one.id:
                self.on_gone(before)
            self.on_put(one)

    def _forget(self, ids: list[int]) -> None:
        """One record, so one step: nobody sees some of them."""
        graph = self.graph if self._fresh is None else self._fresh
        gone = [graph.by_id[number] for number in ids if number in graph.by_id]
        for one in gone:
            graph.remove(one.router)
            if self.is_owner:
                self.stale.add(one.router)
                self.seqs.pop(one.router, None)
        if self._fresh is None:
            for one in gone:
                self.on_gone(one)

    def _tell(self) -> None:
        if not self.loaded or self._fresh is not None:
            return
        ready = [then for up_to, then in self._waiting if up_to <= self.applied]
        if ready:
            self._waiting = [entry for entry in self._waiting if entry[0] > self.applied]
            for then in ready:
                then()
