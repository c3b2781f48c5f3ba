"""Metrics with the names of the HTTP contract, as Prometheus text or JSON. Contract: docs/http.md.

Promise: always an answer; what a process that is away would tell is left out or counts as nothing. topicd's own names
are on metrics.sock (docs/metrics.md).
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from topicd.errors import TopicdError
from topicd.gateway.endpoints import Call, Service, endpoint
from topicd.gateway.web.messages import Reply
from topicd.ipc.protocol import messages
from topicd.ipc.protocol.messages import ListRouters, ListTopics, QueueState, Status, Totals
from topicd.limits import LIST_PAGE_MAX, ROUTERS

TOPICS_SHOWN = 1_000
BOUNDS_US = (50, 100, 250, 500, 1_000, 5_000, 10_000, 50_000, 100_000)
_LATE_S = 2.0
_CLASSES = ("ephemeral", "memory", "disk", "fsync")
_TEXT = b"text/plain; version=0.0.4"


class Log(NamedTuple):
    """The WAL shards together."""

    frames: int
    batches: int
    fsyncs: int
    bytes_written: int
    rotations: int
    submit_full_total: int
    queue_depth: int
    queue_depth_peak: int
    read_only: bool
    fsync_micros_total: int
    histogram: list[int]


class Found(NamedTuple):
    gauges: dict[str, Any]
    classes: dict[str, int]
    log: Log


@endpoint("GET", "/v0/metrics", "read", kind="early")
async def metrics(call: Call) -> Reply:
    """Counters and gauges: text, or JSON if that is accepted."""
    found = await _look(call.service)
    if b"application/json" in call.head.headers.get(b"accept", b"").lower():
        return Reply(200, msgspec.json.encode(_as_json(found)))
    topics, truncated = await _topics(call)
    lines = [*_gauges(found), *_log(found.log), *_per_topic(topics, truncated)]
    return Reply(200, ("\n".join(lines) + "\n").encode(), content_type=_TEXT)


# ---- looking ----


async def _look(service: Service) -> Found:
    totals, status, routers = await asyncio.gather(_totals(service), _status(service), _routers(service))
    by_kind: dict[str, list[dict[str, Any]]] = {"wal": [], "dlv": []}
    for process in status.get("processes") or []:
        by_kind.get(str(process["name"]).partition("-")[0], []).append(process.get("stats") or {})
    classes = {name: sum(one["classes"].get(name, 0) for one in totals) for name in _CLASSES}
    gauges = {
        "topics": sum(one["topics"] for one in totals),
        "routers": routers,
        "records_live": sum(one["records"] for one in totals),
        "bytes_live": sum(one["bytes"] for one in totals),
        "queue_topics": sum(one["queue_topics"] for one in totals),
        "queue_leases_in_flight": sum(int(one.get("leases") or 0) for one in totals),
        "sse_connections": service.usage.streams,
        "watch_sessions": len(service.sessions),
        "ready": service.ready and not service.draining,
        "recovery_progress": 1.0 if service.ready else service.progress,
        "uptime_ms": int((time.monotonic() - service.started) * 1000),
    }
    return Found(gauges, classes, _of_log(service, by_kind["wal"], by_kind["dlv"]))


async def _totals(service: Service) -> list[dict[str, Any]]:
    asked = [_given_time(service.shards.ask_shard(shard, Totals())) for shard in range(service.shards.count)]
    return [one for one in await asyncio.gather(*asked) if one]


async def _status(service: Service) -> dict[str, Any]:
    return await _given_time(service.shards.ask_supervisor(Status(stats=True)))


async def _routers(service: Service) -> int:
    count, after = 0, None
    while True:
        page = await _given_time(service.shards.ask(ROUTERS, ListRouters(after=after, limit=LIST_PAGE_MAX)))
        count += len(page.get("routers") or [])
        after = page.get("next")
        if after is None:
            return count


async def _given_time(asked: Any) -> dict[str, Any]:
    """The answer, or nothing."""
    try:
        async with asyncio.timeout(_LATE_S):
            answer: dict[str, Any] = await asked
            return answer
    except (TopicdError, TimeoutError):
        return {}


def _of_log(service: Service, wals: list[dict[str, Any]], shards: list[dict[str, Any]]) -> Log:
    def total(rows: list[dict[str, Any]], name: str) -> int:
        return sum(int(row.get(name) or 0) for row in rows)

    depth = sum(sum(row.get("ring_used") or []) for row in wals)
    service.counts["log_depth_peak"] = max(service.counts.get("log_depth_peak", 0), depth)
    histogram = [0] * (len(BOUNDS_US) + 1)
    for row in wals:
        for at, count in enumerate((row.get("sync_us_histogram") or [])[: len(histogram)]):
            histogram[at] += count
    return Log(
        frames=total(shards, "records"),
        batches=total(wals, "groups"),
        fsyncs=total(wals, "syncs"),
        bytes_written=total(wals, "bytes"),
        rotations=total(wals, "rotations"),
        submit_full_total=total(shards, "throttled"),
        queue_depth=depth,
        queue_depth_peak=service.counts["log_depth_peak"],
        read_only=any(row.get("read_only") for row in wals),
        fsync_micros_total=int(sum(float(row.get("sync_seconds_total") or 0.0) for row in wals) * 1e6),
        histogram=histogram,
    )


async def _topics(call: Call) -> tuple[list[dict[str, Any]], bool]:
    """The first ones by name that the key reaches, and whether there are more."""
    shards, prefixes = call.service.shards, call.rights.prefixes
    asked = [
        _given_time(shards.ask_shard(shard, ListTopics(prefix=prefix, limit=LIST_PAGE_MAX)))
        for shard in range(shards.count)
        for prefix in (prefixes or ("",))
    ]
    pages = await asyncio.gather(*asked)
    merged = heapq.merge(*(page.get("topics") or [] for page in pages), key=lambda row: row["topic"])
    rows = list({row["topic"]: row for row in merged}.values())
    shown = rows[:TOPICS_SHOWN]
    queues = [row for row in shown if row.get("type") == "queue"]
    states = await asyncio.gather(*(_given_time(_queue(call, row["topic"])) for row in queues))
    for row, state in zip(queues, states, strict=True):
        row |= {f"queue_{name}": state[name] for name in ("ready", "in_flight") if name in state}
    return shown, len(rows) > len(shown) or any(page.get("next") for page in pages)


async def _queue(call: Call, topic: str) -> dict[str, Any]:
    request: messages.Request = QueueState(topic=topic)
    return await call.service.shards.ask(topic, request)


# ---- telling ----


def _as_json(found: Found) -> dict[str, Any]:
    told = dict(found.gauges)
    told["replay_progress"] = told.pop("recovery_progress")
    told |= {f"topics_{name}": count for name, count in found.classes.items()}
    log = found.log._asdict()
    count = sum(log.pop("histogram"))
    return {**told, "wal": {**log, "fsync_count": count}}


def _gauges(found: Found) -> Iterator[str]:
    for name, value in found.gauges.items():
        yield f"# TYPE topics_{name} gauge"
        yield f"topics_{name} {_number(value)}"
        if name == "topics":
            yield "# TYPE topics_topics_by_class gauge"
            for each, count in found.classes.items():
                yield f'topics_topics_by_class{{class="{each}"}} {count}'


def _log(log: Log) -> Iterator[str]:
    counters = {
        "frames_total": log.frames,
        "batches_total": log.batches,
        "fsyncs_total": log.fsyncs,
        "bytes_written_total": log.bytes_written,
        "rotations_total": log.rotations,
        "submit_full_total": log.submit_full_total,
    }
    gauges = {"queue_depth": log.queue_depth, "queue_depth_peak": log.queue_depth_peak, "read_only": log.read_only}
    for kind, values in (("counter", counters), ("gauge", gauges)):
        for name, value in values.items():
            yield f"# TYPE topics_wal_{name} {kind}"
            yield f"topics_wal_{name} {_number(value)}"
    name, so_far = "topics_wal_fsync_latency_us", 0
    yield f"# TYPE {name} histogram"
    for bound, count in zip((*map(str, BOUNDS_US), "+Inf"), log.histogram, strict=True):
        so_far += count
        yield f'{name}_bucket{{le="{bound}"}} {so_far}'
    yield f"{name}_sum {log.fsync_micros_total}"
    yield f"{name}_count {so_far}"


def _per_topic(rows: list[dict[str, Any]], truncated: bool) -> Iterator[str]:
    names = {"head_seq": "head_seq", "earliest_seq": "earliest_seq", "records_live": "count", "bytes_live": "bytes"}
    names |= {name: name for name in ("queue_ready", "queue_in_flight")}
    for name, field in names.items():
        yield f"# TYPE topics_topic_{name} gauge"
        for row in rows:
            if field in row:
                yield f'topics_topic_{name}{{topic="{_escaped(row["topic"])}"}} {row[field]}'
    yield "# TYPE topics_topic_metrics_truncated gauge"
    yield f"topics_topic_metrics_truncated {int(truncated)}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if isinstance(value, bool) else f"{value:.15g}"
