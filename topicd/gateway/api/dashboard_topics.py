"""Topics as the dashboard shows them: lists in any order, one with everything about it, its records searched, its
configuration changed field by field. Contract: docs/dashboard.md.
"""

from __future__ import annotations

import asyncio
import heapq
from typing import Any

from msgspec import Struct

from topicd.errors import TopicdError
from topicd.gateway import errors
from topicd.gateway.api.paging import cursor_of, next_cursor, page_size
from topicd.gateway.api.records import match_of
from topicd.gateway.api.topics import check_name, known_name, prefixes_of
from topicd.gateway.dashboard.listing import NAMES, SORTS
from topicd.gateway.dashboard.scan import TEXT_MAX, Scan, Wanted
from topicd.gateway.endpoints import Call, endpoint
from topicd.gateway.schemas import Unsigned, clamp
from topicd.gateway.web.messages import Reply
from topicd.ipc.protocol.messages import Configure, ListConsumers, ListRouters, ListTopics, QueueState, TopicState
from topicd.limits import LIST_PAGE_MAX, PATTERN_MAX, ROUTERS
from topicd.model import LOGS_ONLY, TopicConfig

_ROUTERS_SHOWN = 200
_BROWSED_MAX = 200


class Browse(Struct):
    from_seq: Unsigned | None = None
    from_ts: Unsigned | None = None
    before_seq: Unsigned | None = None
    tag: str = ""
    text: str = ""
    limit: Unsigned = 50


class Fields(Struct):
    config: dict[str, Any]


@endpoint(
    "GET",
    "/dashboard/topics",
    "read",
    kind="glance",
    answers={200: "a page", 400: "broken cursor or order"},
    query={
        "prefix": "of names",
        "only": "any, queues or consumed",
        "sort": f"name, or one of {', '.join(SORTS)}: the largest first",
        "page_size": "1 to 1000, default 100",
        "cursor": "next_cursor of the page before",
    },
)
async def list_topics(call: Call) -> Reply:
    """Topics in the order that is asked for."""
    sort, only = call.params.get("sort", "name"), call.params.get("only", "any")
    if only not in ("any", "queues", "consumed"):
        raise errors.invalid("only is any, queues or consumed")
    prefix = call.params.get("prefix", "")
    if len(prefix) > PATTERN_MAX:
        return call.answer({"topics": [], "age_s": 0})
    if sort == "name":
        return call.answer(await by_name(call, prefix, only))
    if sort not in SORTS:
        raise errors.invalid(f"sort is name or one of {', '.join(SORTS)}")
    return call.answer(await _sorted(call, prefix, only, sort))


async def by_name(call: Call, prefix: str, only: str) -> dict[str, Any]:
    size = page_size(call)
    after = cursor_of(call.params["cursor"]) if call.params.get("cursor") else None
    rows: list[dict[str, Any]] = []
    more = False
    for one in prefixes_of(prefix, call.rights.prefixes):
        pages = await call.service.shards.ask_all(ListTopics(prefix=one, after=after, limit=size, only=only))
        more = more or any(page.get("next") for page in pages)
        rows = list(heapq.merge(rows, *(page["topics"] for page in pages), key=lambda row: row["topic"]))
    body: dict[str, Any] = {"topics": [{name: row[name] for name in NAMES} for row in rows[:size]], "age_s": 0}
    if more or len(rows) > size:
        body["next_cursor"] = next_cursor(rows[size - 1]["topic"])
    return body


async def _sorted(call: Call, prefix: str, only: str, sort: str) -> dict[str, Any]:
    size = page_size(call)
    cursor = cursor_of(call.params["cursor"]) if call.params.get("cursor") else "0"
    if not cursor.isdigit():
        raise errors.invalid("the cursor belongs to another order")
    found, age_s = await call.service.listing.sorted_by(sort)
    allowed = call.rights.prefixes
    rows = [
        row
        for row in found
        if row.topic.startswith(prefix)
        and (not allowed or row.topic.startswith(allowed))
        and (only == "any" or (row.type == "queue" if only == "queues" else row.consumers > 0))
    ]
    at = int(cursor)
    body: dict[str, Any] = {"topics": [row._asdict() for row in rows[at : at + size]], "age_s": round(age_s, 1)}
    body["total"] = len(rows)
    if at + size < len(rows):
        body["next_cursor"] = next_cursor(str(at + size))
    return body


@endpoint("GET", "/dashboard/topics/{topic}", "read", kind="glance", answers={200: "it", 404: "no such topic"})
async def get_topic(call: Call, topic: str) -> Reply:
    """A topic with its segments, consumers and routers."""
    known_name(topic)
    shards = call.service.shards
    state = await shards.ask(topic, TopicState(topic=topic, touch=False, files=True))
    into, out, consumers = await asyncio.gather(
        _routers(call, dest=topic), _routers(call, source=topic), shards.ask(topic, ListConsumers(topic=topic))
    )
    body = {**state, "consumers": consumers["consumers"], "routers_in": into, "routers_out": out}
    body.pop("topic_id")
    if state["config"]["type"] == "queue":
        body["queue"] = await shards.ask(topic, QueueState(topic=topic))
        body["queue"].pop("topic_id")
    return call.answer(body)


async def _routers(call: Call, source: str | None = None, dest: str | None = None) -> list[dict[str, Any]]:
    want = ListRouters(source=source, dest=dest, limit=_ROUTERS_SHOWN)
    found = await call.service.shards.ask(ROUTERS, want)
    return [row for row in found["routers"] if _reaches(call, row)]


def _reaches(call: Call, row: dict[str, Any]) -> bool:
    prefixes = call.rights.prefixes
    return not prefixes or all(row[name].startswith(prefixes) for name in ("router", "source", "dest"))


@endpoint("GET", "/dashboard/routers", "read", kind="glance", answers={200: "all of them, up to 1000"})
async def list_routers(call: Call) -> Reply:
    """Routers with how far they are."""
    page = await call.service.shards.ask(ROUTERS, ListRouters(limit=LIST_PAGE_MAX))
    rows = [row for row in page["routers"] if _reaches(call, row)]
    return call.answer({"routers": rows, "more": page.get("next") is not None})


@endpoint(
    "POST",
    "/dashboard/topics/{topic}/browse",
    "read",
    kind="glance",
    body=Browse,
    empty_body=True,
    answers={200: "what was found", 404: "no such topic"},
)
async def browse(call: Call, topic: str, body: Browse) -> Reply:
    """Look for records, within bounds that the answer tells."""
    known_name(topic)
    if len(body.text) > TEXT_MAX:
        raise errors.invalid(f"text has at most {TEXT_MAX} characters")
    match = match_of(body.tag) if body.tag else None
    limit = clamp(body.limit, 1, _BROWSED_MAX)
    wanted = Wanted(body.from_seq, body.from_ts, body.before_seq, match, body.text, limit)
    return call.answer(await Scan(call.service.shards, topic, wanted).run())


@endpoint(
    "POST",
    "/dashboard/topics/{topic}/config",
    "admin",
    body=Fields,
    answers={200: "changed", 404: "no such topic", 409: "the type cannot change"},
)
async def configure(call: Call, topic: str, body: Fields) -> Reply:
    """Change some fields of the configuration, and leave the others as they are."""
    check_name(topic)
    try:
        kind = "log" if any(name in LOGS_ONLY for name in body.config) else "queue"
        TopicConfig.from_fields({"type": kind, **body.config})
    except TopicdError as exc:
        raise errors.of(exc, topic) from None
    answer = await call.service.shards.ask(topic, Configure(topic=topic, config=body.config, create=False))
    return call.answer({"topic": topic, "config": answer["config"]})
