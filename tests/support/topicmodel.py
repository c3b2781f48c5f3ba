"""A topic in plain Python: what every answer of the daemon must be. No disk, no segments, no background work; a
list of live records, two floors and a clock that somebody sets.

Every operation first lets TTL take what is due, so nothing depends on when a record is looked at.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgpack

from topicd.model import TopicConfig

FRAME_OVERHEAD = 46  # fixed bytes of a record on the wire
LOSSES_KEPT = 64
LIMIT_DEFAULT, LIMIT_MAX = 256, 100_000
BYTES_DEFAULT, BYTES_MAX = 1 << 20, 8 << 20
MAX_SEQ = 2**63 - 1
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}")

DEFAULTS: dict[str, Any] = {
    **TopicConfig().to_fields(),  # of fields that nothing here depends on
    "type": "log",
    "ttl_ms": 0,
    "cap_records": 0,
    "cap_bytes": 0,
    "discard": "old",
    "durability": "disk",
    "priority": None,
    "auto_priority": True,
    "auto_create": True,
    "idempotency_window_ms": 120_000,
    "dedupe_node": True,
    "retain": "all",
    "lease_ms": 30_000,
    "claim_jitter_ms": 0,
    "max_deliveries": 0,
    "dead_letter": None,
    "leases_durable": False,
    "backoff_ms": 1_000,
    "backoff_factor": 2.0,
    "backoff_max_ms": 3_600_000,
    "keep_done_ms": 0,
    "max_in_flight": 0,
    "rate_per_s": 0,
    "group_max_in_flight": 0,
    "group_rate_per_s": 0,
    "breaker_failures": 0,
    "breaker_jobs": 100,
}
CHOICES = {
    "type": ("log", "queue"),
    "discard": ("old", "reject"),
    "durability": ("ephemeral", "memory", "disk", "fsync"),
    "retain": ("all", "acked"),
}
RANGES = {
    "ttl_ms": (0, MAX_SEQ),
    "cap_records": (0, MAX_SEQ),
    "cap_bytes": (0, MAX_SEQ),
    "priority": (-1000, 1000),
    "idempotency_window_ms": (0, 86_400_000),
    "lease_ms": (100, 86_400_000),
    "claim_jitter_ms": (0, 5_000),
    "max_deliveries": (0, 1_000_000),
    "backoff_ms": (0, 86_400_000),
    "backoff_max_ms": (0, 86_400_000),
    "keep_done_ms": (0, 366 * 86_400_000),
    "max_in_flight": (0, 1_000_000),
    "rate_per_s": (0, 1_000_000),
    "group_max_in_flight": (0, 1_000_000),
    "group_rate_per_s": (0, 1_000_000),
    "breaker_failures": (0, 10_000),
    "breaker_jobs": (1, 10_000),
}
REALS = {"backoff_factor": (1.0, 100.0)}


class Refused(Exception):
    """The daemon must answer with this error code and change nothing."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class Clock:
    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms


@dataclass(frozen=True)
class Rec:
    seq: int
    ts: int
    data: bytes
    tag: str | None = None
    node: str | None = None
    meta: dict[str, Any] | None = None

    @property
    def content(self) -> int:
        """What counts against cap_bytes."""
        meta = 2 + len(msgpack.packb(self.meta)) if self.meta else 0
        return len((self.tag or "").encode()) + len((self.node or "").encode()) + meta + len(self.data)

    @property
    def size(self) -> int:
        """What counts against a reader's byte budget."""
        return FRAME_OVERHEAD + self.content


@dataclass(frozen=True)
class Match:
    """A tag, or with prefix every tag that begins so."""

    value: str
    prefix: bool = False

    def wire(self) -> list[str]:
        return ["tag", "Glob", self.value + "*"] if self.prefix else ["tag", "Eq", self.value]

    def takes(self, tag: str | None) -> bool:
        return tag is not None and (tag.startswith(self.value) if self.prefix else tag == self.value)


@dataclass(frozen=True)
class Gap:
    gap_from: int
    gap_to: int
    reason: str
    missed_estimate: int
    earliest_seq: int
    head_seq: int


@dataclass
class Expected:
    """A read's answer. next_from_seq lies in low..high: behind the last record, before the next that passes."""

    records: list[Rec]
    gap: Gap | None
    low: int
    high: int
    head: int
    earliest: int


@dataclass
class Producer:
    last_no: int = 0
    answers: dict[int, tuple[int, int]] = field(default_factory=dict)  # batch number -> first seq, records


def checked_config(given: dict[str, Any]) -> dict[str, Any]:
    changes = {}
    for name, value in given.items():
        if name == "durable":
            if not isinstance(value, bool):
                raise Refused("invalid_request")
            continue
        if name not in DEFAULTS or not _allowed(name, value):
            raise Refused("invalid_request")
        changes[name] = value
    if "durable" in given:
        changes.setdefault("durability", "fsync" if given["durable"] else "disk")
    return changes


def _allowed(name: str, value: Any) -> bool:
    if name in CHOICES:
        return value in CHOICES[name]
    if name == "dead_letter":
        return value is None or (isinstance(value, str) and NAME.fullmatch(value) is not None)
    if name in RANGES:
        if name == "priority" and value is None:
            return True
        low, high = RANGES[name]
        return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    if name in REALS:
        low, high = REALS[name]
        return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
    return isinstance(value, bool)


QUEUES_ONLY = [
    "backoff_ms",
    "backoff_factor",
    "backoff_max_ms",
    "keep_done_ms",
    "max_in_flight",
    "rate_per_s",
    "group_max_in_flight",
    "group_rate_per_s",
    "breaker_failures",
    "breaker_jobs",
]


def fitting(config: dict[str, Any]) -> dict[str, Any]:
    """A log does not take what only queues have."""
    if config["type"] == "log" and any(config[name] != DEFAULTS[name] for name in QUEUES_ONLY):
        raise Refused("invalid_request")
    return config


class TopicModel:
    def __init__(self, clock: Clock, **config: Any) -> None:
        self.clock = clock
        self.config = fitting({**DEFAULTS, **checked_config(config)})
        self.head = 0
        self.last_ts = 0
        self.last_read = 0
        self.evict_floor = 1
        self.losses: list[tuple[int, str]] = []  # (floor, reason): everything from the floor before up to this one
        self.live: list[Rec] = []
        self.producers: dict[int, Producer] = {}
        self.keys: dict[str, tuple[int, int, int]] = {}  # key -> expires, first seq, records
        self.consumers: dict[str, int] = {}

    # ---- what follows from the records ----

    @property
    def earliest(self) -> int:
        return self.live[0].seq if self.live else self.head + 1

    @property
    def bytes(self) -> int:
        return sum(rec.content for rec in self.live)

    @property
    def ephemeral(self) -> bool:
        return self.config["durability"] == "ephemeral"

    def state(self) -> dict[str, Any]:
        self.expire()
        return {
            "head_seq": self.head,
            "earliest_seq": self.earliest,
            "next_seq": self.head + 1,
            "evict_floor": self.evict_floor,
            "count": len(self.live),
            "bytes": self.bytes,
            "last_write_ts": self.last_ts,
            "last_read_ts": self.last_read,
            "effective_priority": self._priority(),
            "settled_seq": self.head,
            "open_commits": 0,
            "lost": [],
            "config": self.config,
        }

    def _priority(self) -> int:
        if self.config["priority"] is not None:
            return int(self.config["priority"])
        idle = self.clock.now_ms - self.last_read
        if not self.config["auto_priority"] or not self.last_read or idle >= 300_000:
            return 0
        return round(500 * 2 ** (-max(0, idle) / 30_000))

    # ---- configuration ----

    def configure(self, given: dict[str, Any]) -> dict[str, Any]:
        changes = checked_config(given)
        if changes.get("type", self.config["type"]) != self.config["type"]:
            raise Refused("conflict")
        wanted = changes.get("durability", self.config["durability"]) == "ephemeral"
        if self.head and wanted != self.ephemeral:
            raise Refused("conflict")
        config = fitting({**self.config, **changes})
        self.expire()
        self.config = config
        # What every consumer has acknowledged is nobody's loss.
        self._free_acked()
        self.expire()
        self._enforce_caps()
        return self.config

    # ---- writing ----

    def append(
        self,
        records: Sequence[tuple[bytes, str | None, str | None, dict[str, Any] | None]],
        *,
        producer: int = 0,
        batch_no: int = 0,
        key: str | None = None,
    ) -> tuple[int, int, int, bool]:
        """(first seq, records, head, deduped); records are (data, tag, node, meta)."""
        now = self.clock.now_ms
        known = self._sent_before(producer, batch_no, key)
        if known is not None:
            return (*known, self.head, True)
        ts = max(now, self.last_ts)
        batch = [Rec(self.head + 1 + i, ts, *rec) for i, rec in enumerate(records)]
        self.expire()
        self._check_caps(batch)
        first, self.head, self.last_ts = self.head + 1, self.head + len(batch), ts
        self.live += batch
        if producer:
            state = self.producers.setdefault(producer, Producer())
            state.last_no = batch_no
            state.answers[batch_no] = (first, len(batch))
        if key is not None and self.config["idempotency_window_ms"]:
            self.keys[key] = (now + self.config["idempotency_window_ms"], first, len(batch))
        head = self.head
        self.expire()
        self._enforce_caps()
        return first, len(batch), head, False

    def _sent_before(self, producer: int, batch_no: int, key: str | None) -> tuple[int, int] | None:
        if producer and (state := self.producers.get(producer)) is not None and batch_no != state.last_no + 1:
            if batch_no > state.last_no:
                raise Refused("out_of_order")
            if batch_no not in state.answers:
                raise Refused("conflict")
            return state.answers[batch_no]
        if key is not None and key in self.keys:
            expires, first, count = self.keys[key]
            if self.clock.now_ms <= expires:
                return first, count
        return None

    def _check_caps(self, batch: list[Rec]) -> None:
        if self.config["discard"] != "reject":
            return
        content = sum(rec.content for rec in batch)
        for cap, used, size in (
            (self.config["cap_records"], len(self.live), len(batch)),
            (self.config["cap_bytes"], self.bytes, content),
        ):
            if cap and size > cap:
                raise Refused("record_too_large")
            if cap and used + size > cap:
                raise Refused("topic_full")

    # ---- removal ----

    def expire(self) -> None:
        ttl = self.config["ttl_ms"]
        if ttl:
            self._lose(lambda rec: self.clock.now_ms - rec.ts > ttl, "ttl")

    def _enforce_caps(self) -> None:
        if self.config["discard"] == "reject":
            return
        cap_records, cap_bytes = self.config["cap_records"], self.config["cap_bytes"]
        if cap_records:
            self._lose(lambda rec: len(self.live) > cap_records, "cap")
        if cap_bytes:
            self._lose(lambda rec: self.bytes > cap_bytes, "cap")

    def _lose(self, due: Callable[[Rec], bool], reason: str) -> None:
        """Remove the oldest while it is due; the floor is one behind the last that was removed."""
        floor = 0
        while self.live and due(self.live[0]):
            floor = self.live.pop(0).seq + 1
        if floor:
            self._note_loss(floor, reason)

    def _note_loss(self, floor: int, reason: str) -> None:
        self.evict_floor = floor
        if self.losses and self.losses[-1][1] == reason:
            self.losses.pop()
        self.losses.append((floor, reason))
        if len(self.losses) > LOSSES_KEPT:
            (_, a), (second, b) = self.losses[:2]
            self.losses[:2] = [(second, a if a == b else "mixed")]

    def delete(self, before_seq: int | None, match: Match | None) -> dict[str, int]:
        if before_seq is None and match is None:
            raise Refused("invalid_request")
        self.expire()

        def goes(rec: Rec) -> bool:
            return (before_seq is None or rec.seq < before_seq) and (match is None or match.takes(rec.tag))

        gone = [rec for rec in self.live if goes(rec)]
        self.live = [rec for rec in self.live if not goes(rec)]
        return {
            "deleted": len(gone),
            "deleted_bytes": sum(rec.content for rec in gone),
            "earliest_seq": self.earliest,
            "head_seq": self.head,
            "count": len(self.live),
            "bytes": self.bytes,
        }

    # ---- reading ----

    def tombstone(self, from_seq: int) -> Gap | None:
        if from_seq + 1 >= self.evict_floor:
            return None
        reasons = {reason for floor, reason in self.losses if floor > from_seq + 1}
        gap_to = self.evict_floor - 1
        reason = reasons.pop() if len(reasons) == 1 else "mixed"
        return Gap(from_seq + 1, gap_to, reason, gap_to - from_seq, self.earliest, self.head)

    def start_at(self, ts: int) -> int:
        """The cursor from which the first live record of that time or later is read."""
        return next((rec.seq for rec in self.live if rec.ts >= ts), self.head + 1) - 1

    def recreated(self) -> Gap:
        """What a cursor of an older topic of the same name is told; it is read from the start."""
        lost = self.evict_floor - 1
        return Gap(1, lost, "recreated", lost, self.earliest, self.head)

    def read(
        self,
        from_seq: int = 0,
        *,
        limit: int = 0,
        max_bytes: int = 0,
        match: Match | None = None,
        nodes: Sequence[str] = (),
        from_ts: int | None = None,
        other_epoch: bool = False,
    ) -> Expected:
        self.expire()
        self.last_read = self.clock.now_ms
        if other_epoch:
            from_seq = 0
        elif from_ts is not None:
            from_seq = self.start_at(from_ts)
        gap = self.recreated() if other_epoch else self.tombstone(from_seq)
        limit = min(limit or LIMIT_DEFAULT, LIMIT_MAX)
        budget = min(max_bytes or BYTES_DEFAULT, BYTES_MAX)
        passing = [rec for rec in self.live if rec.seq > from_seq and self._passes(rec, match, nodes)]
        taken: list[Rec] = []
        for rec in passing:
            if len(taken) >= limit or (taken and rec.size > budget):
                break
            taken.append(rec)
            budget -= rec.size
        end = max(from_seq, self.head)
        if len(taken) == len(passing):
            # Ended by its limits it need not have looked at what lies behind; otherwise it has seen the head.
            ended = len(taken) >= limit or budget <= 0
            low, high = (taken[-1].seq if ended and taken else end), end
        else:
            low, high = taken[-1].seq, passing[len(taken)].seq - 1
        return Expected(taken, gap, low, high, self.head, self.earliest)

    def _passes(self, rec: Rec, match: Match | None, nodes: Sequence[str]) -> bool:
        if match is not None and not match.takes(rec.tag):
            return False
        return not (self.config["dedupe_node"] and rec.node is not None and rec.node in nodes)

    # ---- consumers ----

    def consumer_row(self, name: str) -> dict[str, Any]:
        acked = self.consumers[name]
        behind = max(0, self.head - max(acked, self.earliest - 1))
        return {"name": name, "acked_seq": acked, "head_seq": self.head, "lag": behind}

    def consumer_rows(self) -> list[dict[str, Any]]:
        self.expire()
        return [self.consumer_row(name) for name in sorted(self.consumers)]

    def open_consumer(self, name: str, start: dict[str, Any] | None) -> dict[str, Any]:
        self.expire()
        if name in self.consumers:
            return {**self.consumer_row(name), "created": False}
        self._set_consumer(name, self._start(start))
        return {**self.consumer_row(name), "created": True}

    def ack(self, name: str, seq: int) -> dict[str, Any]:
        self.expire()
        self._known(name)
        if seq > self.head:
            raise Refused("conflict")
        self._set_consumer(name, max(seq, self.consumers[name]))
        return self.consumer_row(name)

    def reset_consumer(self, name: str, start: dict[str, Any] | None) -> dict[str, Any]:
        self.expire()
        self._known(name)
        self._set_consumer(name, self._start(start))
        return self.consumer_row(name)

    def remove_consumer(self, name: str) -> dict[str, Any]:
        self.expire()
        self._known(name)
        del self.consumers[name]
        self._free_acked()
        return {"name": name}

    def _known(self, name: str) -> None:
        if name not in self.consumers:
            raise Refused("consumer_not_found")

    def _start(self, start: dict[str, Any] | None) -> int:
        if start is None or start == {"at": "earliest"}:
            return self.earliest - 1
        if start == {"at": "latest"}:
            return self.head
        if "ts" in start:
            return self.start_at(int(start["ts"]))
        seq = int(start["seq"])
        if seq > self.head:
            raise Refused("conflict")
        return seq

    def _set_consumer(self, name: str, acked: int) -> None:
        self.consumers[name] = acked
        self._free_acked()

    def _free_acked(self) -> None:
        """A voluntary delete: silent. A topic nobody consumes by name keeps everything."""
        if self.config["retain"] == "acked" and self.consumers:
            through = min(self.consumers.values())
            self.live = [rec for rec in self.live if rec.seq > through]

    # ---- restarts ----

    def restarted(self) -> None:
        """What does not outlive the daemon: free keys, and the records of an ephemeral topic."""
        self.keys.clear()
        self.last_read = 0
        if self.ephemeral:
            if self.live:
                self._note_loss(self.head + 1, "cap")
            self.live.clear()
            self.producers.clear()

    def crashed(self, head: int, floor: int, last_ts: int, reason: str | None) -> None:
        """The same without a clean stop. An ephemeral topic goes on at some seq behind its old head, and of what TTL
        took from it only the last snapshot knows: `reason` is what a reader from the beginning is told."""
        lived = bool(self.live)
        if self.ephemeral:
            assert head >= self.head, f"head went back from {self.head} to {head}"
            assert last_ts <= self.last_ts
            self.head, self.last_ts = head, last_ts
            if lived or floor != self.evict_floor:
                assert floor == head + 1, f"floor {floor} is not behind the head {head}"
                if reason == "cap":
                    self.losses.clear()
                self._note_loss(floor, "cap")
            self.live.clear()
        self.restarted()
