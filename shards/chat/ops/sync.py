"""What another store may ask: digests, ids, records; and what it gives. All of it in bounded pieces, none of it
remembered between two requests, so that whoever was cut off begins anew and loses nothing.
"""

from __future__ import annotations

import logging
from typing import Any

from topicd.errors import Conflict, InvalidRequest, TopicdError, UnsupportedVersion
from topicd.ipc.protocol import chat as wire
from topicd.shards.chat import domains
from topicd.shards.chat.call import Call, operation
from topicd.shards.chat.domains import BY_NAME
from topicd.shards.chat.negentropy import Reconciliation
from topicd.shards.chat.operations import Operation
from topicd.shards.chat.service import Service

log = logging.getLogger(__name__)

FRAME = 128 * 1024  # the longest message of a reconciliation
_ID = 32


@operation(wire.SyncOpen)
async def sync_open(call: Call, want: wire.SyncOpen) -> dict[str, Any]:
    service = call.service
    if want.version != wire.SYNC_VERSION:
        message = f"stores are kept equal by version {wire.SYNC_VERSION} here, not by {want.version}"
        raise UnsupportedVersion(message, supported=[wire.SYNC_VERSION])
    if want.store == service.id:
        raise InvalidRequest("this is the store itself")
    service.vectors.begin()
    return {"version": wire.SYNC_VERSION, "store": service.id, "cutoff_ms": service.view.cutoff_ms}


@operation(wire.SyncNodes)
async def sync_nodes(call: Call, want: wire.SyncNodes) -> dict[str, Any]:
    digest = await call.service.digests.get(want.domain, want.cutoff_ms)
    nodes = _numbers(want.nodes, 16**want.level)
    return {"root": digest.root, "hashes": b"".join(digest.children(want.level, node) for node in nodes)}


@operation(wire.SyncBuckets)
def sync_buckets(call: Call, want: wire.SyncBuckets) -> dict[str, Any]:
    found: list[bytes] = []
    size = 0
    for bucket in _numbers(want.buckets, 65_536):
        ids = b"".join(BY_NAME[want.domain].bucket(call.service.store, bucket, want.cutoff_ms))
        if found and size + len(ids) > wire.BATCH_BYTES:
            break
        found.append(ids)
        size += len(ids)
    return {"buckets": found, "taken": len(found)}


@operation(wire.SyncReconcile)
async def sync_reconcile(call: Call, want: wire.SyncReconcile) -> dict[str, Any]:
    vector = await call.service.vectors.get(want.domain, want.cutoff_ms, fresh=False)
    return {"message": Reconciliation(vector, FRAME).answer(want.message)}


@operation(wire.SyncFetch)
def sync_fetch(call: Call, want: wire.SyncFetch) -> dict[str, Any]:
    if len(want.ids) % _ID:
        raise InvalidRequest(f"ids have {_ID} bytes each")
    ids = [want.ids[at : at + _ID] for at in range(0, len(want.ids), _ID)]
    cutoff_ms = max(want.cutoff_ms, call.service.view.cutoff_ms)
    batch = BY_NAME[want.domain].batch(call.service.store, ids, wire.BATCH_BYTES, cutoff_ms)
    call.service.counts["synced_out"] += len(batch.records)
    return {"records": batch.records, "taken": batch.taken}


@operation(wire.SyncPush)
async def sync_push(call: Call, want: wire.SyncPush) -> dict[str, Any]:
    if not isinstance(want.records, list) or len(want.records) > wire.IDS_MAX:
        raise InvalidRequest(f"records must be a list of at most {wire.IDS_MAX}")
    return await take_in(call.service, want.domain, want.records)


async def take_in(service: Service, domain: str, records: list[Any]) -> dict[str, Any]:
    """Records of another store, through the log. One that is none refuses all; one that is too old, or of a time far
    ahead, only itself."""
    ops: list[Operation] = []
    why: TopicdError | None = None
    for record in records:
        try:
            ops.append(domains.incoming(BY_NAME[domain], record, service.clock))
        except Conflict as exc:
            why = exc
    outcomes = await service.writer.submit(ops) if ops else []
    stored = sum(not isinstance(outcome, TopicdError) for outcome in outcomes)
    if why is not None:
        facts = {"refused": len(records) - len(ops), "why": why.message}
        log.warning("records of another chat store are refused", extra=facts)
    service.counts["synced_in"] += stored
    return {"stored": stored, "refused": len(records) - stored}


def _numbers(raw: bytes, end: int) -> list[int]:
    if len(raw) % 2:
        raise InvalidRequest("numbers have 2 bytes each")
    found = [int.from_bytes(raw[at : at + 2], "big") for at in range(0, len(raw), 2)]
    if any(number >= end for number in found):
        raise InvalidRequest(f"there are {end} of these, from 0")
    return found
