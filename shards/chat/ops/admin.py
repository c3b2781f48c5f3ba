"""What operators ask: figures, digests, what is too old, whether store and log agree, and other stores."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from topicd.errors import Conflict, ConnectionLost, InvalidRequest, TopicdError
from topicd.ipc.protocol import chat as wire
from topicd.shards.chat import checking, retention, syncing
from topicd.shards.chat.call import Call, operation
from topicd.shards.chat.digests import PIECE, made
from topicd.shards.chat.domains import DOMAINS
from topicd.shards.chat.operations import Clean, Retain
from topicd.shards.chat.retention import STEP
from topicd.shards.chat.service import Service
from topicd.shards.chat.store import TABLES, Store, Table
from topicd.shards.chat.view import unreadable_of

log = logging.getLogger(__name__)


@operation(wire.Stats)
async def stats(call: Call, want: wire.Stats) -> dict[str, Any]:
    service = call.service
    tables = {table.name: await _count(service.store, table) for table in TABLES} if want.rows else {}
    place = await service.log.place()
    return {
        "tables": tables,
        "applied_seq": service.view.applied,
        "head_seq": place.head_seq,
        "log_bytes": place.bytes,
        "base_seq": checking.base_of(service.where)[0],
        "cutoff_ms": service.view.cutoff_ms,
        "unreadable": unreadable_of(service.store)[0],
        "cleaning": retention.is_cleaning(service.store),
        "listeners": service.live.count,
        **service.counts,
        **service.store.figures(),
    }


async def rows_of(store: Store) -> int:
    return sum([await _count(store, table) for table in TABLES])


async def _count(store: Store, table: Table) -> int:
    count = 0
    for _ in store.scan(table):
        count += 1
        if count % PIECE == 0:
            await asyncio.sleep(0)
    return count


@operation(wire.DigestRequest)
async def digest(call: Call, want: wire.DigestRequest) -> dict[str, Any]:
    service = call.service
    cutoff_ms = max(want.cutoff_ms, service.view.cutoff_ms)
    found = {}
    for domain in DOMAINS:
        if want.fresh:
            one = await made(service.store, domain, cutoff_ms)
        else:
            one = await service.digests.get(domain, cutoff_ms)
        found[domain] = {"root": one.root.hex(), "count": one.count}
    return {"domains": found, "cutoff_ms": cutoff_ms}


@operation(wire.Retain)
async def retain(call: Call, want: wire.Retain) -> dict[str, Any]:
    service = call.service
    if want.cutoff_ms > service.wall.now_ms():
        raise InvalidRequest("the cutoff lies in the future: everything would go, and nothing could be sent")
    planned = await retention.plan(service.store, want.cutoff_ms)
    if not want.dry_run:
        await service.writer.one(Retain(want.cutoff_ms))
        await clean_all(service)
    return {"cutoff_ms": max(want.cutoff_ms, service.view.cutoff_ms), **planned._asdict()}


async def clean_all(service: Service) -> None:
    """Steps until nothing is left behind the cutoff; one after the other, so that others have their turns."""
    while retention.is_cleaning(service.store):
        await service.writer.one(Clean(STEP))


@operation(wire.Verify)
async def verify(call: Call, want: wire.Verify) -> dict[str, Any]:
    service = call.service
    async with service.checking:
        await service.writer.catch_up()
        taken = service.where / "verify.store"
        await service.store.settle()
        async with service.writer.still:
            service.store.checkpoint(taken)
            applied = service.view.applied
        return await checking.verify(service.log, service.store, applied, service.where, taken)


@operation(wire.Rebuild)
async def rebuild(call: Call, want: wire.Rebuild) -> dict[str, Any]:
    """Of a store that serves; ChatShard mends one that is closed."""
    service = call.service
    async with service.checking:
        await service.writer.catch_up()
        if want.over_holes:
            return await _without_the_log(service)
        work = service.where / "rebuilt"
        made_store = await checking.replayed(service.log, service.where, work, service.view.applied)
        await made_store.settle()
        await service.store.settle()
        async with service.writer.still:
            try:
                await checking.go_on(service.log, made_store, service.view.applied)
                rows = await rows_of(made_store)
            except TopicdError:
                made_store.close()
                raise
            made_store.close()
            await service.store.unread()
            service.replace_store(work)
        return {"seq": service.view.applied, "rows": rows}


async def _without_the_log(service: Service) -> dict[str, Any]:
    """What the log cannot give any more the store has: it becomes the base."""
    if await checking.is_whole(service.log, service.where, service.view.applied):
        raise InvalidRequest("over_holes is for a store whose log has holes; this log is whole")
    view = service.view
    seq = await checking.rebase(service.log, service.store, view, service.writer.still, service.where)
    log.warning("the chat store goes on without entries that its log has no more", extra={"seq": seq})
    return {"seq": seq, "rows": await rows_of(service.store)}


@operation(wire.SyncWith)
async def sync_with(call: Call, want: wire.SyncWith) -> dict[str, Any]:
    service = call.service
    if service.syncing.locked():
        raise Conflict("the store is being compared with another one")
    async with service.syncing:
        try:
            return await syncing.sync(service, want.target, want.token, want.method)
        except ConnectionLost as exc:
            # Of the other store: whoever asked is connected, and decides whether to try again.
            service.counts["sync_failures"] += 1
            raise Conflict(f"the other store is not there, or went away: {exc.message}") from None
        except TopicdError:
            service.counts["sync_failures"] += 1
            raise
