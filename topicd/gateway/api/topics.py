"""Topics: created, configured, looked at, listed, deleted. Contract: docs/http.md."""

from __future__ import annotations

import heapq
import json
from typing import Any

from topicd.errors import TopicNotFound
from topicd.gateway import errors
from topicd.gateway.api.paging import cursor_of, next_cursor, page_size
from topicd.gateway.endpoints import Call, endpoint
from topicd.gateway.keys import require_name
from topicd.gateway.schemas import Config
from topicd.gateway.web.messages import Reply
from topicd.ipc.protocol.messages import Configure, DeleteTopic, ListTopics, QueueState, TopicState
from topicd.limits import PATTERN_MAX, TOPIC_NAME, TOPIC_NAME_RULE
from topicd.model import Durability, TopicConfig
from topicd.tokens import Rights


def is_name(topic: str) -> bool:
    return TOPIC_NAME.fullmatch(topic) is not None


def check_name(topic: str) -> None:
    """Where it would create something."""
    if not is_name(topic):
        raise errors.invalid(f"topic name {topic!r:.300} is not allowed: {TOPIC_NAME_RULE}")


def known_name(topic: str) -> None:
    """Where it could only be found."""
    if not is_name(topic):
        raise errors.topic_not_found(topic)


def config_of(rights: Rights, topic: str, config: Config) -> dict[str, Any]:
    """What is configured, if it can be and the key reaches every topic that it names."""
    fields = config.fields(topic)
    TopicConfig.from_fields(fields)
    if config.dead_letter is not None:
        require_name(rights, config.dead_letter, in_body=True)
    return fields


def echoed(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration as it is told."""
    schema = config.get("schema")
    durable = config.get("durability") == Durability.FSYNC
    return {**config, "schema": schema and json.loads(schema), "durable": durable}


@endpoint(
    "PUT",
    "/v0/topics/{topic}",
    "admin",
    body=Config,
    empty_body=True,
    answers={200: "configured", 201: "created", 409: "another type"},
)
async def put_topic(call: Call, topic: str, config: Config) -> Reply:
    """Create a topic, or replace its whole configuration."""
    check_name(topic)
    fields = config_of(call.rights, topic, config)
    answer = await call.service.shards.ask(topic, Configure(topic=topic, config=fields, replace=True))
    created = bool(answer["created"])
    body = {"topic": topic, "created": created, "config": echoed(answer["config"])}
    return call.answer(body, 201 if created else 200)


@endpoint(
    "GET",
    "/v0/topics/{topic}",
    "read",
    query={"touch": "true: counts as a read (default)"},
    answers={200: "its state", 404: "no such topic"},
)
async def get_topic(call: Call, topic: str) -> Reply:
    """The state of a topic."""
    known_name(topic)
    state = await call.service.shards.ask(topic, TopicState(topic=topic, touch=call.flag("touch", True)))
    config = state["config"]
    body: dict[str, Any] = {
        "topic": topic,
        "type": config["type"],
        **{name: state[name] for name in ("head_seq", "earliest_seq")},
        "next_seq": state["head_seq"] + 1,
        **{name: state[name] for name in ("count", "bytes")},
        "config": echoed(config),
        "effective_priority": state["effective_priority"],
        "last_write_ts": state["last_write_ts"] or None,
        "last_read_ts": state["last_read_ts"] or None,
    }
    if config["type"] == "queue":
        found = await call.service.shards.ask(topic, QueueState(topic=topic))
        body["queue"] = {name: found[name] for name in ("ready", "in_flight", "dead_lettered")}
    return call.answer(body)


def prefixes_of(wanted: str, allowed: tuple[str, ...]) -> list[str]:
    """Beginnings of names that were asked for and are allowed; none of them covers another."""
    found = [wanted] if not allowed else [p if p.startswith(wanted) else wanted for p in allowed if _meet(p, wanted)]
    return [one for one in dict.fromkeys(found) if not any(one != o and one.startswith(o) for o in found)]


def _meet(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)


@endpoint(
    "GET",
    "/v0/topics",
    "read",
    answers={200: "a page", 400: "broken cursor"},
    query={"prefix": "of names", "page_size": "1 to 1000, default 100", "cursor": "next_cursor of the page before"},
)
async def list_topics(call: Call) -> Reply:
    """Topics by name."""
    params, shards = call.params, call.service.shards
    size = page_size(call)
    after = cursor_of(params["cursor"]) if params.get("cursor") else None
    rows: list[dict[str, Any]] = []
    more = False
    for prefix in prefixes_of(params.get("prefix", ""), call.rights.prefixes):
        if len(prefix) > PATTERN_MAX:
            continue  # no name is as long
        wanted = ListTopics(prefix=prefix, after=after, limit=size)
        pages = await shards.ask_all(wanted)
        more = more or any(page.get("next") for page in pages)
        rows = list(heapq.merge(rows, *(page["topics"] for page in pages), key=lambda row: row["topic"]))
    shown = [_row(row) for row in rows[:size] if call.rights.allows(row["topic"])]
    body: dict[str, Any] = {"topics": shown}
    if more or len(rows) > size:
        body["next_cursor"] = next_cursor(rows[size - 1]["topic"])
    return call.answer(body)


def _row(row: dict[str, Any]) -> dict[str, Any]:
    told = {name: row[name] for name in ("topic", "head_seq", "earliest_seq", "count", "bytes")}
    return {**told, "durable": row["durability"] == Durability.FSYNC, "effective_priority": row["effective_priority"]}


@endpoint(
    "DELETE",
    "/v0/topics/{topic}",
    "delete",
    query={"if_empty": "true: only one without records"},
    answers={200: "deleted or not there", 409: "not empty"},
)
async def delete_topic(call: Call, topic: str) -> Reply:
    """Delete a topic with everything in it."""
    body: dict[str, Any] = {"topic": topic, "deleted": False, "routers_removed": []}
    if is_name(topic):
        try:
            answer = await call.service.shards.ask(
                topic, DeleteTopic(topic=topic, if_empty=call.flag("if_empty", False))
            )
            body["deleted"] = True
            body["routers_removed"] = sorted(answer.get("routers_removed") or [])
        except TopicNotFound:
            pass
    return call.answer(body)
