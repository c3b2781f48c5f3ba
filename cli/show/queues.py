"""Queues in `topicctl status` and `top`: what is asked, and how it reads."""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Any

from topicd.cli.show.human import count, duration, short_count
from topicd.cli.show.render import Column
from topicd.client.core.requests import queue_topics
from topicd.clock import SystemClock
from topicd.errors import NotAQueue, TopicdError, TopicNotFound

if TYPE_CHECKING:
    from topicd.client.blocking.client import Client
    from topicd.client.core.queue_answers import QueueStats

SHOWN = 12
LOOK_AT = 10_000  # topics, for those that are queues

COLUMNS = [
    Column("queue", shrink=True),
    Column("ready", right=True),
    Column("in flight", right=True),
    Column("delayed", right=True),
    Column("dead", right=True),
    Column("oldest", right=True),
    Column("done", right=True, rank=1),
    Column("failed", right=True, rank=1),
    Column("workers", right=True, rank=2),
    Column("state", rank=2),
]
RATE_COLUMNS = [*COLUMNS[:6], Column("done/s", right=True), Column("failed/s", right=True), *COLUMNS[8:]]


def all_stats(client: Client, prefix: str = "", most: int | None = None) -> list[QueueStats]:
    """Of all queues, or the first so many by name."""
    found: list[QueueStats] = []
    for topic in client.topics(prefix):
        if topic.type == "queue" and (most is None or len(found) < most):
            try:
                found.append(client.queue(topic.topic).stats())
            except (TopicNotFound, NotAQueue):
                continue  # gone meanwhile
    return found


def queue_lines(client: Client, status: dict[str, Any]) -> list[dict[str, Any]]:
    """The first few queues by name, if there are any and all shards serve; cheap where there is none."""
    if status.get("state") != "serving":
        return []
    try:
        return _queue_lines(client)
    except TopicdError:
        return []  # A shard is going: what is shown beside says so.


def _queue_lines(client: Client) -> list[dict[str, Any]]:
    caller = client.caller
    if not any(caller.ask_shard(shard, queue_topics()) for shard in caller.shard_map.shards()):
        return []
    names = [topic.topic for topic in islice(client.topics(), LOOK_AT) if topic.type == "queue"]
    found = []
    for name in names[:SHOWN]:
        try:
            found.append(asdict(client.queue(name).stats()))
        except (TopicNotFound, NotAQueue):
            continue
    return found


def row(stats: dict[str, Any]) -> list[str]:
    return [*_jobs(stats), *(count(stats[name]) for name in ("acked", "failed", "workers")), mode_text(stats)]


def rate_row(before: dict[str, Any] | None, after: dict[str, Any], seconds: float) -> list[str]:
    """With what has happened since an earlier look."""
    earlier = before if before is not None and before["topic_id"] == after["topic_id"] else after
    rates = [short_count((after[name] - earlier[name]) / seconds) for name in ("acked", "failed")]
    return [*_jobs(after), *rates, count(after["workers"]), mode_text(after)]


def rate_rows(before: dict[str, Any], after: dict[str, Any], seconds: float) -> list[list[str]]:
    earlier = {stats["topic"]: stats for stats in before.get("queues") or []}
    return [rate_row(earlier.get(stats["topic"]), stats, seconds) for stats in after.get("queues") or []]


def _jobs(stats: dict[str, Any]) -> list[str]:
    figures = (count(stats[name]) for name in ("ready", "in_flight", "delayed", "dead_lettered"))
    return [stats["topic"], *figures, oldest(stats["oldest_ready_ts"])]


def oldest(ts_ms: int | None) -> str:
    return "-" if ts_ms is None else duration(max(0, SystemClock().now_ms() - ts_ms) / 1000)


def mode_text(mode: dict[str, Any]) -> str:
    if mode["paused"]:
        reason = str(mode["paused"].get("reason") or "")
        shown = "".join(char if char.isprintable() else " " for char in reason)
        return f"paused by {mode['paused'].get('by', 'user')}" + (f": {shown}" if shown else "")
    return "draining" if mode["draining"] else "open"
