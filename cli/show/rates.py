"""Two looks at STATUS make rates. Pure: numbers in, numbers out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from topicd.cli.show.process import fullest_ring, note
from topicd.metrics import SYNC_BOUNDS_S


@dataclass(frozen=True, slots=True)
class ProcessRates:
    name: str
    state: str
    pid: int
    cpu: float
    rss: int
    uptime_s: float
    restarts: int
    note: str
    records_s: float | None = None  # delivery shards
    bytes_s: float | None = None  # WAL shards
    syncs_s: float | None = None
    sync_p99_s: float | None = None
    ring: float | None = None  # fullest ring, 0 to 1
    connections: int | None = None
    lag_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Totals:
    appends_s: float
    records_s: float
    bytes_s: float
    groups_s: float
    syncs_s: float
    sync_p50_s: float | None
    sync_p99_s: float | None
    evicted_s: float
    lagged_s: float
    topics: int
    connections: int
    stored_bytes: int
    tail_bytes: int
    in_flight_bytes: int


@dataclass(frozen=True, slots=True)
class TopicRates:
    """One of the topics written last."""

    name: str
    records_s: float
    head_seq: int
    records: int
    bytes: int
    priority: float
    lag: int  # of the named consumer furthest behind


@dataclass(frozen=True, slots=True)
class ConsumerRates:
    """One of the named consumers furthest behind."""

    topic: str
    consumer: str
    acked_s: float
    acked_seq: int
    lag: int
    lag_s: float  # how fast it falls back; below 0: catches up

    @property
    def done_in_s(self) -> float | None:
        """Until it has caught up, as things go now; None: never."""
        if not self.lag:
            return 0.0
        return self.lag / -self.lag_s if self.lag_s < 0 else None


def seconds_between(before: dict[str, Any], after: dict[str, Any]) -> float:
    return max(float(after["uptime_s"] - before["uptime_s"]), 1e-9)


def topic_rates(before: dict[str, Any], after: dict[str, Any]) -> list[TopicRates]:
    """Those that grow fastest first."""
    earlier = {row[0]: row[1] for row in _topic_rows(before)}
    seconds = seconds_between(before, after)
    found = [
        TopicRates(str(name), max(0, head - earlier.get(name, head)) / seconds, head, records, size, priority, lag)
        for name, head, records, size, priority, lag in (row[:6] for row in _topic_rows(after))
    ]
    return sorted(found, key=lambda topic: (-topic.records_s, topic.name))


def _topic_rows(status: dict[str, Any]) -> list[list[Any]]:
    return [row for row in _rows(status, "top_topics") if len(row) >= 6]


def _rows(status: dict[str, Any], key: str) -> Iterator[list[Any]]:
    return (row for process in status["processes"] for row in (process.get("stats") or {}).get(key) or [])


def consumer_rates(before: dict[str, Any], after: dict[str, Any]) -> list[ConsumerRates]:
    """Those furthest behind first."""
    earlier = {(topic, name): (acked, lag) for topic, name, acked, lag in _rows(before, "top_consumers")}
    seconds = seconds_between(before, after)
    found = []
    for topic, name, acked, lag in _rows(after, "top_consumers"):
        acked_before, lag_before = earlier.get((topic, name), (acked, lag))
        acked_s, lag_s = max(0, acked - acked_before) / seconds, (lag - lag_before) / seconds
        found.append(ConsumerRates(str(topic), str(name), acked_s, acked, lag, lag_s))
    return sorted(found, key=lambda one: (-one.lag, one.topic, one.consumer))


def process_rates(before: dict[str, Any], after: dict[str, Any]) -> list[ProcessRates]:
    earlier = {process["name"]: process for process in before["processes"]}
    return [
        ProcessRates(
            **{key: process[key] for key in ("name", "state", "pid", "cpu", "rss", "uptime_s", "restarts")},
            note=note(process),
            **_shard_rates(earlier.get(process["name"]), process, seconds_between(before, after)),
        )
        for process in after["processes"]
    ]


def _shard_rates(before: dict[str, Any] | None, after: dict[str, Any], seconds: float) -> dict[str, Any]:
    stats = after.get("stats") or {}
    # A process that was started anew counts from zero again.
    same = before is not None and before["pid"] == after["pid"]
    old = (before or {}).get("stats") or {} if same else {}
    elapsed = seconds if same else max(after["uptime_s"], 1e-9)
    if not stats:
        return {}  # it has not said anything yet
    if after["name"].startswith("wal-"):
        return {
            "bytes_s": _rate(old, stats, "bytes", elapsed),
            "syncs_s": _rate(old, stats, "syncs", elapsed),
            "sync_p99_s": quantile(_difference(old, stats), 0.99),
            "ring": fullest_ring(stats),
        }
    if after["name"].startswith("dlv-"):
        return {
            "records_s": _rate(old, stats, "records", elapsed) if "records" in stats else None,
            "connections": stats.get("sessions"),
            "lag_ms": stats.get("loop_lag_ms"),
        }
    return {}


def totals(before: dict[str, Any], after: dict[str, Any]) -> Totals:
    seconds = seconds_between(before, after)
    pids = {process["name"]: process["pid"] for process in before["processes"]}
    kept = [process for process in after["processes"] if pids.get(process["name"]) == process["pid"]]
    names = {process["name"] for process in kept}
    old = [process.get("stats") or {} for process in before["processes"] if process["name"] in names]
    new = [process.get("stats") or {} for process in kept]
    now = [process.get("stats") or {} for process in after["processes"]]
    histogram = [0] * (len(SYNC_BOUNDS_S) + 1)
    for a, b in zip(old, new, strict=True):
        histogram = [total + n for total, n in zip(histogram, _difference(a, b) or histogram, strict=True)]

    def rate(key: str) -> float:
        return max(0.0, float(sum(s.get(key, 0) for s in new) - sum(s.get(key, 0) for s in old))) / seconds

    def level(key: str) -> int:
        return int(sum(s.get(key, 0) for s in now))

    return Totals(
        appends_s=rate("appends"),
        records_s=rate("records"),
        bytes_s=rate("bytes"),
        groups_s=rate("groups"),
        syncs_s=rate("syncs"),
        sync_p50_s=quantile(histogram, 0.5),
        sync_p99_s=quantile(histogram, 0.99),
        evicted_s=rate("evicted"),
        lagged_s=rate("lagged"),
        topics=level("topics"),
        connections=level("sessions"),
        stored_bytes=level("stored_bytes"),
        tail_bytes=level("tail_bytes"),
        in_flight_bytes=level("in_flight_bytes"),
    )


def _rate(old: dict[str, Any], new: dict[str, Any], key: str, seconds: float) -> float:
    return max(0.0, float(new.get(key, 0) - old.get(key, 0))) / seconds


def _difference(old: dict[str, Any], new: dict[str, Any]) -> list[int]:
    counts = new.get("sync_histogram") or []
    earlier = old.get("sync_histogram") or [0] * len(counts)
    return [max(0, b - a) for a, b in zip(earlier, counts, strict=True)] if len(earlier) == len(counts) else []


def quantile(counts: list[int], share: float) -> float | None:
    """Upper bound of the bucket that holds it; infinity beyond the last bound; None without a sample."""
    wanted = share * sum(counts)
    if not wanted:
        return None
    seen = 0
    for number, count in enumerate(counts):
        seen += count
        if seen >= wanted:
            return SYNC_BOUNDS_S[number] if number < len(SYNC_BOUNDS_S) else float("inf")
    return None
