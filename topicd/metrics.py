"""The answer to STATUS as Prometheus text. Promise: names are stable; what a process does not report is left
out, never guessed; the number of series grows with the number of processes, not with topics or records: of topics
only those written last are shown, of consumers and routers those furthest behind, a fixed number per delivery shard.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Upper bounds of sync_histogram, whose last bucket has none.
SYNC_BOUNDS_S = tuple(50e-6 * 2**i for i in range(12))
SAVE_BOUNDS_S = tuple(100e-6 * 2**i for i in range(16))

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
PRESSURE = {
    "value": Metric("pressure_ratio", "gauge", "pressure of the daemon: 0 none, 1 full"),
    "gather_ms": Metric("push_gather_seconds", "gauge", "pushes are gathered for so long", 0.001),
    "commit_window_ms": Metric("commit_window_seconds", "gauge", "a WAL shard waits so long for company", 0.001),
}
PRESSURE_STEP = Metric("pressure_step", "gauge", "1 while this step against pressure is in force")
PRESSURE_STEPS = Metric("pressure_steps_total", "counter", "times this step against pressure began")
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
    "waited_s": Metric("wal_waited_seconds_total", "counter", "groups waited so long for company"),
    "lsn": Metric("wal_lsn", "gauge", "end of the log"),
    "synced_lsn": Metric("wal_synced_lsn", "gauge", "end of what is known to be durable"),
    "ring_capacity": Metric("ring_capacity_bytes", "gauge", "size of each of its rings"),
}
DELIVERY = {
    "topics": Metric("topics", "gauge", "topics it owns"),
    "sessions": Metric("connections", "gauge", "open client connections"),
    "appends": Metric("appends_total", "counter", "batches stored"),
    "records": Metric("records_total", "counter", "records stored"),
    "delivered": Metric("delivered_total", "counter", "records given to readers, subscribers and workers"),
    "consumers": Metric("consumers", "gauge", "named consumers of its topics"),
    "consumer_lag": Metric("consumers_lag_records", "gauge", "records that they have not acknowledged, together"),
    "forwarded": Metric("forwarded_total", "counter", "of these, copies that routers have made"),
    "routers": Metric("routers", "gauge", "routers that lead to its topics"),
    "routers_derived": Metric("routers_derived", "gauge", "of these, those whose copies are in no log"),
    "routers_waiting": Metric("routers_waiting", "gauge", "of these, those that stand still; router_waiting says why"),
    "router_lag": Metric("routers_lag_records", "gauge", "records that they have not looked at yet, together"),
    "queues": Metric("queues", "gauge", "queues that were used since its start"),
    "queues_stopped": Metric("queues_stopped", "gauge", "queues that are paused or draining"),
    "jobs_ready": Metric("jobs_ready", "gauge", "jobs of these that could be claimed"),
    "jobs_in_flight": Metric("jobs_in_flight", "gauge", "jobs of these that somebody holds"),
    "jobs_delayed": Metric("jobs_delayed", "gauge", "jobs of these that wait for a time"),
    "jobs_acked": Metric("jobs_acked_total", "counter", "jobs of these that were acknowledged"),
    "jobs_failed": Metric("jobs_failed_total", "counter", "deliveries of these that failed"),
    "jobs_expired": Metric("jobs_expired_total", "counter", "deliveries of these whose lease ran out"),
    "jobs_dead": Metric("jobs_dead_total", "counter", "jobs of these that went to the dead letters"),
    "evicted": Metric("evicted_total", "counter", "records removed by cap or TTL"),
    "deleted": Metric("deleted_total", "counter", "records deleted on request"),
    "compacted": Metric("compacted_records_total", "counter", "of these, older ones of a tag in compacted topics"),
    "compacted_segments": Metric(
        "compacted_segments_total", "counter", "segments whose tags were looked for in older ones"
    ),
    "lagged": Metric("lagged_total", "counter", "times a subscriber fell behind its credit"),
    "lagging": Metric("lagging", "gauge", "topics of subscriptions that have no room for what came"),
    "cut_off": Metric("cut_off_total", "counter", "connections closed that did not read for 30 s"),
    "tombstones": Metric("tombstones_total", "counter", "gaps reported to readers"),
    "throttled": Metric("throttled_total", "counter", "requests refused because something was full"),
    "pressure": Metric("shard_pressure_ratio", "gauge", "what it says for the pressure of the daemon"),
    "ready_depth": Metric("ready_topics", "gauge", "topics that moved and whose followers wait"),
    "parked_topics": Metric("parked_topics", "gauge", "topics of negative priority that are not pushed now"),
    "scheduling_ms": Metric("scheduling_seconds", "gauge", "what a topic waits for its turn, smoothed", 0.001),
    "pool_busy": Metric("pool_busy_ratio", "gauge", "business of its threads for checkpoints"),
    "ring_occupied": Metric("ring_occupied_ratio", "gauge", "occupation of its fullest ring, smoothed"),
    "backlog_occupied": Metric("backlog_occupied_ratio", "gauge", "the fullest of what it may hold in memory"),
    "floods_paused": Metric(
        "floods_paused_ratio", "gauge", "share of the time that who writes much leaves to others, smoothed"
    ),
    "in_flight_bytes": Metric("in_flight_bytes", "gauge", "appends not acknowledged yet"),
    "ring_backlog_bytes": Metric("ring_backlog_bytes", "gauge", "appends that wait for room in a ring"),
    "tail_bytes": Metric("tail_bytes", "gauge", "records not in segments yet"),
    "stored_bytes": Metric("stored_bytes", "gauge", "records in segments"),
    "mapped_bytes": Metric("mapped_bytes", "gauge", "indexes and tag tables of sealed segments, kept for reading"),
    "checkpoints": Metric("checkpoints_total", "counter", "checkpoints done"),
    "checkpoint_failures": Metric("checkpoint_failures_total", "counter", "checkpoints that failed"),
    "snapshots": Metric("snapshots_total", "counter", "metadata snapshots written"),
    "backup_held": Metric("backup_held", "gauge", "1 while files are held for a backup, so that the WAL keeps growing"),
    "backups_held": Metric("backups_held_total", "counter", "backups for which files were held"),
    "backups_lapsed": Metric("backups_lapsed_total", "counter", "of these, those that were not heard of to their end"),
    "snapshot_failing": Metric("snapshot_failing", "gauge", "1 while snapshots fail, so that the WAL keeps growing"),
    "loop_lag_ms": Metric("loop_lag_seconds", "gauge", "delay of its event loop", 0.001),
    "damage": Metric("damaged_places", "gauge", "places found that cannot be read"),
    "far_segments": Metric("far_segments", "gauge", "segments that are packed or in the cold directory"),
    "far_bytes": Metric("far_bytes", "gauge", "records in them, unpacked"),
    "far_file_bytes": Metric("far_file_bytes", "gauge", "their files"),
    "tier_waiting": Metric("tier_waiting", "gauge", "segments that are about to move"),
    "tier_moved": Metric("tier_moved_total", "counter", "segments moved to or from the cold directory, or packed"),
    "tier_moved_bytes": Metric("tier_moved_bytes_total", "counter", "records in them"),
    "tier_failures": Metric("tier_failures_total", "counter", "moves that failed"),
    "cold_loads": Metric("cold_loads_total", "counter", "reads of packed and cold files"),
    "cold_load_failures": Metric("cold_load_failures_total", "counter", "of these, those that failed"),
    "cold_cached_bytes": Metric("cold_cached_bytes", "gauge", "what was read of them last, kept in memory"),
    "cold_stalled_s": Metric("cold_stalled_seconds", "gauge", "for so long the cold directory has not answered"),
    "cold_failing": Metric("cold_failing", "gauge", "1 while the cold directory cannot be used; status says why"),
    "channels": Metric("channels_active", "gauge", "channels that are there"),
    "channel_members": Metric("channel_members", "gauge", "members of all channels"),
    "channel_watches": Metric("channel_watches", "gauge", "connections that watch a channel"),
    "channel_published": Metric("channel_published_total", "counter", "messages published, elements pushed"),
    "channel_popped": Metric("channel_popped_total", "counter", "elements popped"),
    "channel_changes_waiting": Metric("channel_changes_waiting", "gauge", "changes of channels under way or waiting"),
    "store_deletes": Metric("store_deletes_total", "counter", "metadata of channels deleted"),
    "store_delete_failures": Metric("store_delete_failures_total", "counter", "deletes that the disk refused"),
    "store_loads": Metric("store_loads_total", "counter", "metadata of channels loaded"),
    "store_load_failures": Metric("store_load_failures_total", "counter", "metadata of channels that cannot be read"),
    "channel_strays": Metric("channel_strays_total", "counter", "directories without metadata, swept at the start"),
}
CHAT = {
    "sends": Metric("chat_sends_total", "counter", "messages that were sent to it"),
    "duplicates": Metric("chat_duplicates_total", "counter", "of these, those that were there already"),
    "reads": Metric("chat_reads_total", "counter", "pages of chats and inboxes that were read"),
    "operations": Metric("chat_operations_total", "counter", "operations applied"),
    "throttled": Metric("chat_throttled_total", "counter", "requests refused because too many were under way"),
    "waiting": Metric("chat_waiting", "gauge", "entries that are not in the log or not applied yet"),
    "applied_seq": Metric("chat_applied_seq", "gauge", "seq of its log up to which the store is"),
    "unreadable": Metric("chat_unreadable_entries", "gauge", "entries of its log that were passed over"),
    "closed": Metric("chat_closed", "gauge", "1 while the store serves nothing, because it and its log do not agree"),
    "listeners": Metric("chat_listeners", "gauge", "subscriptions to chats and inboxes"),
    "synced_in": Metric("chat_synced_in_total", "counter", "records taken from other stores"),
    "synced_out": Metric("chat_synced_out_total", "counter", "records given to other stores that asked"),
    "sync_failures": Metric("chat_sync_failures_total", "counter", "comparisons with other stores that failed"),
    "sst_bytes": Metric("chat_stored_bytes", "gauge", "the store's files"),
    "memtable_bytes": Metric("chat_memtable_bytes", "gauge", "what it holds in memory"),
}
# By kind of process: what its stats hold.
BY_KIND = {"wal": WAL, "dlv": DELIVERY, "chat": CHAT}
RING_USED = Metric("ring_used_bytes", "gauge", "bytes the WAL shard has not written yet")
SYNC_SECONDS = Metric("wal_sync_seconds", "histogram", "how long fdatasync took")
APPEND_SECONDS = Metric("append_seconds", "histogram", "how long appends were on their way through the log, sampled")
SAVE_SECONDS = Metric("store_save_duration_seconds", "histogram", "how long it took to save a channel's metadata")
SAVES = Metric("store_saves_total", "counter", "saves of a channel's metadata, by result")
# In the order in which a page of a delivery shard lists them behind the name.
TOPIC = (
    Metric("topic_head_seq", "gauge", "seq of the newest record; topics written last only"),
    Metric("topic_records", "gauge", "records that can be read; topics written last only"),
    Metric("topic_bytes", "gauge", "their size; topics written last only"),
    Metric("topic_effective_priority", "gauge", "who is served first; topics written last only"),
    Metric("topic_consumer_lag_records", "gauge", "of the named consumer furthest behind; topics written last only"),
    # Of queues only.
    Metric("topic_jobs_ready", "gauge", "jobs that could be claimed; queues written last only"),
    Metric("topic_jobs_in_flight", "gauge", "jobs that somebody holds; queues written last only"),
    Metric("topic_jobs_delayed", "gauge", "jobs that wait for a time; queues written last only"),
    Metric("topic_jobs_dead_total", "counter", "jobs that went to the dead letters; queues written last only"),
    Metric("topic_jobs_acked_total", "counter", "jobs that were acknowledged; queues written last only"),
)
# Of the named consumers furthest behind: topic, consumer, and these.
CONSUMER = (
    Metric("consumer_acked_seq", "gauge", "seq up to which it has acknowledged; consumers furthest behind only"),
    Metric("consumer_lag_records", "gauge", "records it has not acknowledged; consumers furthest behind only"),
)
# Of routers that stand still, and of those furthest behind: name, copies, lag, and why it waits.
ROUTER = (
    Metric("router_forwarded_total", "counter", "copies made; routers that wait or are furthest behind only"),
    Metric("router_lag_records", "gauge", "records not looked at yet; routers that wait or are furthest behind only"),
)
ROUTER_WAITING = Metric("router_waiting", "gauge", "1 for a router that stands still; its label says why")
METRICS = (
    SERVING,
    *DAEMON.values(),
    *PRESSURE.values(),
    PRESSURE_STEP,
    PRESSURE_STEPS,
    PROCESS_SERVING,
    *PROCESS.values(),
    *(metric for table in BY_KIND.values() for metric in table.values()),
    RING_USED,
    *TOPIC,
    *CONSUMER,
    *ROUTER,
    ROUTER_WAITING,
    SYNC_SECONDS,
    APPEND_SECONDS,
    SAVES,
    SAVE_SECONDS,
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
    lines += _families(series for process in processes for series in _consumers(process))
    lines += _histograms(processes, SYNC_SECONDS, SYNC_BOUNDS_S, "sync_histogram", "sync_seconds_total")
    lines += _histograms(processes, APPEND_SECONDS, SYNC_BOUNDS_S, "append_histogram", "append_seconds_total")
    lines += _families(series for process in processes for series in _saves(process))
    lines += _histograms(processes, SAVE_SECONDS, SAVE_BOUNDS_S, "store_save_histogram", "store_save_seconds")
    lines += _families(series for process in processes for series in _routers(process))
    return "\n".join(lines) + "\n"


def _daemon(status: dict[str, Any]) -> Iterator[Series]:
    instance = (("run", str(status.get("instance", ""))),)
    yield Series(SERVING, instance, float(status.get("state") == "serving"))
    yield from _known(DAEMON, status, ())
    pressure = status.get("pressure") or {}
    yield from _known(PRESSURE, pressure, ())
    for step in pressure.get("steps") or []:
        name = (("step", str(step["name"])),)
        yield Series(PRESSURE_STEP, name, float(bool(step["active"])))
        yield Series(PRESSURE_STEPS, name, float(step["times"]))


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


def _consumers(process: dict[str, Any]) -> Iterator[Series]:
    _, _, shard = str(process["name"]).partition("-")
    shown: set[tuple[str, str]] = set()
    for topic, consumer, *values in (process.get("stats") or {}).get("top_consumers") or []:
        if (topic, consumer) not in shown:
            shown.add((topic, consumer))
            labels = (("shard", shard), ("topic", str(topic)), ("consumer", str(consumer)))
            yield from (Series(metric, labels, value) for metric, value in zip(CONSUMER, values, strict=True))


def _routers(process: dict[str, Any]) -> Iterator[Series]:
    _, _, shard = str(process["name"]).partition("-")
    shown: set[str] = set()
    for name, forwarded, lag, waiting in (process.get("stats") or {}).get("top_routers") or []:
        if name not in shown:
            shown.add(name)
            labels = (("shard", shard), ("router", str(name)))
            yield from (Series(metric, labels, value) for metric, value in zip(ROUTER, (forwarded, lag), strict=True))
            if waiting:
                yield Series(ROUTER_WAITING, (*labels, ("reason", str(waiting))), 1)


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


def _saves(process: dict[str, Any]) -> Iterator[Series]:
    stats, shard = process.get("stats") or {}, str(process["name"]).partition("-")[2]
    for key, result in (("store_saves", "ok"), ("store_save_failures", "error")):
        if key in stats:
            yield Series(SAVES, (("shard", shard), ("result", result)), stats[key])


def _histograms(
    processes: list[dict[str, Any]], metric: Metric, bounds: tuple[float, ...], counts_key: str, sum_key: str
) -> Iterator[str]:
    name = metric.name
    first = True
    for process in processes:
        stats = process.get("stats") or {}
        counts = stats.get(counts_key)
        if not isinstance(counts, list) or len(counts) != len(bounds) + 1:
            continue
        if first:
            yield from _head(*metric[:3])
            first = False
        shard = ("shard", str(process["name"]).partition("-")[2])
        total = 0
        for bound, count in zip((*bounds, float("inf")), counts, strict=True):
            total += count
            yield f"topicd_{name}_bucket{_labels((shard, ('le', _bound(bound))))} {total}"
        yield f"topicd_{name}_sum{_labels((shard,))} {_number(stats.get(sum_key, 0.0))}"
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
