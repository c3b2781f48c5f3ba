"""The answer to STATUS as Prometheus text. Promise: names are stable; what a process does not report is left
out, never guessed; the number of series grows with the number of processes, not with topics or records: of topics
only those written last are shown, a fixed number per delivery shard.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Upper bounds of sync_histogram, whose last bucket has none.
SYNC_BOUNDS_S = tuple(50e-6 * 2**i for i in range(12))

Labels = tuple[tuple[str, str], ...]


class Metric(NamedTuple):
    name: str
    kind: str  # counter, gauge or histogram
    help: str
    scale: float = 1.0


SERVING = Metric("serving", "gauge", "1 when every process serves")
DAEMON = {
    "uptime_s": Metric("uptime_seconds", "gauge", "since the supervisor was started"),
    "run": Metric("run", "gauge", "how often this data directory was started"),
}
PROCESS_SERVING = Metric("process_serving", "gauge", "1 when it serves")
PROCESS = {
    "restarts": Metric("process_restarts_total", "counter", "times the supervisor had to start it anew"),
    "uptime_s": Metric("process_uptime_seconds", "gauge", "since it was started"),
    "cpu": Metric("process_cpu_ratio", "gauge", "share of one core since the last look", 0.01),
    "cpu_s": Metric("process_cpu_seconds_total", "counter", "processor time used"),
    "rss": Metric("process_resident_bytes", "gauge", "memory in use"),
    "percent": Metric("process_recovered_ratio", "gauge", "how far its recovery is", 0.01),
}
WAL = {
    "groups": Metric("wal_groups_total", "counter", "groups written"),
    "bytes": Metric("wal_bytes_total", "counter", "bytes written"),
    "syncs": Metric("wal_syncs_total", "counter", "fdatasync calls"),
    "failures": Metric("wal_failures_total", "counter", "failed writes and syncs"),
    "damage": Metric("wal_damaged_places", "gauge", "places of its log that the start could not read"),
    "rotations": Metric("wal_rotations_total", "counter", "files finished"),
    "read_only": Metric("wal_read_only_errno", "gauge", "0, or the error after which it takes no writes"),
    "lsn": Metric("wal_lsn", "gauge", "end of the log"),
    "synced_lsn": Metric("wal_synced_lsn", "gauge", "end of what is known to be durable"),
    "ring_capacity": Metric("ring_capacity_bytes", "gauge", "size of each of its rings"),
}
DELIVERY = {
    "topics": Metric("topics", "gauge", "topics it owns"),
    "sessions": Metric("connections", "gauge", "open client connections"),
    "appends": Metric("appends_total", "counter", "batches stored"),
    "records": Metric("records_total", "counter", "records stored"),
    "evicted": Metric("evicted_total", "counter", "records removed by cap or TTL"),
    "deleted": Metric("deleted_total", "counter", "records deleted on request"),
    "lagged": Metric("lagged_total", "counter", "times a subscriber fell behind its credit"),
    "tombstones": Metric("tombstones_total", "counter", "gaps reported to readers"),
    "throttled": Metric("throttled_total", "counter", "requests refused because something was full"),
    "in_flight_bytes": Metric("in_flight_bytes", "gauge", "appends not acknowledged yet"),
    "ring_backlog_bytes": Metric("ring_backlog_bytes", "gauge", "appends that wait for room in a ring"),
    "tail_bytes": Metric("tail_bytes", "gauge", "records not in segments yet"),
    "stored_bytes": Metric("stored_bytes", "gauge", "records in segments"),
    "mapped_bytes": Metric("mapped_bytes", "gauge", "indexes and tag tables of sealed segments, kept for reading"),
    "checkpoints": Metric("checkpoints_total", "counter", "checkpoints done"),
    "checkpoint_failures": Metric("checkpoint_failures_total", "counter", "checkpoints that failed"),
    "snapshots": Metric("snapshots_total", "counter", "metadata snapshots written"),
    "snapshot_failing": Metric("snapshot_failing", "gauge", "1 while snapshots fail, so that the WAL keeps growing"),
    "loop_lag_ms": Metric("loop_lag_seconds", "gauge", "delay of its event loop", 0.001),
    "damage": Metric("damaged_places", "gauge", "places found that cannot be read"),
}
# By kind of process: what its stats hold.
BY_KIND = {"wal": WAL, "dlv": DELIVERY}
RING_USED = Metric("ring_used_bytes", "gauge", "bytes the WAL shard has not written yet")
SYNC_SECONDS = Metric("wal_sync_seconds", "histogram", "how long fdatasync took")
# In the order in which a page of a delivery shard lists them behind the name.
TOPIC = (
    Metric("topic_head_seq", "gauge", "seq of the newest record; topics written last only"),
    Metric("topic_records", "gauge", "records that can be read; topics written last only"),
    Metric("topic_bytes", "gauge", "their size; topics written last only"),
    Metric("topic_consumer_lag_records", "gauge", "of the named consumer furthest behind; topics written last only"),
)
METRICS = (
    SERVING,
    *DAEMON.values(),
    PROCESS_SERVING,
    *PROCESS.values(),
    *(metric for table in BY_KIND.values() for metric in table.values()),
    RING_USED,
    *TOPIC,
    SYNC_SECONDS,
)


class Series(NamedTuple):
    metric: Metric
    labels: Labels
    value: float


def render(status: dict[str, Any]) -> str:
    """The whole page."""
    processes = [process for process in status.get("processes") or [] if isinstance(process, dict)]
    lines = list(_families(_daemon(status)))
    lines += _families(series for process in processes for series in _process(process))
    lines += _families(series for process in processes for series in _stats(process))
    lines += _families(series for process in processes for series in _rings(process))
    lines += _families(series for process in processes for series in _topics(process))
    lines += _sync_histograms(processes)
    return "\n".join(lines) + "\n"


def _daemon(status: dict[str, Any]) -> Iterator[Series]:
    instance = (("instance", str(status.get("instance", ""))),)
    yield Series(SERVING, instance, float(status.get("state") == "serving"))
    yield from _known(DAEMON, status, ())


def _process(process: dict[str, Any]) -> Iterator[Series]:
    labels = (("process", str(process["name"])),)
    yield Series(PROCESS_SERVING, labels, float(process.get("state") == "serving"))
    yield from _known(PROCESS, process, labels)


def _stats(process: dict[str, Any]) -> Iterator[Series]:
    kind, _, shard = str(process["name"]).partition("-")
    yield from _known(BY_KIND.get(kind, {}), process.get("stats") or {}, (("shard", shard),))


def _rings(process: dict[str, Any]) -> Iterator[Series]:
    _, _, shard = str(process["name"]).partition("-")
    for number, value in enumerate((process.get("stats") or {}).get("ring_used") or []):
        yield Series(RING_USED, (("wal", shard), ("dlv", f"{number:02d}")), value)


def _topics(process: dict[str, Any]) -> Iterator[Series]:
    _, _, shard = str(process["name"]).partition("-")
    shown: set[str] = set()
    for name, *values in (process.get("stats") or {}).get("top_topics") or []:
        # The page cuts long names short: of those that begin alike only the first is shown.
        if name not in shown:
            shown.add(name)
            labels = (("shard", shard), ("topic", str(name)))
            yield from (Series(metric, labels, value) for metric, value in zip(TOPIC, values, strict=False))


def _known(table: dict[str, Metric], values: dict[str, Any], labels: Labels) -> Iterator[Series]:
    for key, metric in table.items():
        value = values.get(key)
        if isinstance(value, int | float):
            yield Series(metric, labels, value * metric.scale if metric.scale != 1 else value)


def _families(series: Iterable[Series]) -> Iterator[str]:
    """Lines of one metric must stand together, under its help."""
    families: dict[str, list[Series]] = {}
    for one in series:
        families.setdefault(one.metric.name, []).append(one)
    for name, members in families.items():
        yield from _head(name, members[0].metric.kind, members[0].metric.help)
        for member in members:
            yield f"topicd_{name}{_labels(member.labels)} {_number(member.value)}"


def _sync_histograms(processes: list[dict[str, Any]]) -> Iterator[str]:
    name = SYNC_SECONDS.name
    first = True
    for process in processes:
        stats = process.get("stats") or {}
        counts = stats.get("sync_histogram")
        if not isinstance(counts, list) or len(counts) != len(SYNC_BOUNDS_S) + 1:
            continue
        if first:
            yield from _head(*SYNC_SECONDS[:3])
            first = False
        shard = ("shard", str(process["name"]).partition("-")[2])
        total = 0
        for bound, count in zip((*SYNC_BOUNDS_S, float("inf")), counts, strict=True):
            total += count
            yield f"topicd_{name}_bucket{_labels((shard, ('le', _bound(bound))))} {total}"
        yield f"topicd_{name}_sum{_labels((shard,))} {_number(stats.get('sync_seconds_total', 0.0))}"
        yield f"topicd_{name}_count{_labels((shard,))} {total}"


def _head(name: str, kind: str, help: str) -> Iterator[str]:
    yield f"# HELP topicd_{name} {help}"
    yield f"# TYPE topicd_{name} {kind}"


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _bound(value: float) -> str:
    return "+Inf" if value == float("inf") else f"{value:g}"


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() and abs(value) < 2**63 else f"{value:.9g}"
