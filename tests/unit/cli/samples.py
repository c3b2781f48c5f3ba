"""STATUS answers of a daemon that never was."""

from __future__ import annotations

from typing import Any

RING = 4 * 1024 * 1024


def process(name: str, pid: int, **changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "name": name,
        "state": "serving",
        "restarts": 0,
        "uptime_s": 3725.0,
        "percent": 100.0,
        "what": "",
        "stats": None,
        "pid": pid,
        "rss": 25 * 1024 * 1024,
        "cpu": 1.5,
    }
    return {**made, **changes}


def wal(number: int, groups: int, **changes: Any) -> dict[str, Any]:
    histogram = [0] * 13
    histogram[4], histogram[7] = groups // 2, groups // 100
    stats: dict[str, Any] = {
        "bytes": groups * 4000,
        "failures": 0,
        "groups": groups,
        "heartbeat": 1.0,
        "lsn": groups * 4040,
        "synced_lsn": groups * 4040 - 8080,
        "read_only": 0,
        "ring_capacity": RING,
        "ring_used": [RING // 4, RING // 8],
        "rotations": groups // 1000,
        "sync_histogram": histogram,
        "sync_seconds_total": groups * 0.0004,
        "syncs": groups // 2,
    }
    return process(f"wal-{number:02d}", 2000 + number, stats={**stats, **changes}, cpu=32.4)


def dlv(number: int, records: int, **changes: Any) -> dict[str, Any]:
    stats: dict[str, Any] = {
        "appends": records // 10,
        "checkpoint_failures": 0,
        "checkpoints": 60,
        "damage": 0,
        "deleted": 12,
        "evicted": records // 2,
        "heartbeat": 1.0,
        "in_flight_bytes": 4096,
        "lagged": 3,
        "loop_lag_ms": 1.25,
        "mapped_bytes": 1024,
        "records": records,
        "ring_backlog_bytes": 0,
        "sessions": 7,
        "snapshots": 4,
        "stored_bytes": records * 120,
        "tail_bytes": 70_000,
        "topics": 12,
        "top_topics": [
            [f"orders-{number}", records, records // 2, records * 60, 500, 12_000 + number],
            [f"audit-{number}", 100, 100, 6_000, -10, 0],
        ],
        "consumers": 3,
        "consumer_lag": 14_000,
        "top_consumers": [
            [f"orders-{number}", "billing", records - 12_000 - number, 12_000 + number],
            [f"orders-{number}", "search", records - 2_000_000 + records, 2_000_000 - records],
            [f"audit-{number}", "archive", 100, 0],
        ],
    }
    return process(f"dlv-{number:02d}", 3000 + number, stats={**stats, **changes}, cpu=71.0)


def pressure() -> dict[str, Any]:
    """A little too much for one of its shards."""
    rows = [("gather", 0.2, 0.15, True, 3), ("widen", 0.4, 0.3, False, 1)]
    names = ("above", "below", "active", "times")
    quiet = {"depth": 0, "latency_ms": 0.0, "pool": 0.0, "ring": 0.0, "backlog": 0.0, "paused": 0.0}
    busy = {"depth": 12, "latency_ms": 9.0, "pool": 0.5, "ring": 0.25, "backlog": 0.1, "paused": 0.62}
    return {
        "value": 0.31,
        "forced": False,
        "gather_ms": 2.75,
        "commit_window_ms": 0.0,
        "steps": [
            {"name": name, "effect": f"what {name} does", **dict(zip(names, rest, strict=True))} for name, *rest in rows
        ],
        "shards": [
            {"name": "dlv-00", "pressure": 0.31, **busy},
            {"name": "dlv-01", "pressure": 0.0, **quiet},
        ],
    }


def status(seconds: float = 0.0, **changes: Any) -> dict[str, Any]:
    """A daemon that stores 50,000 records a second; `seconds` after the first look."""
    done = 1_000_000 + int(seconds * 25_000)
    groups = 40_000 + int(seconds * 1_000)
    body: dict[str, Any] = {
        "state": "serving",
        "failure": "",
        "instance": "a81da7fa167af8c2",
        "run": 3,
        "uptime_s": 3725.0 + seconds,
        "pressure": pressure(),
        "processes": [
            process("supervisor", 1000, cpu=0.2),
            wal(0, groups),
            wal(1, groups),
            dlv(0, done),
            dlv(1, done),
        ],
    }
    return {**body, **changes}


def troubled() -> dict[str, Any]:
    """Every kind of note at once."""
    return status(
        state="recovering",
        processes=[
            process("supervisor", 1000),
            wal(0, 100, read_only=28, failures=2),
            process("dlv-00", 3000, state="recovering", percent=42.0, what="replay", stats={"recovery_percent": 42.0}),
            dlv(1, 100, damage=3, checkpoint_failures=1),
            process("dlv-02", 0, state="backoff", restarts=4, uptime_s=0.0, rss=0, cpu=0.0),
        ],
    )
