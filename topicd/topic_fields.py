"""What each field of a topic means, for `--help`, shell completion and docs/topic-fields.md, and how people may write
its value: `ttl=1d`, `cap_bytes=1GiB`. The rules themselves: topicd/model.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypedDict

from topicd.values import duration_ms, parse

HELP: dict[str, str] = {
    "type": "log: records for any number of readers; queue: jobs that are claimed and acknowledged; never changes",
    "ttl_ms": "records older than this are removed; 0: never",
    "cap_records": "how many records it holds at most; 0: any number",
    "cap_bytes": "how many bytes of records it holds at most; 0: any number",
    "discard": "at a cap: old removes the oldest records, reject refuses the new ones (topic_full)",
    "durability": "a write is acknowledged after fdatasync (fsync), after write (disk), in shared memory (memory); "
    "ephemeral is gone at a restart",
    "priority": "shown in the topic's state; none: taken from how much it is used",
    "auto_priority": "whether a priority of none follows the topic's use",
    "auto_create": "whether writing to the topic may create it",
    "idempotency_window_ms": "how long the key of a record is remembered",
    "dedupe_node": "whether readers may leave out records by their origin (exclude_nodes)",
    "retain": "all: caps and ttl decide; acked: what every named consumer has acknowledged is removed",
    "compact": "last-per-tag: of records with the same tag the newest stays, older ones are deleted in the background; "
    "those without a tag stay; none: all stay",
    "schema": "a JSON Schema that the data of every record must follow; @FILE on the command line; none: any bytes",
    "lease_ms": "how long a claimed job belongs to its worker",
    "claim_jitter_ms": "claims that come within this time are served together, one job each",
    "max_deliveries": "after so many failures a job goes to dead_letter; 0: never",
    "dead_letter": "the topic that takes jobs that failed too often",
    "leases_durable": "whether leases outlive a restart",
    "backoff_ms": "how long a failed job waits before it is delivered again",
    "backoff_factor": "by which that grows with every failure",
    "backoff_max_ms": "the longest such wait",
    "keep_done_ms": "how long finished jobs stay readable",
    "max_in_flight": "how many jobs may be claimed at once; 0: any number",
    "rate_per_s": "how many jobs are handed out in a second; 0: any number",
    "group_max_in_flight": "the same for each group of jobs",
    "group_rate_per_s": "the same for each group of jobs",
    "breaker_failures": "so many failures among the last breaker_jobs stop deliveries for a while; 0: never",
    "breaker_jobs": "how many of the last jobs the breaker looks at",
    "hot_retain_segments": "so many sealed segments stay plain on the fast disk; 0: any number; none: as the daemon's",
    "hot_retain_bytes": "so many bytes of them; 0: any number; none: as the daemon's; the stricter of the two counts",
    "compress": "how older segments are compressed; default: as the daemon's",
}
_NULLABLE = ("priority", "dead_letter", "schema", "hot_retain_segments", "hot_retain_bytes")
ALIASES = {name.removesuffix("_ms"): name for name in HELP if name.endswith("_ms")}  # ttl=1d


class TopicFields(TypedDict, total=False):
    """The fields of a topic as `configure` takes them."""

    type: Literal["log", "queue"]
    ttl: str | int
    ttl_ms: int | str
    cap_records: int
    cap_bytes: int | str
    discard: Literal["old", "reject"]
    durability: Literal["ephemeral", "memory", "disk", "fsync"]
    durable: bool
    priority: int | None
    auto_priority: bool
    auto_create: bool
    idempotency_window: str | int
    idempotency_window_ms: int | str
    dedupe_node: bool
    retain: Literal["all", "acked"]
    compact: Literal["none", "last-per-tag"]
    schema: dict[str, Any] | str | None
    lease: str | int
    lease_ms: int | str
    claim_jitter: str | int
    claim_jitter_ms: int | str
    max_deliveries: int
    dead_letter: str | None
    leases_durable: bool
    backoff: str | int
    backoff_ms: int | str
    backoff_factor: float
    backoff_max: str | int
    backoff_max_ms: int | str
    keep_done: str | int
    keep_done_ms: int | str
    max_in_flight: int
    rate_per_s: int
    group_max_in_flight: int
    group_rate_per_s: int
    breaker_failures: int
    breaker_jobs: int
    hot_retain_segments: int | None
    hot_retain_bytes: int | str | None
    compress: Literal["default", "none", "zstd"]


def _schema(text: str) -> str:
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text()
    except (OSError, UnicodeDecodeError) as exc:
        raise ValueError(f"cannot be read: {exc}") from None


def plain_name(name: str) -> str:
    return ALIASES.get(name, name)


def unit_of(name: str) -> str:
    """What a plain number means; empty: it is a number, a word or a truth."""
    return "milliseconds" if name.endswith("_ms") else "bytes" if name.endswith("_bytes") else ""


def plain_value(name: str, value: Any) -> Any:
    """A value with a unit as the number it stands for; all else as it is. ValueError says what it must be."""
    if not isinstance(value, str) or not unit_of(name):
        return value
    return duration_ms(value) if name.endswith("_ms") else parse(value, {"kind": "size"})


def typed_value(name: str, text: str, kind: str) -> Any:
    """A value from the command line; kind: choice, range, real, flag, topic or schema."""
    if text in ("none", "null", "") and name in _NULLABLE:
        return None
    if kind == "schema":
        return _schema(text)
    if kind in ("choice", "topic"):
        return text
    if kind == "real":
        try:
            return float(text)
        except ValueError:
            raise ValueError("must be a number") from None
    if unit_of(name):
        return plain_value(name, text)
    return parse(text, {"kind": "count" if kind == "range" else "flag"})
