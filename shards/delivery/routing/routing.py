"""Routers, as the rest of the shard sees them. Promise: who reads a destination gets a copy of everything that its
source had acknowledged before, or after a short while what there is; a topic goes with all its routers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any

from topicd.errors import Internal, TopicdError
from topicd.ipc.protocol.messages import ForgetRouters
from topicd.model import is_internal
from topicd.shards.delivery.place import Place
from topicd.shards.delivery.relay import Relay
from topicd.shards.delivery.routing.definition import Definition
from topicd.shards.delivery.routing.registry import Registry
from topicd.shards.delivery.routing.replica import Replica
from topicd.shards.delivery.routing.safety import Safety
from topicd.shards.delivery.routing.workshop import Workshop
from topicd.shards.delivery.topic.catalog import Catalog
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.delivery.writing.log import Log

log = logging.getLogger(__name__)

FRESH_S = 2.0  # so long a read waits for the copies of what its source has acknowledged


class Routing:
    def __init__(
        self,
        place: Place,
        loop: asyncio.AbstractEventLoop,
        catalog: Catalog,
        relay: Relay,
        replica: Replica,
        registry: Registry,
        shop: Workshop,
        changes: Log,
    ) -> None:
        self._place = place
        self._loop = loop
        self._catalog = catalog
        self._relay = relay
        self.replica = replica
        self.registry = registry
        self.shop = shop
        self._tasks: set[asyncio.Task[None]] = set()
        self.safety = Safety(place, relay, replica, shop, changes, self.spawn)
        registry.settle = self.safety.settle
        shop.is_fed = lambda source: bool(replica.graph.reaching(source))
        replica.on_put = self._put
        replica.on_gone = self._gone
        replica.on_loaded = self._loaded
        self.free_acked: Callable[[Topic], None] = lambda topic: None  # set by those who remove records

    def prepare(self) -> None:
        """Before anything else: there may be routers, though nobody knows them yet."""
        self.replica.opened = True

    def open(self) -> None:
        self.replica.open()

    def close(self) -> None:
        """Nothing more is copied; what is under way ends."""
        self.replica.close()
        self.shop.close()
        self._relay.close()

    def tick(self) -> None:
        self.shop.tick()
        for topic_id in self.safety.tell_passed():
            topic = self._catalog.by_id.get(topic_id)
            if topic is not None and topic.live:
                self.free_acked(topic)

    # ---- definitions come and go ----

    def _put(self, one: Definition) -> None:
        source = self._catalog.by_id.get(one.source_id)
        if source is not None and source.inflows.derived is not None and self.replica.graph.in_circle(one):
            self.spawn(self._log_circle(source.inflows.derived))
        if self._relay.shard_of(one.dest) != self._place.index:
            return
        dest = self._catalog.by_id.get(one.dest_id)
        if dest is None:
            log.error("destination of a router is gone", extra={"router": one.router, "topic": one.dest})
            return
        self.shop.start(one, dest)

    async def _log_circle(self, router_id: int) -> None:
        with suppress(TopicdError):
            await self.safety.log_copies((router_id,), "it is part of a circle")

    def _gone(self, one: Definition) -> None:
        self.shop.stop(one.id)
        self.safety.forget(one.id)

    def _loaded(self) -> None:
        """What the log told of routers that are gone since."""
        known = self.replica.graph.by_id
        for topic in list(self._catalog.by_id.values()):
            for router_id in [number for number in topic.inflows.routers if number not in known]:
                self.shop.end(topic, router_id)
            if topic.config.retain == "acked":
                self.free_acked(topic)

    # ---- reads of destinations ----

    def is_fresh(self, topic: Topic) -> bool:
        """Whoever reads it need not wait."""
        flows = topic.inflows.routers
        if not flows:
            return True
        running = [self.shop.forwarders.get(router_id) for router_id in flows]
        return all(one is not None and one.feed.ends_at(one.flow.cursor) for one in running)

    def when_fresh(self, topics: Iterable[Topic], then: Callable[[], None]) -> None:
        """`then` when what was acknowledged in their sources before now has its copies in these topics; after FRESH_S,
        or where a router stands still, anyway."""

        async def wait() -> None:
            try:
                async with asyncio.timeout(FRESH_S):
                    for topic in topics:
                        await self.freshen(topic)
            except (TimeoutError, TopicdError):
                pass
            then()

        self.spawn(wait())

    async def freshen(self, topic: Topic) -> None:
        if not self.replica.loaded:
            loaded: asyncio.Future[None] = self._loop.create_future()
            self.replica.when_applied(0, lambda: _set(loaded))
            await loaded
        for router_id in list(topic.inflows.routers):
            forwarder = self.shop.forwarders.get(router_id)
            if forwarder is None or forwarder.waiting is not None:
                continue
            if forwarder.flow.why is None:
                decided = asyncio.Event()
                forwarder.when_decided(decided.set)
                await decided.wait()
            head = await forwarder.feed.ask_head()
            reached = asyncio.Event()
            take_back = forwarder.when_reached(head, reached.set)
            if take_back is not None:
                try:
                    await reached.wait()
                finally:
                    take_back()

    # ---- topics go ----

    def delete(self, topic: Topic, if_empty: bool, done: Callable[[list[str], TopicdError | None], None]) -> None:
        """First its routers, in one step; who looks for it meanwhile is told to come back."""
        known = self.replica.loaded or not self.replica.opened
        if is_internal(topic.name) or (known and not self.replica.graph.touching(topic.name)):
            self._catalog.delete(topic, if_empty=if_empty, done=lambda gone, error: done([], error))
            return
        self._catalog.check_deletable(topic, if_empty=if_empty)
        topic.leaving, topic.live = True, False

        def left(removed: list[str], error: TopicdError | None) -> None:
            topic.leaving = False
            done(removed, error)

        async def go() -> None:
            try:
                want = ForgetRouters(topic=topic.name, topic_id=topic.id)
                answer = await self._relay.ask(self.replica.owner, want)
                removed = [str(name) for name in answer.get("removed") or []]
                topic.live = True
                self._catalog.delete(topic, if_empty=if_empty, done=lambda gone, error: left(removed, error))
            except TopicdError as exc:
                topic.leaving, topic.live = False, True
                done([], exc)

        self.spawn(go())

    # ---- work of its own ----

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def answer_later(
        self,
        work: Coroutine[Any, Any, dict[str, Any]],
        done: Callable[[dict[str, Any] | None, TopicdError | None], None],
    ) -> None:
        async def run() -> None:
            try:
                body = await work
            except TopicdError as exc:
                done(None, exc)
            except Exception:
                log.exception("request failed")
                done(None, Internal("the request failed inside the daemon; its log says why"))
            else:
                done(body, None)

        self.spawn(run())

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("work for routers failed", exc_info=task.exception())


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
