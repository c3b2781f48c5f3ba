"""Where routers are decided about: the shard that owns `topicd.routers`. Promise: one decision at a time, judged
against all that was decided before; it is answered when every shard that can be reached acts by it; a refusal leaves
nothing behind, and a topic goes together with all its routers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

from topicd.errors import NotReady, Throttled, TopicdError, TopicNotFound
from topicd.ipc.protocol.messages import ApplyRouters, CreateRouter, DeleteTopic, OpenTopic, SourceHead
from topicd.model import TagMatch
from topicd.shards.delivery.place import Place
from topicd.shards.delivery.relay import Relay
from topicd.shards.delivery.removing.deletion import Deletion
from topicd.shards.delivery.routing.definition import Definition, forget_record
from topicd.shards.delivery.routing.own_topic import OwnTopic
from topicd.shards.delivery.routing.replica import Replica
from topicd.shards.delivery.topic.topic import Topic

log = logging.getLogger(__name__)

_WAITING_MAX = 1_000  # decisions that wait for their turn
_APPLY_S = 2.0  # a shard that does not answer in that time is starting, and reads the whole when it has
_FORGOTTEN = "-"  # tag of records that routers are gone; no router's name


class Registry:
    def __init__(self, place: Place, relay: Relay, replica: Replica, own: OwnTopic, deletion: Deletion) -> None:
        self._place = place
        self._relay = relay
        self._replica = replica
        self._own = own
        self._deletion = deletion
        self._lock = asyncio.Lock()
        self._waiting = 0
        # Destinations of these are logged, for this reason. Set by those who know how.
        self.settle: Callable[[list[Definition], str], Awaitable[None]] = _nothing

    async def create(self, want: CreateRouter) -> dict[str, Any]:
        async with self._turn():
            wanted = Definition.wanted(want, self._replica.graph.by_name.get(want.router))
            dest_known = await self._look(wanted.dest)
            if dest_known is None and not want.create_dest:
                raise TopicNotFound(f"no topic named {wanted.dest!r}", topic=wanted.dest)
            graph = self._replica.graph
            graph.judge(wanted, self._place.settings.max_routers)
            known = graph.by_name.get(wanted.router)
            if known is not None:
                changed = known.with_options_of(wanted)
                if changed != known:
                    await self.settle([known], "its router was changed")
                    await self._decide(changed.to_record(), changed.router)
                return {"created": False, "changed": changed != known, **changed.options()}
            await self._own.open()
            await self.settle(graph.reaching(wanted.dest), "another router leads to it")
            made = await self._with_topics(wanted)
            await self._decide(made.to_record(), made.router)
            await self._check_topics(made)
            return {"created": True, "changed": False, **made.options()}

    async def delete(self, router: str) -> bool:
        async with self._turn():
            known = self._replica.graph.by_name.get(router)
            if known is None:
                return False
            await self.settle([known], "its router was deleted")
            await self._decide(forget_record([known.id]), _FORGOTTEN)
            return True

    async def forget(self, topic: str, topic_id: int) -> list[str]:
        """The routers of a topic that is about to go; that they are gone is one record."""
        async with self._turn():
            graph = self._replica.graph
            names = [
                name
                for name in graph.touching(topic)
                if topic_id in (graph.by_name[name].source_id, graph.by_name[name].dest_id)
            ]
            if names:
                leaving = [graph.by_name[name] for name in names if graph.by_name[name].source_id == topic_id]
                await self.settle(leaving, "its source was deleted")
                await self._decide(forget_record([graph.by_name[name].id for name in names]), _FORGOTTEN)
            return names

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """One after the other, and not too many in line."""
        if self._waiting >= _WAITING_MAX:
            raise Throttled("too many changes of routers at once", limit="routers", retry_after_ms=100)
        self._waiting += 1
        try:
            async with self._lock:
                yield
        finally:
            self._waiting -= 1

    # ---- topics ----

    async def _look(self, topic: str) -> dict[str, Any] | None:
        try:
            return await self._relay.ask(self._relay.shard_of(topic), SourceHead(topic=topic))
        except TopicNotFound:
            return None

    async def _with_topics(self, wanted: Definition) -> Definition:
        """Both are there; or what was made for it goes again."""
        created: list[str] = []
        try:
            ids = {}
            for topic in (wanted.source, wanted.dest):
                want = OpenTopic(topic=topic, config=None)
                answer = await self._relay.ask(self._relay.shard_of(topic), want)
                ids[topic] = int(answer["topic_id"])
                if answer.get("created"):
                    created.append(topic)
            head = await self._relay.ask(self._relay.shard_of(wanted.source), SourceHead(topic=wanted.source))
        except TopicdError:
            for topic in created:
                with suppress(TopicdError):
                    await self._relay.ask(self._relay.shard_of(topic), DeleteTopic(topic=topic, if_empty=True))
            raise
        return replace(wanted, source_id=ids[wanted.source], dest_id=ids[wanted.dest], from_seq=int(head["head_seq"]))

    async def _check_topics(self, made: Definition) -> None:
        """Whoever deletes one of them from now on takes the router along; who did so before has not known of it."""
        for topic, topic_id in ((made.source, made.source_id), (made.dest, made.dest_id)):
            try:
                found = await self._look(topic)
            except NotReady:
                continue  # being deleted, with its routers; or its shard is starting
            if found is None or found.get("topic_id") != topic_id:
                await self._decide(forget_record([self._replica.graph.get(made.router).id]), _FORGOTTEN)
                raise TopicNotFound(f"topic {topic!r} was deleted meanwhile", topic=topic)

    # ---- decisions ----

    async def _decide(self, record: bytes, tag: str) -> None:
        topic = await self._own.open()
        seq = await self._own.append(topic, record, tag)
        applied: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._replica.when_applied(seq, lambda: None if applied.done() else applied.set_result(None))
        await applied
        if await self._tell_all(topic, seq):
            self._compact(topic, seq)

    async def _tell_all(self, topic: Topic, seq: int) -> bool:
        want = ApplyRouters(topic_id=topic.id, up_to=seq)
        others = [shard for shard in range(self._place.delivery_shards) if shard != self._place.index]
        answers = await asyncio.gather(
            *(self._relay.ask(shard, want, _APPLY_S) for shard in others), return_exceptions=True
        )
        missing = [shard for shard, answer in zip(others, answers, strict=True) if isinstance(answer, BaseException)]
        if missing:
            log.warning("shards do not know of a router yet", extra={"shards": missing})
        return not missing

    def _compact(self, topic: Topic, seq: int) -> None:
        """Every shard knows the newest: what it replaced need not be read again. Definitions go before the words that
        they are gone, so that none comes back."""
        stale, self._replica.stale = self._replica.stale, set()
        left = len(stale)

        def done(body: dict[str, Any] | None, error: TopicdError | None) -> None:
            nonlocal left
            left -= 1
            if error is not None:
                self._replica.stale |= stale
            elif not left and not self._replica.stale & stale:
                forgotten = TagMatch(_FORGOTTEN.encode())
                self._deletion.delete(topic, seq + 1, forgotten, lambda body, error: None)

        for name in sorted(stale):
            before = self._replica.seqs.get(name, seq)
            self._deletion.delete(topic, before, TagMatch(name.encode()), done)


async def _nothing(routers: list[Definition], why: str) -> None:
    return
