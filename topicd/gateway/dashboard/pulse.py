"""What every open page is told once a second: rates, latencies, processes, what is wrong. Promise: made once for all
pages from what the stats pages hold anyway, and not at all when nobody looks; the last hour, as far as somebody looked,
is kept in HISTORY rows.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from topicd import __version__
from topicd.errors import TopicdError
from topicd.gateway.dashboard.problems import problems
from topicd.gateway.dashboard.surroundings import Surroundings
from topicd.gateway.shards import Shards
from topicd.gateway.stats import StatsFeed
from topicd.gateway.web.messages import consumed
from topicd.ipc.protocol.messages import ListConsumers, ListTopics
from topicd.limits import LIST_PAGE_MAX
from topicd.metrics import SYNC_BOUNDS_S

STEP_S = 5.0  # one row of history
HISTORY = 720
CONSUMERS_S = 10.0  # named consumers are looked at so often
_BEHIND_SHOWN = 20  # topics whose consumers are looked at one by one
_LATE_S = 2.0

Told = Callable[[bytes, bytes], None]  # the whole tick, and the one without names


class Sums(NamedTuple):
    """Counters of all processes together, at one moment."""

    at: float
    records: int
    delivered: int
    wal_bytes: int
    syncs: int
    appends: list[int]  # histogram
    sync: list[int]  # histogram
    heads: dict[str, int]


class Pulse:
    def __init__(self, stats: StatsFeed, shards: Shards, surroundings: Surroundings, now_ms: Callable[[], int]) -> None:
        self._stats = stats
        self._shards = shards
        self._surroundings = surroundings
        self._now_ms = now_ms
        self._pages: dict[int, Told] = {}
        self._next = 0
        self._end: Callable[[], None] | None = None
        self._before: Sums | None = None
        self._rates: dict[str, float] = {}
        self._last: tuple[bytes, bytes] | None = None
        self._consumers: list[dict[str, Any]] = []
        self._consumers_at = float("-inf")
        self._asking: asyncio.Task[None] | None = None
        self.history: deque[list[float]] = deque(maxlen=HISTORY)

    def watch(self, told: Told) -> Callable[[], None]:
        """Each tick from now on, the last one at once; call what is returned to end that."""
        self._next += 1
        number = self._next
        self._pages[number] = told
        if self._end is None:
            self._before = self._last = None
            self._end = self._stats.watch(self._tick)
        elif self._last is not None:
            told(*self._last)

        def end() -> None:
            self._pages.pop(number, None)
            if not self._pages and self._end is not None:
                self._end()
                self._end = None

        return end

    def _tick(self, status: dict[str, Any]) -> None:
        now, monotonic = self._now_ms(), time.monotonic()
        sums = summed(status, monotonic)
        flow = rates(self._before, sums)
        self._rates = topic_rates(self._before, sums)
        measured, self._before = self._before is not None, sums  # a first look has nothing to compare with
        self._look_at_consumers(monotonic)
        around = self._surroundings.look(now, monotonic)
        wrong = problems(status, around, self._consumers, now)
        tick = {**told(status, flow, self._rates), "now_ms": now, "version": __version__, **around}
        tick["problems"] = [one.row() for one in wrong]
        tick["measured"] = measured
        if measured:
            self._remember(now, tick)
        whole = msgspec.json.encode(tick)
        bare = msgspec.json.encode(without_names(tick))
        self._last = whole, bare
        for page in list(self._pages.values()):
            page(whole, bare)

    def _remember(self, now: int, tick: dict[str, Any]) -> None:
        if self.history and now - self.history[-1][0] < STEP_S * 1000 - 200:
            return
        flow, latency = tick["flow"], tick["latency"]
        processes = tick["processes"]
        self.history.append(
            [
                now,
                *(flow["in"], flow["out"], *latency["append"], *latency["sync"], tick["pressure"]["value"]),
                *(sum(p["cpu"] for p in processes), sum(p["rss"] for p in processes)),
            ]
        )

    # ---- consumers that are behind: the one thing that no stats page tells ----

    def _look_at_consumers(self, monotonic: float) -> None:
        if monotonic - self._consumers_at < CONSUMERS_S or (self._asking is not None and not self._asking.done()):
            return
        self._consumers_at = monotonic
        self._asking = asyncio.get_running_loop().create_task(self._ask_consumers())
        self._asking.add_done_callback(consumed)

    async def _ask_consumers(self) -> None:
        try:
            async with asyncio.timeout(_LATE_S):
                pages = await self._shards.ask_all(ListTopics(only="consumed", limit=LIST_PAGE_MAX))
                rows = [row for page in pages for row in page["topics"] if row["lag"]]
                rows.sort(key=lambda row: int(row["lag"]), reverse=True)
                found: list[dict[str, Any]] = []
                for row in rows[:_BEHIND_SHOWN]:
                    answer = await self._shards.ask(row["topic"], ListConsumers(topic=row["topic"]))
                    found += [{**one, "topic": row["topic"]} for one in answer["consumers"] if one["lag"]]
                self._consumers = found
        except (TopicdError, TimeoutError):
            pass  # a shard is away: the tick says so


# ---- pure ----


def summed(status: dict[str, Any], at: float) -> Sums:
    shards = _stats_of(status, "dlv")
    wals = _stats_of(status, "wal")
    heads = {row[0]: row[1] for stats in shards for row in stats.get("top_topics") or []}
    return Sums(
        at,
        _total(shards, "records"),
        _total(shards, "delivered"),
        _total(wals, "bytes"),
        _total(wals, "syncs"),
        _added([stats.get("append_histogram") or [] for stats in shards]),
        _added([stats.get("sync_histogram") or [] for stats in wals]),
        heads,
    )


def rates(before: Sums | None, now: Sums) -> dict[str, Any]:
    if before is None:
        return {"in": 0.0, "out": 0.0, "bytes": 0.0, "syncs": 0.0, "append": [0.0, 0.0], "sync": [0.0, 0.0]}
    seconds = max(0.05, now.at - before.at)
    return {
        "in": _rate(before.records, now.records, seconds),
        "out": _rate(before.delivered, now.delivered, seconds),
        "bytes": _rate(before.wal_bytes, now.wal_bytes, seconds),
        "syncs": _rate(before.syncs, now.syncs, seconds),
        "append": _quantiles(before.appends, now.appends),
        "sync": _quantiles(before.sync, now.sync),
    }


def topic_rates(before: Sums | None, now: Sums) -> dict[str, float]:
    if before is None:
        return {}
    seconds = max(0.05, now.at - before.at)
    return {name: _rate(before.heads.get(name, head), head, seconds) for name, head in now.heads.items()}


def _rate(before: int, now: int, seconds: float) -> float:
    """Per second; a process that was started anew counts from 0 again."""
    return round((now - before if now >= before else now) / seconds, 1)


def _quantiles(before: list[int], now: list[int]) -> list[float]:
    """p50 and p99 in ms, of what came in between: the upper bound of their bucket; 0 without any."""
    counts = [max(0, b - a) for a, b in zip(before, now, strict=False)] if len(before) == len(now) else now
    total = sum(counts)
    if not total:
        return [0.0, 0.0]
    found = []
    for share in (0.5, 0.99):
        so_far = 0
        for at, count in enumerate(counts):
            so_far += count
            if so_far >= share * total:
                found.append(round(1000 * SYNC_BOUNDS_S[min(at, len(SYNC_BOUNDS_S) - 1)], 3))
                break
    return found


def told(status: dict[str, Any], flow: dict[str, Any], by_topic: dict[str, float]) -> dict[str, Any]:
    shards = _stats_of(status, "dlv")
    names = (
        *("topics", "sessions", "stored_bytes", "tail_bytes", "queues", "jobs_ready", "jobs_in_flight"),
        *("jobs_delayed", "jobs_dead", "jobs_acked", "routers", "router_lag", "channels", "channel_members"),
        *("throttled", "evicted", "tombstones"),
    )
    pressure = status.get("pressure") or {"value": 0.0, "steps": []}
    return {
        "state": status.get("state"),
        "failure": status.get("failure"),
        "uptime_s": status.get("uptime_s"),
        "instance": status.get("instance"),
        "run": status.get("run"),
        "flow": {name: flow[name] for name in ("in", "out", "bytes", "syncs")},
        "latency": {name: flow[name] for name in ("append", "sync")},
        "totals": {name: _total(shards, name) for name in names},
        "pressure": {"value": pressure["value"], "steps": pressure.get("steps") or []},
        "processes": [_process(row) for row in status.get("processes") or []],
        "topics": [
            {"topic": row[0], "head": row[1], "rate": by_topic.get(row[0], 0.0), "bytes": row[3], "lag": row[5]}
            for stats in shards
            for row in stats.get("top_topics") or []
            if not str(row[0]).startswith("topicd.")
        ],
    }


def _process(row: dict[str, Any]) -> dict[str, Any]:
    stats = row.get("stats") or {}
    found = {name: row[name] for name in ("name", "state", "pid", "restarts", "uptime_s", "percent", "what")}
    found |= {"cpu": row["cpu"], "rss": row["rss"], "warnings": stats.get("warnings") or row.get("warnings") or []}
    capacity = stats.get("ring_capacity")
    if capacity:
        found["rings"] = [round(used / capacity, 4) for used in stats.get("ring_used") or []]
    figures = ("topics", "records", "sessions", "loop_lag_ms", "pressure", "checkpoints", "groups", "syncs", "bytes")
    found["figures"] = {name: stats[name] for name in figures if name in stats}
    if str(row["name"]).startswith("chat"):
        found["chat"] = {name: value for name, value in stats.items() if isinstance(value, int | float)}
    return found


def without_names(tick: dict[str, Any]) -> dict[str, Any]:
    """For somebody who may not know what there is: no topics, no sentences with names, no lines of the log."""
    processes = [{**row, "warnings": [], "what": ""} for row in tick["processes"]]
    wrong = [one for one in tick["problems"] if one["link"].count("/") < 2 and one["link"] != "#/routers"]
    return {**tick, "topics": [], "processes": processes, "problems": wrong, "ending": []}


def _stats_of(status: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    rows = status.get("processes") or []
    return [row.get("stats") or {} for row in rows if str(row["name"]).startswith(kind + "-")]


def _total(rows: list[dict[str, Any]], name: str) -> int:
    return sum(int(row.get(name) or 0) for row in rows)


def _added(histograms: list[list[int]]) -> list[int]:
    size = max((len(one) for one in histograms), default=0)
    return [sum(one[at] for one in histograms if at < len(one)) for at in range(size)]
