"""Questions about a queue: its counters, its jobs as they are, and why one does not run. Promise: an answer costs a few
look-ups, however many jobs wait.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from topicd.frames import ts_at
from topicd.limits import PRIORITY_DEFAULT
from topicd.shards.delivery.queues.facts import Kept
from topicd.shards.delivery.queues.lanes import Lane
from topicd.shards.delivery.queues.service import QueueService
from topicd.shards.delivery.queues.takers import WaitingClaim
from topicd.shards.delivery.reading.filters import NO_FILTER
from topicd.words import counted

_SHOWN = 1_000  # jobs of one state that a peek sorts through


def state(service: QueueService) -> dict[str, Any]:
    service.look()
    topic, jobs = service.topic, service.jobs
    claims = sum(isinstance(taker, WaitingClaim) for taker in service.takers)
    return {
        "topic": topic.name,
        "topic_id": topic.id,
        "ready": jobs.ready,
        "in_flight": jobs.in_flight,
        "delayed": len(jobs.delayed),
        "kept": jobs.kept_count,
        "dead_lettered": service.endings.totals.dead,
        "acked": jobs.totals.acked,
        "failed": service.endings.totals.failed,
        "released": service.endings.totals.released,
        "expired": service.endings.totals.expired,
        "workers": len(service.takers) - claims,
        "claims": claims,
        "paused": None if jobs.paused is None else jobs.paused._asdict(),
        "draining": jobs.draining is not None,
        "oldest_ready_ts": _oldest_ts(service),
        "priorities": {str(band.priority): band.ready for band in jobs.lanes.bands if band.ready},
        "groups": sum(1 for name in jobs.lanes.groups if name),
        "unique_keys": len(jobs.keys),
        "config": topic.config.to_fields(),
    }


def _oldest_ts(service: QueueService) -> int | None:
    """When the oldest job that is ready was published; of those that came back, the ones that did so first."""
    seqs = [lane.fresh[0][0] for lane in service.jobs.lanes if lane.fresh]
    seqs += [lane.back[0][1] for lane in service.jobs.lanes if lane.back]
    if not seqs:
        return None
    found = service.tools.reader.fetch(service.topic, min(seqs) - 1, 1, 1, NO_FILTER)
    return ts_at(found.parts[0], 0) if found.count else None


# ---- one job ----


def state_of(service: QueueService, seq: int) -> str:
    topic, jobs = service.topic, service.jobs
    if seq > topic.seqs.head:
        return "unknown"
    if seq in jobs.leases or seq in jobs.finishing:
        return "in_flight"
    if seq in jobs.delayed:
        return "delayed"
    if seq in jobs.dying:
        return "dead"
    if seq in jobs.kept_seqs:
        return "done"
    alive = seq <= topic.seqs.visible and service.tools.live.first_from(topic, seq) == seq
    return "ready" if alive and seq >= topic.floors.earliest else "gone"


def row_of(service: QueueService, seq: int, found: str) -> dict[str, Any]:
    """What there is to be known of a job."""
    jobs = service.jobs
    row: dict[str, Any] = {"seq": seq, "state": found}
    if found in ("gone", "unknown"):
        return row
    if found == "done":
        return {**row, **_done(jobs.kept_row(seq))}
    lane, past = jobs.lane_of(seq), jobs.past.get(seq)
    grant = jobs.leases.get(seq) or jobs.finishing.get(seq)
    row["deliveries"] = jobs.deliveries(seq) + (1 if grant is not None else 0)
    if lane.band.priority != PRIORITY_DEFAULT:
        row["priority"] = lane.band.priority
    if lane.group.name:
        row["group"] = lane.group.name
    if key := jobs.keys.key_of(seq):
        row["unique"] = key
    if seq in jobs.delayed:
        row["ready_at"] = jobs.delayed[seq]
    if grant is not None:
        row.update(node=grant.node.decode("utf-8", "replace"), lease=grant.number(seq), deadline=grant.deadline)
    if past is not None:
        row.update(first_ts=past.first_ms, last_ts=past.last_ms)
        if past.reason:
            row["reason"] = past.reason
    return row


def _done(kept: Kept) -> dict[str, Any]:
    row: dict[str, Any] = {"deliveries": kept.deliveries, "done_ts": kept.at}
    if kept.started:
        row["started_ts"] = kept.started
    if kept.group:
        row["group"] = kept.group
    if kept.reason:
        row["reason"] = kept.reason
    return row


# ---- many ----


def peek(service: QueueService, wanted: str, from_seq: int, limit: int) -> tuple[list[dict[str, Any]], int | None]:
    """(jobs behind from_seq in this state, by seq; where to go on, or None)"""
    service.look()
    seqs = sorted(seq for seq in _candidates(service, wanted, from_seq, limit + 1) if seq > from_seq)
    rows = [row_of(service, seq, state_of(service, seq)) for seq in seqs[: limit + 1]]
    rows = [row for row in rows if row["state"] not in ("gone", "unknown")]
    more = len(rows) > limit
    return rows[:limit], int(rows[limit - 1]["seq"]) if more else None


def _candidates(service: QueueService, wanted: str, from_seq: int, most: int) -> list[int]:
    jobs = service.jobs
    if wanted == "in_flight":
        return _lowest([*jobs.leases.seqs(), *jobs.finishing], from_seq, most)
    if wanted == "delayed":
        return _lowest(list(jobs.delayed), from_seq, most)
    if wanted == "done":
        return _spread(list(jobs.kept_seqs), from_seq, most)
    if wanted == "ready":
        return _spread(sorted(run for lane in jobs.lanes for run in lane.seqs()), from_seq, most)
    topic = service.topic
    found: list[int] = []
    for first, last, _ in service.tools.live.runs(topic, max(from_seq + 1, topic.floors.earliest), topic.seqs.visible):
        found += range(first, min(last, first + most - len(found) - 1) + 1)
        if len(found) >= most:
            break
    return found


def _lowest(seqs: list[int], from_seq: int, most: int) -> list[int]:
    return sorted(seq for seq in seqs if seq > from_seq)[:most]


def _spread(runs: list[tuple[int, int]], from_seq: int, most: int) -> list[int]:
    found: list[int] = []
    for first, last in runs:
        low = max(first, from_seq + 1)
        if low <= last:
            found += range(low, min(last, low + most - len(found) - 1) + 1)
        if len(found) >= most:
            break
    return found


# ---- why ----


def why(service: QueueService, seq: int | None) -> dict[str, Any]:
    service.look()
    if seq is None:
        seq = _next_seq(service)
        if seq is None:
            return {"seq": None, "state": "unknown", "because": _queue_stops(service) + _nothing_ready(service)}
    found = state_of(service, seq)
    row = row_of(service, seq, found)
    return {**row, "because": _because(service, seq, found, row)}


def _next_seq(service: QueueService) -> int | None:
    for band in reversed(service.jobs.lanes.bands):
        lanes = [*band.turn, *(lane for lane in service.jobs.lanes if lane.band is band and lane.ready)]
        if lanes:
            lane = lanes[0]
            return lane.back[0][1] if lane.back else lane.fresh[0][0]
    return None


def _nothing_ready(service: QueueService) -> list[str]:
    jobs = service.jobs
    parts = [f"{jobs.in_flight} in flight", f"{len(jobs.delayed)} delayed", f"{len(jobs.dying)} on their way out"]
    return [f"no job is ready: {', '.join(parts)}"]


def _queue_stops(service: QueueService) -> list[str]:
    """What keeps every job of the queue."""
    topic, jobs, config = service.topic, service.jobs, service.topic.config
    found: list[str] = []
    if jobs.paused is not None:
        who = "its breaker" if jobs.paused.by == "breaker" else "somebody"
        found.append(f"the queue was paused by {who}: {jobs.paused.reason or 'no reason given'}")
    if service.tools.draining:
        found.append("the daemon is stopping")
    if config.max_in_flight and jobs.in_flight >= config.max_in_flight:
        found.append(f"in flight: {counted(jobs.in_flight, 'job')}, max_in_flight is {config.max_in_flight}")
    now = service.tools.clock.now_ms()
    if config.rate_per_s and not service.handing.rate.room(now, config.rate_per_s):
        wait = service.handing.rate.free_at(config.rate_per_s) - now
        found.append(f"rate_per_s is {config.rate_per_s}: the next one may start in {max(wait, 0)} ms")
    if not service.takers:
        found.append(f"nobody waits for jobs of {topic.name}")
    return found


def _because(service: QueueService, seq: int, found: str, row: dict[str, Any]) -> list[str]:
    jobs, now = service.jobs, service.tools.clock.now_ms()
    if found == "unknown":
        return [f"no job has this seq yet, the newest is {service.topic.seqs.head}"]
    if found == "gone":
        return ["it is done, was deleted or went to the dead letters"]
    if found == "done":
        return ["it is done; its record is kept for a while"]
    if found == "dead":
        return [f"it is on its way to the dead letters in {service.topic.config.dead_letter}"]
    if found == "in_flight":
        return [f"{row['node']} holds it under lease {row['lease']} for another {row['deadline'] - now} ms"]
    if found == "delayed":
        tries = f", it was tried {counted(row['deliveries'], 'time')}" if row["deliveries"] else ""
        return [f"it is not to run before {_utc(row['ready_at'])}, in {row['ready_at'] - now} ms{tries}"]
    if seq in jobs.damaged:
        return ["its record cannot be read: the storage is damaged"]
    return _group_stops(service, jobs.lane_of(seq)) + _queue_stops(service) + _before(service, seq)


def _utc(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")


def _group_stops(service: QueueService, lane: Lane) -> list[str]:
    config, group = service.topic.config, lane.group
    if group.parked_until == 0:
        most = config.group_max_in_flight
        return [f"in flight: {counted(group.in_flight, 'job')} of group {group.name}, group_max_in_flight is {most}"]
    if group.parked_until > 0:
        wait = group.parked_until - service.tools.clock.now_ms()
        return [f"group_rate_per_s is {config.group_rate_per_s}: {group.name} may go on in {max(wait, 0)} ms"]
    return []


def _before(service: QueueService, seq: int) -> list[str]:
    """Jobs that go first."""
    jobs = service.jobs
    lane = jobs.lane_of(seq)
    higher = sum(band.ready for band in jobs.lanes.bands if band.priority > lane.band.priority)
    same = sum(min(last, seq - 1) - first + 1 for first, last in lane.fresh if first < seq) + len(lane.back)
    found = [f"first comes: {counted(higher, 'job')} of a higher priority"] if higher else []
    if same > (1 if lane.back else 0):
        found.append(f"first comes: about {counted(same, 'job')} of its own kind")
    return found or ["it is the next one"]
