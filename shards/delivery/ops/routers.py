"""Routers: created, looked at, listed, deleted; and what shards ask each other about them."""

from __future__ import annotations

import asyncio
from typing import Any

from topicd.errors import Forbidden, InvalidRequest, NotReady, TopicdError, WrongShard
from topicd.ipc.protocol.messages import (
    ApplyRouters,
    CreateRouter,
    DeleteRouter,
    ForgetRouters,
    GetRouter,
    ListRouters,
    LogCopies,
    RouterProgress,
    RoutersOf,
    RoutersPassed,
    SkipUnreadable,
    SourceHead,
    StepOver,
)
from topicd.shards.delivery.routing.definition import Definition
from topicd.shards.delivery.routing.routing import FRESH_S
from topicd.shards.delivery.sessions.call import Call, operation
from topicd.tokens import EVERYTHING

_LISTED_S = 1.0  # a list does without the progress of a shard that takes longer


def _owned(call: Call) -> None:
    """Asked in the right place, and not too early?"""
    replica = call.shard.routing.replica
    if not replica.is_owner:
        raise WrongShard(f"routers are decided about in shard {replica.owner}", shard=replica.owner)


def _of_shards(call: Call) -> None:
    if call.connection.rights is not EVERYTHING:
        raise Forbidden("only shards ask this")


# ---- what clients ask ----


@operation(CreateRouter)
def create(call: Call, want: CreateRouter) -> None:
    for topic in (want.source, want.dest):
        call.connection.rights.require("admin", topic)
    _owned(call)
    call.shard.routing.answer_later(call.shard.routing.registry.create(want), call.done)


@operation(DeleteRouter)
def delete(call: Call, want: DeleteRouter) -> None:
    _owned(call)
    routing = call.shard.routing
    known = routing.replica.graph.by_name.get(want.router)
    for topic in (known.source, known.dest) if known is not None else ():
        call.connection.rights.require("delete", topic)

    async def work() -> dict[str, Any]:
        return {"router": want.router, "deleted": await routing.registry.delete(want.router)}

    routing.answer_later(work(), call.done)


@operation(SkipUnreadable)
def skip(call: Call, want: SkipUnreadable) -> None:
    _owned(call)
    one, relay = call.shard.routing.replica.graph.get(want.router), call.shard.relay
    for topic in (one.source, one.dest):
        call.connection.rights.require("admin", topic)

    async def work() -> dict[str, Any]:
        step = StepOver(router_id=one.id, up_to_seq=want.up_to_seq)
        return {"router": want.router, **await relay.ask(relay.shard_of(one.dest), step)}

    call.shard.routing.answer_later(work(), call.done)


@operation(GetRouter)
def get(call: Call, want: GetRouter) -> None:
    _owned(call)
    one = call.shard.routing.replica.graph.get(want.router)
    for topic in (one.source, one.dest):
        call.connection.rights.require("read", topic)

    async def work() -> dict[str, Any]:
        found = await _progress(call, [one], fresh=True)
        if one.id not in found:
            raise NotReady(f"the shard of topic {one.dest!r} does not run router {one.router!r} yet", retry_after_ms=50)
        return {**one.options(), **found[one.id]}

    call.shard.routing.answer_later(work(), call.done)


@operation(ListRouters)
def list_routers(call: Call, want: ListRouters) -> None:
    _owned(call)
    rights, graph = call.connection.rights, call.shard.routing.replica.graph
    page, following = graph.page(want.prefix, want.source, want.dest, want.after or "", want.limit)
    page = [one for one in page if rights.allows(one.source) and rights.allows(one.dest)]

    async def work() -> dict[str, Any]:
        found = await _progress(call, page, fresh=False)
        rows = [{**one.options(), **found.get(one.id, {})} for one in page]
        return {"routers": rows, "next": following}

    call.shard.routing.answer_later(work(), call.done)


async def _progress(call: Call, routers: list[Definition], *, fresh: bool) -> dict[int, dict[str, Any]]:
    """By id; of a shard that does not answer, nothing."""
    relay, by_shard = call.shard.relay, dict[int, list[int]]()
    for one in routers:
        by_shard.setdefault(relay.shard_of(one.dest), []).append(one.id)
    found: dict[int, dict[str, Any]] = {}

    async def ask(shard: int, ids: list[int]) -> None:
        want = RouterProgress(routers=tuple(ids), fresh=fresh)
        if shard == call.shard.place.index:
            answer = await _local_progress(call, want)
        else:
            try:
                answer = await relay.ask(shard, want, FRESH_S + 1.0 if fresh else _LISTED_S)
            except TopicdError:
                return
        found.update({int(router_id): row for router_id, row in answer["routers"]})

    await asyncio.gather(*(ask(shard, ids) for shard, ids in by_shard.items()))
    return found


# ---- what shards ask ----


@operation(RoutersOf)
def routers_of(call: Call, want: RoutersOf) -> None:
    graph = call.shard.routing.replica.graph
    rights = call.connection.rights

    def names(found: list[Definition]) -> list[str]:
        """Of those whose other end may be known."""
        return [one.router for one in found if rights.allows(one.source) and rights.allows(one.dest)]

    call.answer({"from": names(graph.leaving(want.topic)), "to": names(graph.reaching(want.topic))})


@operation(SourceHead)
def source_head(call: Call, want: SourceHead) -> None:
    topic = call.shard.catalog.get(want.topic)
    head = topic.seqs.visible

    def told() -> None:
        call.answer({"topic_id": topic.id, "head_seq": head, **call.shard.routing.safety.facts(topic)})

    if want.synced and topic.policy.logged:
        outlet = call.shard.log.outlet_of(topic)
        if outlet.read_only_errno:
            raise outlet.refusal()
        if outlet.when_synced(told, call.refuse):
            return
    told()


@operation(RouterProgress)
def progress(call: Call, want: RouterProgress) -> None:
    _of_shards(call)
    call.shard.routing.answer_later(_local_progress(call, want), call.done)


async def _local_progress(call: Call, want: RouterProgress) -> dict[str, Any]:
    routing = call.shard.routing
    running = [one for number in want.routers if (one := routing.shop.forwarders.get(number)) is not None]
    if want.fresh:
        for one in running:
            try:
                async with asyncio.timeout(FRESH_S):
                    await routing.freshen(one.dest)
            except (TimeoutError, TopicdError):
                continue
    now = call.shard.place.clock.now_ms()
    return {"routers": [[one.one.id, one.progress(now)] for one in running]}


@operation(ApplyRouters)
def apply(call: Call, want: ApplyRouters) -> None:
    _of_shards(call)
    replica = call.shard.routing.replica
    replica.when_applied(want.up_to, lambda: call.answer({"applied": replica.applied}))


@operation(LogCopies)
def log_copies(call: Call, want: LogCopies) -> None:
    _of_shards(call)
    routing = call.shard.routing

    async def work() -> dict[str, Any]:
        await routing.safety.log_copies(want.routers, want.why)
        return {}

    routing.answer_later(work(), call.done)


@operation(StepOver)
def step_over(call: Call, want: StepOver) -> None:
    _of_shards(call)
    running = call.shard.routing.shop.forwarders.get(want.router_id)
    if running is None:
        raise NotReady("this shard does not run the router yet", retry_after_ms=50)
    running.step_over(want.up_to_seq, call.done)


@operation(RoutersPassed)
def passed(call: Call, want: RoutersPassed) -> None:
    _of_shards(call)
    if len(want.routers) != len(want.cursors):
        raise InvalidRequest("routers and cursors are not equally many")
    for name in call.shard.routing.safety.passed(want.routers, want.cursors):
        topic = call.shard.catalog.by_name.get(name)
        if topic is not None and topic.live:
            call.shard.deletion.free_acked(topic)
    call.answer({})


@operation(ForgetRouters)
def forget(call: Call, want: ForgetRouters) -> None:
    _of_shards(call)
    _owned(call)
    routing = call.shard.routing

    async def work() -> dict[str, Any]:
        return {"removed": await routing.registry.forget(want.topic, want.topic_id)}

    routing.answer_later(work(), call.done)
