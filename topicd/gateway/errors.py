"""Refusals as the HTTP contract has them: one envelope, the codes of docs/http.md. Promise: whatever went wrong has a
status, a code and words; nothing of the inside (shards, ids, tracebacks) is told.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from topicd.errors import (
    BatchTooLarge,
    Conflict,
    ConnectionLost,
    Forbidden,
    Incompatible,
    InvalidRequest,
    NotAQueue,
    NotReady,
    OutOfOrder,
    RecordTooLarge,
    RouterCycle,
    RouterNotFound,
    SchemaViolation,
    StorageFailed,
    Throttled,
    TopicdError,
    TopicFull,
    TopicNotFound,
    WrongShard,
)
from topicd.gateway.web.messages import Headers, Reply
from topicd.limits import MAX_BATCH_RECORDS

_RETRY_S = 1
CAPS = frozenset(
    {
        *("max_topics", "max_routers", "max_watch_sessions", "max_sse_connections", "max_sse_connections_per_key"),
        *("max_inflight_per_key", "max_total_bytes"),
    }
)


class Refusal(Exception):
    def __init__(self, status: int, code: str, message: str, detail: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.detail = detail or {}
        self.headers: Headers = []
        self.delay = 0.0

    def body(self) -> dict[str, Any]:
        error: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.detail:
            error["detail"] = self.detail
        return {"error": error}

    def reply(self) -> Reply:
        headers = list(self.headers)
        if self.status in (429, 503) and not any(name == b"Retry-After" for name, _ in headers):
            after = self.detail.get("retry_after_ms")
            seconds = max(_RETRY_S, math.ceil(after / 1000)) if isinstance(after, int | float) else _RETRY_S
            headers.append((b"Retry-After", b"%d" % seconds))
        return Reply(self.status, msgspec.json.encode(self.body()), headers, delay=self.delay)


def invalid(message: str) -> Refusal:
    return Refusal(400, "invalid_request", message)


def not_found(message: str = "there is nothing at this path") -> Refusal:
    return Refusal(404, "not_found", message)


def topic_not_found(topic: str) -> Refusal:
    return Refusal(404, "topic_not_found", f"there is no topic named {topic!r:.300}", {"topic": topic})


def forbidden(message: str, topic: str | None = None) -> Refusal:
    return Refusal(403, "forbidden", message, {"topic": topic} if topic is not None else None)


def capped(limit: str, most: int) -> Refusal:
    return Refusal(429, "throttled", f"the limit {limit} of {most} is reached", {"limit": limit, "max": most})


def internal() -> Refusal:
    return Refusal(500, "internal", "something failed inside the daemon; its log says what")


def shutting_down() -> Refusal:
    return Refusal(503, "shutting_down", "the daemon is stopping")


def not_ready(progress: float) -> Refusal:
    return Refusal(503, "not_ready", "the daemon is recovering", {"replay_progress": progress})


def batch_too_large(message: str, most: int) -> Refusal:
    return Refusal(400, "batch_too_large", message, {"max": most})


def of(error: TopicdError, topic: str | None = None) -> Refusal:
    """What a shard, or the way to it, refused."""
    detail = error.detail
    if isinstance(error, TopicNotFound):
        return topic_not_found(str(detail.get("topic") or topic or ""))
    if isinstance(error, RecordTooLarge):
        return Refusal(400, "record_too_large", error.message)
    if isinstance(error, BatchTooLarge):
        return batch_too_large(error.message, MAX_BATCH_RECORDS)
    if isinstance(error, InvalidRequest):
        return invalid(error.message)
    if isinstance(error, TopicFull):
        fields = ("topic", "cap_records", "cap_bytes", "head_seq", "earliest_seq")
        told = {name: detail[name] for name in fields if name in detail}
        return Refusal(422, "topic_full", f"topic {topic or told.get('topic')} is full", told)
    if isinstance(error, SchemaViolation):
        return Refusal(422, "schema_violation", error.message, dict(detail))
    if isinstance(error, Throttled):
        return _throttled(error)
    if isinstance(error, Conflict):
        return _conflict(error, topic)
    if isinstance(error, Forbidden):
        return forbidden(error.message, topic)
    if isinstance(error, NotAQueue):
        return Refusal(409, "not_a_queue", error.message, {"topic": detail.get("topic") or topic or ""})
    if isinstance(error, RouterNotFound):
        return Refusal(404, "router_not_found", error.message, {"router": detail.get("router") or topic or ""})
    if isinstance(error, Incompatible | RouterCycle):
        return Refusal(409, error.code, error.message, dict(detail))
    if isinstance(error, NotReady | ConnectionLost | WrongShard | OutOfOrder):
        return Refusal(503, "not_ready", "the part of the daemon that owns this is not available at present")
    if isinstance(error, StorageFailed):
        return Refusal(500, "internal", "the disk refused it; nothing was stored")
    return internal()


def _throttled(error: Throttled) -> Refusal:
    detail = error.detail
    if detail.get("limit") in CAPS:
        return Refusal(
            429, "throttled", error.message, {name: detail[name] for name in ("limit", "max") if name in detail}
        )
    return Refusal(429, "throttled", error.message, {"retry_after_ms": int(detail.get("retry_after_ms") or 100)})


def _conflict(error: Conflict, topic: str | None) -> Refusal:
    detail = dict(error.detail)
    if topic is not None:
        detail.setdefault("topic", topic)
    code = "topic_not_empty" if "count" in detail else "topic_exists_incompatible"
    return Refusal(409, code, error.message, detail)
