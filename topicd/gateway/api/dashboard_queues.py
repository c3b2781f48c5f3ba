"""Queues as the dashboard shows and steers them. Contract: docs/dashboard.md. Promise: looking takes no job; what an
action could not do is counted, not hidden.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from topicd._native import core
from topicd.errors import TopicNotFound
from topicd.gateway.api.dashboard_topics import by_name
from topicd.gateway.api.queues import finish
from topicd.gateway.api.topics import known_name
from topicd.gateway.dashboard.letters import Letters
from topicd.gateway.dashboard.showing import shown
from topicd.gateway.endpoints import Call, endpoint
from topicd.gateway.errors import Refusal
from topicd.gateway.keys import require_name
from topicd.gateway.schemas import Unsigned, clamp
from topicd.gateway.web.messages import Reply
from topicd.ipc.protocol import messages
from topicd.limits import CLAIM_MAX, PATTERN_MAX, PRIORITY_DEFAULT, PRIORITY_MAX, REASON_MAX

_FOUND = {200: "done", 404: "no such topic", 409: "not a queue"}
_SHOWN_MAX = 200
_ROUNDS = 20  # requests to the dead letters' shard that one request of the page makes


class Peek(Struct):
    state: Literal["any", "ready", "delayed", "in_flight", "done"] = "any"
    from_seq: Unsigned = 0
    limit: Unsigned = 50


class Steer(Struct):
    action: Literal["retry", "release", "delete", "dead"]
    seqs: Annotated[list[Annotated[int, Meta(ge=1)]], Meta(min_length=1, max_length=CLAIM_MAX)]


class Mode(Struct):
    action: Literal["pause", "resume", "drain"]
    reason: Annotated[str, Meta(max_length=REASON_MAX)] = ""


class Dead(Struct):
    from_seq: Unsigned = 0
    text: Annotated[str, Meta(max_length=1_024)] = ""
    limit: Unsigned = 50


class Redrive(Struct):
    """Of these seqs; or without any those that contain the text, all if it is empty."""

    seqs: Annotated[list[Annotated[int, Meta(ge=1)]], Meta(max_length=CLAIM_MAX)] = []
    text: Annotated[str, Meta(max_length=1_024)] = ""
    from_seq: Unsigned = 0
    discard: bool = False


class Cron(Struct):
    name: str
    schedule: str = ""
    timezone: str = "UTC"
    data: str = ""
    priority: Annotated[int, Meta(ge=0, le=PRIORITY_MAX)] = PRIORITY_DEFAULT
    remove: bool = False


# ---- looking ----


@endpoint(
    "GET",
    "/dashboard/queues",
    "read",
    kind="glance",
    query={"prefix": "of names", "page_size": "1 to 1000", "cursor": "next_cursor of the page before"},
    answers={200: "a page", 400: "broken cursor"},
)
async def list_queues(call: Call) -> Reply:
    """Queues and how they are."""
    prefix = call.params.get("prefix", "")
    page = await by_name(call, prefix, "queues") if len(prefix) <= PATTERN_MAX else {"topics": []}
    states = await asyncio.gather(*(_state(call, row["topic"]) for row in page["topics"]))
    body: dict[str, Any] = {"queues": [state for state in states if state is not None]}
    if "next_cursor" in page:
        body["next_cursor"] = page["next_cursor"]
    return call.answer(body)


async def _state(call: Call, queue: str) -> dict[str, Any] | None:
    try:
        found = await call.service.shards.ask(queue, messages.QueueState(topic=queue))
    except TopicNotFound:
        return None  # deleted in between
    found.pop("topic_id")
    return found


@endpoint("GET", "/dashboard/queues/{queue}", "read", kind="glance", answers=_FOUND)
async def get_queue(call: Call, queue: str) -> Reply:
    """A queue, its schedules, and why its next job does not run."""
    known_name(queue)
    shards = call.service.shards
    state, crons, why = await asyncio.gather(
        shards.ask(queue, messages.QueueState(topic=queue)),
        shards.ask(queue, messages.ListCron(topic=queue)),
        shards.ask(queue, messages.QueueWhy(topic=queue)),
    )
    state.pop("topic_id")
    rows = [{**one, "data": bytes(one["data"]).decode("utf-8", "replace")} for one in crons["schedules"]]
    return call.answer({**state, "crons": rows, "why": why["because"]})


@endpoint("POST", "/dashboard/queues/{queue}/jobs", "read", kind="glance", body=Peek, empty_body=True, answers=_FOUND)
async def jobs(call: Call, queue: str, body: Peek) -> Reply:
    """Jobs as they are; none is taken."""
    known_name(queue)
    limit = clamp(body.limit, 1, _SHOWN_MAX)
    want = messages.QueuePeek(topic=queue, state=body.state, from_seq=body.from_seq, limit=limit)
    found = await call.service.shards.ask(queue, want)
    records = {record[0]: shown(record) for record in core.decode_frames(found["frames"], 0, len(found["frames"]))}
    rows = [{**records.get(job["seq"], {}), **job, "lease": str(job.get("lease", ""))} for job in found["jobs"]]
    return call.answer({"jobs": rows, "next": found["next"]})


@endpoint("GET", "/dashboard/queues/{queue}/why", "read", kind="glance", query={"seq": "of the job"}, answers=_FOUND)
async def why_not(call: Call, queue: str) -> Reply:
    """Why a job does not run."""
    known_name(queue)
    seq = call.number("seq", 0) or None
    found = await call.service.shards.ask(queue, messages.QueueWhy(topic=queue, seq=seq))
    found.pop("lease", None)
    return call.answer(found)


@endpoint("POST", "/dashboard/queues/{queue}/dead", "read", kind="glance", body=Dead, empty_body=True, answers=_FOUND)
async def dead(call: Call, queue: str, body: Dead) -> Reply:
    """Dead letters of a queue that contain a text, oldest first."""
    topic = await _dead_topic(call, queue)
    letters = Letters(call.service.shards, topic, queue, body.from_seq, body.text)
    rows: list[dict[str, Any]] = []
    limit = clamp(body.limit, 1, _SHOWN_MAX)
    try:
        async for one in letters:
            rows.append(one.row())
            if len(rows) >= limit:
                break
    except TopicNotFound:
        letters.at = None  # no job has died yet
    return call.answer({"topic": topic, "letters": rows, "looked_at": letters.looked, "next": letters.at})


async def _dead_topic(call: Call, queue: str) -> str:
    known_name(queue)
    state = await call.service.shards.ask(queue, messages.QueueState(topic=queue))
    topic = state["config"].get("dead_letter")
    if not topic:
        raise Refusal(409, "conflict", f"queue {queue} has no dead_letter: jobs that fail are tried for ever")
    require_name(call.rights, topic, in_body=True)
    return str(topic)


# ---- acting ----


@endpoint("POST", "/dashboard/queues/{queue}/steer", "write", "delete", body=Steer, answers=_FOUND)
async def steer(call: Call, queue: str, body: Steer) -> Reply:
    """Try jobs at once, take them from who holds them, delete them, or send them to the dead letters."""
    known_name(queue)
    seqs = list(dict.fromkeys(body.seqs))
    changed = 0
    held = await _held(call, queue, seqs)
    if held:
        changed += await _take_back(call, queue, body.action, held)
    waiting = tuple(seq for seq in seqs if seq not in held)
    if waiting and body.action in ("retry", "delete"):
        action = "ready" if body.action == "retry" else "delete"
        want = messages.SteerJobs(topic=queue, seqs=waiting, action=action)
        changed += (await call.service.shards.ask(queue, want))["changed"]
    return call.answer({"queue": queue, "changed": changed, "skipped": len(seqs) - changed})


async def _held(call: Call, queue: str, seqs: list[int]) -> dict[int, int]:
    """By seq: the number of the lease under which somebody holds it."""

    async def one(seq: int) -> dict[int, int]:
        want = messages.QueuePeek(topic=queue, state="in_flight", from_seq=seq - 1, limit=1)
        found = await call.service.shards.ask(queue, want)
        return {job["seq"]: job["lease"] for job in found["jobs"] if job["seq"] == seq and job.get("lease")}

    found: dict[int, int] = {}
    for row in await asyncio.gather(*map(one, seqs)):
        found |= row
    return found


async def _take_back(call: Call, queue: str, action: str, held: dict[int, int]) -> int:
    seqs, leases = list(held), list(held.values())
    if action == "delete":
        return int((await finish(call, queue, seqs, leases))["acked"])
    kind = "dead" if action == "dead" else "release"
    reason = "by an operator" if kind == "dead" else ""
    want = messages.Nack(topic=queue, seqs=tuple(seqs), leases=tuple(leases), kind=kind, reason=reason)
    found = await call.service.shards.ask(queue, want)
    call.service.workers.settled(queue, set(seqs).difference(found["skipped"]))
    return int(found["nacked"])


@endpoint("POST", "/dashboard/queues/{queue}/mode", "admin", body=Mode, answers=_FOUND)
async def mode(call: Call, queue: str, body: Mode) -> Reply:
    """Pause, resume or drain."""
    known_name(queue)
    want: messages.Request
    if body.action == "resume":
        want = messages.ResumeQueue(topic=queue)
    elif body.action == "pause":
        want = messages.PauseQueue(topic=queue, reason=body.reason)
    else:
        want = messages.DrainQueue(topic=queue, reason=body.reason)
    found = await call.service.shards.ask(queue, want)
    return call.answer({"queue": queue, "paused": found["paused"], "draining": found["draining"]})


@endpoint("POST", "/dashboard/queues/{queue}/redrive", "delete", body=Redrive, empty_body=True, answers=_FOUND)
async def redrive(call: Call, queue: str, body: Redrive) -> Reply:
    """Dead letters back into their queue, or away: some, those that contain a text, or all. `next`: ask again there."""
    topic = await _dead_topic(call, queue)
    total = {"redriven": 0, "discarded": 0, "skipped": 0}
    following: int | None = None
    if body.text and not body.seqs:
        letters = Letters(call.service.shards, topic, queue, body.from_seq, body.text)
        chosen: list[int] = []
        async for one in letters:
            chosen.append(one.letter.seq)
            if len(chosen) >= CLAIM_MAX:
                break
        following = letters.at
        if chosen:
            await _redrive(call, topic, queue, total, seqs=tuple(chosen), discard=body.discard)
    elif body.seqs:
        await _redrive(call, topic, queue, total, seqs=tuple(body.seqs), discard=body.discard)
    else:
        following = body.from_seq
        for _ in range(_ROUNDS):
            if following is None:
                break
            following = await _redrive(call, topic, queue, total, from_seq=following, discard=body.discard)
    return call.answer({"queue": queue, **total, "next": following})


async def _redrive(call: Call, topic: str, queue: str, total: dict[str, int], **which: Any) -> int | None:
    found = await call.service.shards.ask(topic, messages.Redrive(topic=topic, queue=queue, **which))
    total["redriven"] += found["redriven"]
    total["discarded"] += found["discarded"]
    total["skipped"] += len(found["skipped"])
    following: int | None = found["next"]
    return following


@endpoint("POST", "/dashboard/queues/{queue}/cron", "admin", body=Cron, answers={**_FOUND, 400: "no schedule"})
async def cron(call: Call, queue: str, body: Cron) -> Reply:
    """Add, replace or remove a schedule."""
    known_name(queue)
    shards = call.service.shards
    if body.remove:
        found = await shards.ask(queue, messages.RemoveCron(topic=queue, name=body.name))
        return call.answer({"queue": queue, "name": body.name, "removed": found["removed"]})
    want = messages.AddCron(
        topic=queue,
        name=body.name,
        schedule=body.schedule,
        timezone=body.timezone,
        data=body.data.encode(),
        priority=body.priority,
    )
    found = await shards.ask(queue, want)
    return call.answer({"queue": queue, "name": body.name, "created": found["created"], "next_ts": found["next_ts"]})
