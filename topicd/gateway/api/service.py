"""Health and readiness. Contract: docs/http.md."""

from __future__ import annotations

import functools
import time
from typing import Any

import msgspec

from topicd import __version__
from topicd.gateway import errors
from topicd.gateway.endpoints import Call, endpoint
from topicd.gateway.sse import RETRY, frame
from topicd.gateway.web.messages import Reply
from topicd.ipc.protocol.messages import Totals


@endpoint("GET", "/v0/health", kind="open")
@endpoint("GET", "/healthz", kind="open")
async def health(call: Call) -> Reply:
    """Is the process there?"""
    uptime = int((time.monotonic() - call.service.started) * 1000)
    return Reply(200, msgspec.json.encode({"status": "ok", "version": __version__, "uptime_ms": uptime}))


@endpoint("GET", "/v0/stats", "admin", kind="events", query={"token": "a key, instead of the header"})
async def stats(call: Call) -> Reply | None:
    """What every process tells of itself, once a second."""
    with call.service.usage.stream(call.key):
        events = call.events()
        events.write(RETRY)

        def told(status: dict[str, Any]) -> None:
            if events.has_room():
                events.write(frame(b"stats", call.service.stats.text))

        end = call.service.stats.watch(told)
        try:
            await events.until_over()
        finally:
            end()
    return None


@endpoint("GET", "/openapi.json", kind="open")
async def openapi(call: Call) -> Reply:
    """This description."""
    return Reply(200, _description())


@functools.cache
def _description() -> bytes:
    from topicd.gateway.openapi import describe

    return msgspec.json.encode(describe())


@endpoint("GET", "/v0/ready", kind="open")
@endpoint("GET", "/readyz", kind="open")
async def ready(call: Call) -> Reply:
    """Does every shard serve?"""
    service = call.service
    if service.draining:
        raise errors.shutting_down()
    if not service.ready:
        raise errors.not_ready(service.progress)
    topics = sum(totals["topics"] for totals in await service.shards.ask_all(Totals()))
    return Reply(200, msgspec.json.encode({"status": "ready", "wal_replay_complete": True, "topics": topics}))
