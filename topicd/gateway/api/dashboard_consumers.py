"""Named consumers as the dashboard shows and moves them. Contract: docs/dashboard.md. Promise: a move that is only
looked at changes nothing; what it tells is what the move would do at that moment.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from topicd.client.core.requests import fetch
from topicd.errors import ConsumerNotFound
from topicd.gateway import errors
from topicd.gateway.api.dashboard_topics import by_name
from topicd.gateway.api.topics import known_name
from topicd.gateway.endpoints import Call, endpoint
from topicd.gateway.errors import Refusal
from topicd.gateway.schemas import Unsigned
from topicd.gateway.web.messages import Reply
from topicd.ipc.protocol.messages import ConsumerState, ListConsumers, RemoveConsumer, ResetConsumer, TopicState
from topicd.limits import PATTERN_MAX

_MOVED = {200: "done", 404: "no such topic or consumer", 409: "that seq does not exist yet"}


class Move(Struct):
    """One of seq (the last that counts as acknowledged), ts and by."""

    name: str
    seq: Unsigned | None = None
    ts: Unsigned | None = None
    by: int | None = None


class Named(Struct):
    name: str


@endpoint(
    "GET",
    "/dashboard/consumers",
    "read",
    kind="glance",
    query={"prefix": "of topics", "page_size": "topics: 1 to 1000", "cursor": "next_cursor of the page before"},
    answers={200: "a page", 400: "broken cursor"},
)
async def list_consumers(call: Call) -> Reply:
    """Named consumers, topic by topic."""
    prefix = call.params.get("prefix", "")
    page = await by_name(call, prefix, "consumed") if len(prefix) <= PATTERN_MAX else {"topics": []}
    shards = call.service.shards
    asked = [shards.ask(row["topic"], ListConsumers(topic=row["topic"])) for row in page["topics"]]
    answers = await asyncio.gather(*asked)
    rows = [
        {**_told(one), "topic": row["topic"]}
        for row, answer in zip(page["topics"], answers, strict=True)
        for one in answer["consumers"]
    ]
    body: dict[str, Any] = {"consumers": rows}
    if "next_cursor" in page:
        body["next_cursor"] = page["next_cursor"]
    return call.answer(body)


def _told(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "topic_id"}


@endpoint("POST", "/dashboard/consumers/{topic}/preview", "read", kind="glance", body=Move, answers=_MOVED)
async def preview(call: Call, topic: str, body: Move) -> Reply:
    """What a move would skip or repeat."""
    return call.answer(await _looked(call, topic, body))


@endpoint("POST", "/dashboard/consumers/{topic}/move", "consume", body=Move, answers=_MOVED)
async def move(call: Call, topic: str, body: Move) -> Reply:
    """Move a consumer back or forth."""
    found = await _looked(call, topic, body)
    want = ResetConsumer(topic=topic, name=body.name, start=("seq", found["to"]))
    answer = await _consumer(call.service.shards.ask(topic, want))
    return call.answer({**found, "consumer": _told(answer)})


@endpoint("POST", "/dashboard/consumers/{topic}/remove", "consume", body=Named, answers=_MOVED)
async def remove(call: Call, topic: str, body: Named) -> Reply:
    """Forget a consumer and where it was."""
    known_name(topic)
    _check_name(body.name)
    await _consumer(call.service.shards.ask(topic, RemoveConsumer(topic=topic, name=body.name)))
    return call.answer({"topic": topic, "removed": body.name})


async def _consumer(asked: Any) -> dict[str, Any]:
    try:
        found: dict[str, Any] = await asked
        return found
    except ConsumerNotFound as exc:
        raise Refusal(404, "consumer_not_found", exc.message) from None


def _check_name(name: str) -> None:
    if not name:
        raise errors.invalid("name is needed: the consumer's")


async def _looked(call: Call, topic: str, body: Move) -> dict[str, Any]:
    known_name(topic)
    _check_name(body.name)
    if sum(given is not None for given in (body.seq, body.ts, body.by)) != 1:
        raise errors.invalid("a move needs one of seq, ts and by")
    shards = call.service.shards
    now = await _consumer(shards.ask(topic, ConsumerState(topic=topic, name=body.name)))
    state = await shards.ask(topic, TopicState(topic=topic, touch=False))
    head, floor = int(state["head_seq"]), int(state["earliest_seq"]) - 1
    at = int(now["acked_seq"])
    if body.ts is not None:
        to = await _before(call, topic, body.ts, head)
    else:
        to = body.seq if body.seq is not None else at + (body.by or 0)
    if body.by is not None:
        to = max(0, min(to, head))
    if to > head:
        raise Refusal(409, "conflict", f"seq {to} does not exist yet, the newest is {head}", {"head_seq": head})
    return {
        "topic": topic,
        "name": body.name,
        "from": at,
        "to": to,
        "skips": max(0, to - max(at, floor)),
        "repeats": max(0, at - max(to, floor)),
        "lag": max(0, head - max(to, floor)),
        "deletes": state["config"]["retain"] == "acked",  # what all consumers have acknowledged is deleted
        "holder": now["holder"],
    }


async def _before(call: Call, topic: str, ts: int, head: int) -> int:
    """The seq before the first record of that time or later."""
    try:
        moment = datetime.fromtimestamp(ts / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        raise errors.invalid("ts is no time") from None
    request = fetch(
        0,
        limit=1,
        max_bytes=1,
        match=None,
        nodes=None,
        from_time=moment,
        metadata_only=True,
        performance=False,
        epoch=None,
    )
    found = await call.service.shards.fetch(topic, request)
    return found.next_from_seq - 1 if found.records else head
