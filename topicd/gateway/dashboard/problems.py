"""What is wrong, worst first. Promise: a pure function of what was seen, so that the page, which only shows it, and
tests agree; each row says in one sentence what it is and where to look.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import quote

from topicd.limits import MIB
from topicd.words import counted

GIB = 1_024 * MIB
BAD, WARN, NOTE = "bad", "warn", "note"
_RANK = {BAD: 0, WARN: 1, NOTE: 2}
DISK_WARN, DISK_BAD = 0.10, 0.03  # of it that is free
DISK_BAD_BYTES = 1 * GIB
RESTARTED_S = 120.0  # a process that was started anew is told of for so long
LAG_RECORDS = 10_000
STALLED_MS = 60_000
RING_FULL = 0.8
_SHOWN = 50


class Problem(NamedTuple):
    level: str
    text: str
    link: str  # of the page

    def row(self) -> dict[str, str]:
        return self._asdict()


def link(view: str, *names: str) -> str:
    return "#/" + "/".join([view, *(quote(name, safe="") for name in names)])


def problems(
    status: dict[str, Any], around: dict[str, Any], consumers: list[dict[str, Any]], now_ms: int
) -> list[Problem]:
    found: list[Problem] = []
    if status.get("state") not in ("serving", None):
        text = f"the daemon is {status['state']}" + (f": {status['failure']}" if status.get("failure") else "")
        found.append(Problem(WARN if status["state"] == "starting" else BAD, text, link("recovery")))
    for process in status.get("processes") or []:
        found += _of_process(process)
    found += _pressure(status.get("pressure") or {})
    found += _disk(around.get("disk") or {})
    found += [_ending(what, name, ends, now_ms) for what, name, ends in around.get("ending") or []]
    found += _consumers(consumers, now_ms)
    return sorted(found, key=lambda one: _RANK[one.level])[:_SHOWN]


def _of_process(process: dict[str, Any]) -> list[Problem]:
    name, state, where = str(process["name"]), process["state"], link("processes")
    stats = process.get("stats") or {}
    found: list[Problem] = []
    if state == "recovering":
        found.append(Problem(WARN, f"{name} is recovering: {process['percent']:.0f} %", link("recovery")))
    elif state != "serving":
        found.append(Problem(BAD, f"{name} is away ({state})", where))
    elif process.get("restarts") and process.get("uptime_s", 0.0) < RESTARTED_S:
        found.append(Problem(WARN, f"{name} was started anew {process['uptime_s']:.0f} s ago", where))
    if stats.get("read_only"):
        found.append(Problem(BAD, f"{name} is read-only: the disk failed and its file takes no more writes", where))
    elif stats.get("failures"):
        failed = counted(stats["failures"], "write or sync", "writes or syncs")
        found.append(Problem(WARN, f"{name}: {failed} failed", where))
    if stats.get("damage"):
        found.append(
            Problem(BAD, f"{name}: {counted(stats['damage'], 'place')} cannot be read; run topicctl fsck", where)
        )
    if stats.get("snapshot_failing"):
        found.append(Problem(BAD, f"{name}: snapshots fail, so the log of the disk keeps growing", where))
    capacity = stats.get("ring_capacity")
    if capacity and max(stats.get("ring_used") or [0]) > RING_FULL * capacity:
        found.append(Problem(WARN, f"{name}: a ring is almost full, writes wait for the disk", where))
    if stats.get("lagging"):
        lagging = stats["lagging"]
        found.append(Problem(NOTE, f"{name}: no room for what comes to {counted(lagging, 'subscribed topic')}", where))
    for queue, how, by, reason in stats.get("stopped_queues") or []:
        itself = by == "breaker"
        text = f"queue {queue} " + ("stopped itself" if itself else f"is {how}") + (f": {reason}" if reason else "")
        found.append(Problem(BAD if itself else WARN, text, link("queues", queue)))
    for router, _, lag, why in stats.get("top_routers") or []:
        if why:
            found.append(Problem(WARN, f"router {router} stands still, {lag} behind: {why}", link("routers")))
    return found


def _pressure(pressure: dict[str, Any]) -> list[Problem]:
    steps = [step for step in pressure.get("steps") or [] if step.get("active")]
    if not steps:
        return []
    last = steps[-1]
    level = BAD if last["name"] == "refuse" else WARN
    return [Problem(level, f"pressure {pressure['value']:.2f}: {last['effect']}", link("now"))]


def _disk(disk: dict[str, int]) -> list[Problem]:
    if not disk.get("size"):
        return []
    free, share = disk["free"], disk["free"] / disk["size"]
    if share >= DISK_WARN and free >= DISK_BAD_BYTES:
        return []
    level = BAD if share < DISK_BAD or free < DISK_BAD_BYTES else WARN
    return [Problem(level, f"the disk is almost full: {free / GIB:.1f} GiB, {share:.0%} are free", link("now"))]


def _ending(what: str, name: str, ends_ms: int, now_ms: int) -> Problem:
    days = (ends_ms - now_ms) / 86_400_000
    if days < 0:
        return Problem(BAD, f"the {what} {name} has ended", link("now"))
    return Problem(BAD if days < 2 else WARN, f"the {what} {name} ends in {counted(round(days), 'day')}", link("now"))


def _consumers(rows: list[dict[str, Any]], now_ms: int) -> list[Problem]:
    found: list[Problem] = []
    for row in rows:
        who, lag, where = f"consumer {row['name']} of {row['topic']}", row["lag"], link("topics", row["topic"])
        if lag and now_ms - row["updated_ts"] > STALLED_MS:
            minutes = (now_ms - row["updated_ts"]) / 60_000
            found.append(Problem(WARN, f"{who} has acknowledged nothing for {minutes:.0f} min, {lag:,} behind", where))
        elif lag > LAG_RECORDS:
            found.append(Problem(WARN, f"{who} is {counted(lag, 'record')} behind", where))
    return found
