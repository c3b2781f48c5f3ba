"""What routers ask of shards so that copies are safe. Promise: a source loses records that have been copied only when
every destination that nobody has logged is; a destination is derived only when its source knows of its router; copies
are stored only when their records are durable, or nobody could tell after a loss of power what they are copies of.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from topicd.errors import NotReady, TopicdError
from topicd.ipc.protocol.messages import ApplyRouters, LogCopies, RoutersPassed, SourceHead
from topicd.limits import LIST_PAGE_MAX, MAX_SEQ
from topicd.model import TopicConfig
from topicd.shards.delivery.place import Place
from topicd.shards.delivery.relay import Relay
from topicd.shards.delivery.routing.definition import Definition
from topicd.shards.delivery.routing.kinds import logged_from, logged_into, unfit_source
from topicd.shards.delivery.routing.replica import Replica
from topicd.shards.delivery.routing.tools import Decided
from topicd.shards.delivery.routing.workshop import Workshop
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.delivery.writing.log import Log

_RETRY_S = 0.1
_REMADE_S = 4.0  # so long somebody waits for copies that are made again
_DURABLE_S = 2.0

Then = Callable[[], None]
Refused = Callable[[TopicdError], None]


class Safety:
    def __init__(
        self,
        place: Place,
        relay: Relay,
        replica: Replica,
        shop: Workshop,
        log: Log,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._place = place
        self._relay = relay
        self._replica = replica
        self._shop = shop
        self._log = log
        self._spawn = spawn
        self._logged: set[int] = set()  # routers whose destinations are known to be logged
        self._passed: dict[int, int] = {}  # by router: what shards have told of how far it has come
        shop.decider = self.decide

    # ---- the destination's shard: which kind ----

    def decide(self, forwarder: Decided) -> None:
        self._spawn(self._decide(forwarder))

    async def _decide(self, forwarder: Decided) -> None:
        one, dest = forwarder.one, forwarder.dest
        shard = self._relay.shard_of(one.source)
        while not forwarder.closed:
            try:
                # From then on whoever removes records from the source asks this router first; and what was being
                # removed without that is removed.
                await self._relay.ask(shard, ApplyRouters(topic_id=max(1, one.source_id), up_to=one.id))
                answer = await self._relay.ask(shard, SourceHead(topic=one.source, synced=True))
            except TopicdError:
                await asyncio.sleep(_RETRY_S)
                continue
            why = str(answer["logged"]) or logged_into(dest, self._replica.graph, str(answer["durability"]))
            forwarder.begin(why)
            return

    async def log_copies(self, router_ids: tuple[int, ...], why: str) -> None:
        """Durable when it returns."""
        await self._loaded()
        for router_id in router_ids:
            forwarder = self._shop.forwarders.get(router_id)
            if forwarder is None or not forwarder.dest.live:
                continue
            dest = forwarder.dest
            if forwarder.flow.why is None:
                forwarder.begin(why)
            remade = asyncio.Event()
            forwarder.when_remade(remade.set)
            try:
                async with asyncio.timeout(_REMADE_S):
                    await remade.wait()
            except TimeoutError:
                pass
            if forwarder.remaking and not forwarder.closed:
                reason = f": {forwarder.waiting}" if forwarder.waiting else ""
                message = f"copies of router {forwarder.one.router!r} are being made again{reason}"
                raise NotReady(message, retry_after_ms=100)
            if forwarder.derived:
                self._log.log_copies(dest, why)
            await self._durable(dest)

    async def _durable(self, dest: Topic) -> None:
        outlet = self._log.outlet_of(dest)
        if outlet.read_only_errno:
            raise outlet.refusal()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def failed(error: TopicdError) -> None:
            if not done.done():
                done.set_exception(error)

        if outlet.when_synced(lambda: None if done.done() else done.set_result(None), failed):
            await done

    async def unsafe_copies(self, topics: list[Topic]) -> set[int]:
        """Of these, those whose sources in other shards are not known to be durable. Those of this shard were waited
        for."""
        here, by_source = self._place.index, dict[str, set[int]]()
        unsafe: set[int] = set()
        for topic in topics:
            forwarder = self._shop.forwarders.get(topic.inflows.derived or 0)
            if forwarder is None:
                unsafe.add(topic.id)
            elif self._relay.shard_of(forwarder.one.source) != here:
                by_source.setdefault(forwarder.one.source, set()).add(topic.id)

        async def ask(source: str, ids: set[int]) -> None:
            try:
                want = SourceHead(topic=source, synced=True)
                await self._relay.ask(self._relay.shard_of(source), want, _DURABLE_S)
            except TopicdError:
                unsafe.update(ids)

        await asyncio.gather(*(ask(source, ids) for source, ids in by_source.items()))
        return unsafe

    # ---- the source's shard ----

    def before_loss(self, topic: Topic, why: str, then: Then, refused: Refused) -> None:
        """`then` when nobody needs this topic's records as they are now."""
        if (self._replica.loaded and not self._derived_from(topic)) or not self._replica.opened:
            then()
            return

        async def settle() -> None:
            try:
                await self._loaded()
                await self.settle(self._derived_from(topic), why)
                then()
            except TopicdError as exc:
                refused(exc)

        self._spawn(settle())

    def before_config(self, topic: Topic, config: TopicConfig, then: Then, refused: Refused) -> None:
        why = unfit_source(config)
        if why:
            self.before_loss(topic, why, then, refused)
        else:
            then()

    def _derived_from(self, topic: Topic) -> list[Definition]:
        """Those that may be."""
        leaving = self._replica.graph.leaving(topic.name)
        return [one for one in leaving if one.source_id == topic.id and one.id not in self._logged]

    async def settle(self, routers: list[Definition], why: str) -> None:
        """Their destinations are logged, wherever they are."""
        by_shard: dict[int, list[int]] = {}
        for one in routers:
            by_shard.setdefault(self._relay.shard_of(one.dest), []).append(one.id)
        for shard, ids in by_shard.items():
            for at in range(0, len(ids), LIST_PAGE_MAX):
                some = tuple(ids[at : at + LIST_PAGE_MAX])
                await self._relay.ask(shard, LogCopies(routers=some, why=why))
                self._logged.update(some)

    def facts(self, topic: Topic) -> dict[str, Any]:
        return {"durability": topic.config.durability, "logged": logged_from(topic)}

    async def _loaded(self) -> None:
        if not self._replica.loaded:
            loaded = asyncio.Event()
            self._replica.when_applied(0, loaded.set)
            await loaded.wait()

    def forget(self, router_id: int) -> None:
        self._logged.discard(router_id)
        self._passed.pop(router_id, None)

    # ---- what a source may let go of ----

    def passed(self, router_ids: tuple[int, ...], cursors: tuple[int, ...]) -> set[str]:
        """Shards tell; the sources that it concerns."""
        by_id, concerned = self._replica.graph.by_id, set[str]()
        for router_id, cursor in zip(router_ids, cursors, strict=True):
            if router_id in by_id:
                self._passed[router_id] = cursor
                concerned.add(by_id[router_id].source)
        return concerned

    def passed_by_all(self, topic: Topic) -> int:
        """Every router that leaves the topic has copied what lies up to there."""
        if not self._replica.opened:
            return MAX_SEQ
        if not self._replica.loaded:
            return 0
        found = MAX_SEQ
        for one in self._replica.graph.leaving(topic.name):
            running = self._shop.forwarders.get(one.id)
            cursor = running.flow.cursor if running is not None else self._passed.get(one.id, 0)
            found = min(found, max(cursor, one.from_seq))
        return found

    def tell_passed(self) -> set[int]:
        """Now and then: the sources hear how far their routers have come. Returned: those that are here."""
        by_shard, here = dict[int, list[tuple[int, int]]](), set[int]()
        for forwarder in self._shop.forwarders.values():
            shard, now = self._relay.shard_of(forwarder.one.source), (forwarder.feed.opened, forwarder.flow.cursor)
            if forwarder.told == now:
                continue
            if shard == self._place.index:
                here.add(forwarder.one.source_id)
            elif forwarder.feed.opened:
                by_shard.setdefault(shard, []).append((forwarder.one.id, forwarder.flow.cursor))
            forwarder.told = now
        for shard, rows in by_shard.items():
            self._spawn(self._tell(shard, rows))
        return here

    async def _tell(self, shard: int, rows: list[tuple[int, int]]) -> None:
        for at in range(0, len(rows), LIST_PAGE_MAX):
            ids, cursors = zip(*rows[at : at + LIST_PAGE_MAX], strict=True)
            try:
                await self._relay.ask(shard, RoutersPassed(routers=ids, cursors=cursors))
            except TopicdError:
                for router_id in ids:
                    forwarder = self._shop.forwarders.get(router_id)
                    if forwarder is not None:
                        forwarder.told = (0, 0)
