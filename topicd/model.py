"""The nouns of the contract: topic configuration, filters, tombstones, states. No behaviour beyond validation."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

from topicd.errors import Conflict, InvalidRequest
from topicd.limits import COMMITS, INTERNAL, MAX_SEQ, MAX_TAG, SCHEMA_MAX, STAGES, TOPIC_NAME, TOPIC_NAME_RULE
from topicd.topic_fields import plain_name, plain_value


class Durability(StrEnum):
    EPHEMERAL = "ephemeral"  # never in the WAL, gone at restart
    MEMORY = "memory"  # acknowledged once it is in the ring
    DISK = "disk"  # acknowledged after write(), synced in the background
    FSYNC = "fsync"  # acknowledged after fdatasync()


class GapReason(StrEnum):
    CAP = "cap"
    TTL = "ttl"
    MIXED = "mixed"
    RECREATED = "recreated"
    SOURCE_TRIM = "source_trim"
    POWER_LOSS = "power_loss"  # the unsynced tail of a `disk` topic


def check_topic_name(name: Any) -> str:
    if not isinstance(name, str) or not TOPIC_NAME.fullmatch(name):
        raise InvalidRequest(f"topic name {name!r:.300} is not allowed: {TOPIC_NAME_RULE}")
    return name


def is_internal(name: str) -> bool:
    """Names of topics that topicd keeps for itself: hidden from lists, and made only by who asks for just that."""
    return name.startswith(INTERNAL)


def is_staged(name: str) -> bool:
    """Of these, what writers have staged and what was decided about it."""
    return name.startswith((STAGES, COMMITS))


def _rule(low: int, high: int) -> dict[str, Any]:
    return {"range": (low, high)}


def _choice(*allowed: str) -> dict[str, Any]:
    return {"choice": allowed}


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """What a topic promises. A field's metadata is its rule; docs and validation read it there."""

    type: str = field(default="log", metadata=_choice("log", "queue"))
    ttl_ms: int = field(default=0, metadata=_rule(0, MAX_SEQ))
    cap_records: int = field(default=0, metadata=_rule(0, MAX_SEQ))
    cap_bytes: int = field(default=0, metadata=_rule(0, MAX_SEQ))
    discard: str = field(default="old", metadata=_choice("old", "reject"))
    durability: str = field(default="disk", metadata=_choice(*(d.value for d in Durability)))
    priority: int | None = field(default=None, metadata=_rule(-1000, 1000))
    auto_priority: bool = True
    auto_create: bool = True
    idempotency_window_ms: int = field(default=120_000, metadata=_rule(0, 86_400_000))
    dedupe_node: bool = True
    retain: str = field(default="all", metadata=_choice("all", "acked"))
    compact: str = field(default="none", metadata=_choice("none", "last-per-tag"))
    schema: str | None = field(default=None, metadata={"schema": True})  # JSON, as text
    lease_ms: int = field(default=30_000, metadata=_rule(100, 86_400_000))
    claim_jitter_ms: int = field(default=0, metadata=_rule(0, 5_000))
    max_deliveries: int = field(default=0, metadata=_rule(0, 1_000_000))
    dead_letter: str | None = None
    leases_durable: bool = False
    backoff_ms: int = field(default=1_000, metadata=_rule(0, 86_400_000))
    backoff_factor: float = field(default=2.0, metadata={"real": (1.0, 100.0)})
    backoff_max_ms: int = field(default=3_600_000, metadata=_rule(0, 86_400_000))
    keep_done_ms: int = field(default=0, metadata=_rule(0, 366 * 86_400_000))
    max_in_flight: int = field(default=0, metadata=_rule(0, 1_000_000))
    rate_per_s: int = field(default=0, metadata=_rule(0, 1_000_000))
    group_max_in_flight: int = field(default=0, metadata=_rule(0, 1_000_000))
    group_rate_per_s: int = field(default=0, metadata=_rule(0, 1_000_000))
    breaker_failures: int = field(default=0, metadata=_rule(0, 10_000))
    breaker_jobs: int = field(default=100, metadata=_rule(1, 10_000))
    hot_retain_segments: int | None = field(default=None, metadata=_rule(0, MAX_SEQ))
    hot_retain_bytes: int | None = field(default=None, metadata=_rule(0, MAX_SEQ))
    compress: str = field(default="default", metadata=_choice("default", "none", "zstd"))

    @classmethod
    def from_fields(cls, given: Any) -> TopicConfig:
        """Defaults overlaid with the given fields; every violation names the field, the value and the rule."""
        return _fitting(replace(cls(), **_checked(given)))

    @classmethod
    def from_stored(cls, given: Any) -> TopicConfig:
        """As to_fields() gave it, perhaps to a version that took more. Topics that are configured alike share one."""
        try:
            key = (*given.items(), *map(type, given.values()))  # True is 1 to a dictionary
            known = _STORED.get(key)
        except (AttributeError, TypeError):
            return replace(cls(), **_checked(given))
        if known is None:
            if len(_STORED) >= _STORED_MAX:
                _STORED.clear()
            known = _STORED[key] = replace(cls(), **_checked(given))
        return known

    def updated(self, given: Any) -> TopicConfig:
        """This configuration with the given fields changed; `type` may be repeated but not changed."""
        changes = _checked(given)
        self._check_type(changes.get("type", self.type))
        return _fitting(replace(self, **changes))

    def replaced(self, given: Any) -> TopicConfig:
        """The given fields over the defaults: what a topic of this configuration becomes. The type cannot change."""
        config = TopicConfig.from_fields(given)
        self._check_type(config.type)
        return config

    def _check_type(self, wanted: str) -> None:
        if wanted != self.type:
            message = f"type of a topic cannot change from {self.type!r} to {wanted!r}"
            raise Conflict(message, existing_type=self.type, requested_type=wanted)

    def to_fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _NAMES}


_NAMES = tuple(f.name for f in fields(TopicConfig))
_STORED_MAX = 1_024
_STORED: dict[tuple[Any, ...], TopicConfig] = {}  # configurations that were loaded, by what they came from


# Fields that a log does not take. (Those of the HTTP API it takes and does not use.)
QUEUES_ONLY = (
    *("backoff_ms", "backoff_factor", "backoff_max_ms", "keep_done_ms", "max_in_flight", "rate_per_s"),
    *("group_max_in_flight", "group_rate_per_s", "breaker_failures", "breaker_jobs"),
)


_NULLABLE = ("priority", "hot_retain_segments", "hot_retain_bytes")
# Fields that a queue does not take: its jobs are read when they are handed out, so they stay on the fast disk, and each
# is kept until it is acknowledged.
LOGS_ONLY = ("hot_retain_segments", "hot_retain_bytes", "compress", "compact")


def _fitting(config: TopicConfig) -> TopicConfig:
    """The same, unless it asks for what a topic of its kind does not have."""
    if config.breaker_failures > config.breaker_jobs:
        raise InvalidRequest(
            f"breaker_failures is at most breaker_jobs, {config.breaker_jobs}: of so many jobs never "
            f"{config.breaker_failures} have failed"
        )
    foreign, other = (QUEUES_ONLY, "queues: a log") if config.type == "log" else (LOGS_ONLY, "logs: a queue")
    for f in fields(TopicConfig):
        if getattr(config, f.name) == f.default:
            continue
        if f.name in foreign:
            raise InvalidRequest(f"config field {f.name} is for {other} does not take it")
        if f.name in LOGS_ONLY and config.durability == Durability.EPHEMERAL:
            raise InvalidRequest(f"config field {f.name} needs segments: an ephemeral topic has none")
    return config


def _checked(given: Any) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise InvalidRequest(f"config must be a map of fields, not {type(given).__name__}")
    known = {f.name: f for f in fields(TopicConfig)}
    changes: dict[str, Any] = {}
    for said, value in given.items():
        name = plain_name(said)
        if name != said and name in given:
            raise InvalidRequest(f"{said} and {name} are the same config field: give one of them")
        if name == "durable":
            continue
        if name not in known:
            raise InvalidRequest(f"unknown config field {name!r:.100}; known are {', '.join(sorted(known))}, durable")
        changes[name] = _checked_value(name, _plain(name, value), dict(known[name].metadata))
    # An explicit durability wins over the alias.
    if "durable" in given:
        if not isinstance(given["durable"], bool):
            raise InvalidRequest(f"config field durable must be true or false, not {given['durable']!r:.100}")
        changes.setdefault("durability", Durability.FSYNC.value if given["durable"] else Durability.DISK.value)
    return changes


def _plain(name: str, value: Any) -> Any:
    try:
        return plain_value(name, value)
    except ValueError as exc:
        raise InvalidRequest(f"config field {name} {exc}, not {value!r:.100}") from None


def _checked_value(name: str, value: Any, rule: dict[str, Any]) -> Any:
    if name == "dead_letter":
        if value is not None and not (isinstance(value, str) and TOPIC_NAME.fullmatch(value)):
            raise InvalidRequest(
                f"config field dead_letter must be a topic name ({TOPIC_NAME_RULE}), not {value!r:.100}"
            )
        return value
    if "schema" in rule:
        return _schema_text(value)
    if name in _NULLABLE and value is None:
        return None
    if "choice" in rule:
        if value not in rule["choice"]:
            raise InvalidRequest(f"config field {name} must be one of {', '.join(rule['choice'])}, not {value!r:.100}")
        return value
    if "range" in rule:
        low, high = rule["range"]
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise InvalidRequest(f"config field {name} must be an integer from {low} to {high}, not {value!r:.100}")
        return value
    if "real" in rule:
        low, high = rule["real"]
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise InvalidRequest(f"config field {name} must be a number from {low:g} to {high:g}, not {value!r:.100}")
        return float(value)
    if not isinstance(value, bool):
        raise InvalidRequest(f"config field {name} must be true or false, not {value!r:.100}")
    return value


def _schema_text(value: Any) -> str | None:
    """A schema as compact text, of a value or of text. Whether it is a good one is said by who checks records by it."""
    if value is None or value == "":
        return None
    import json  # few topics have one, and every start would load it

    try:
        found = json.loads(value) if isinstance(value, str) else value
        text = json.dumps(found, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as exc:
        raise InvalidRequest(f"config field schema must be a JSON Schema, not {value!r:.100}: {exc}") from None
    if not isinstance(found, dict) or not found:  # an empty one allows everything: that is said with none
        raise InvalidRequest(f"config field schema must be a JSON object that says something, not {value!r:.100}")
    if len(text) > SCHEMA_MAX:
        raise InvalidRequest(f"config field schema has {len(text)} characters, at most {SCHEMA_MAX} are allowed")
    return text


@dataclass(frozen=True, slots=True)
class TagMatch:
    """The one language for tags, in deletes, reads and subscriptions: Eq, or Glob with one trailing star."""

    value: bytes
    prefix: bool = False

    @classmethod
    def from_wire(cls, given: Any) -> TagMatch:
        """`"x"` or `["tag", "Eq", "x"]` or `["tag", "Glob", "x*"]`."""
        if isinstance(given, str):
            return cls._make(given, prefix=False)
        if isinstance(given, list | tuple) and len(given) == 3 and given[0] == "tag" and isinstance(given[2], str):
            if given[1] == "Eq":
                return cls._make(given[2], prefix=False)
            if given[1] == "Glob":
                if not given[2].endswith("*") or "*" in given[2][:-1]:
                    raise InvalidRequest(f"Glob takes one trailing '*', got {given[2]!r:.300}")
                return cls._make(given[2][:-1], prefix=True)
        raise InvalidRequest(f"match must be a tag, ['tag','Eq',x] or ['tag','Glob','x*'], got {given!r:.300}")

    @classmethod
    def _make(cls, text: str, *, prefix: bool) -> TagMatch:
        try:
            raw = text.encode()
        except UnicodeEncodeError as exc:
            raise InvalidRequest(f"a tag is text that UTF-8 can hold: {exc}") from None
        if len(raw) > MAX_TAG or (not raw and not prefix):
            raise InvalidRequest(f"a tag has 1 to {MAX_TAG} bytes, this one has {len(raw)}")
        return cls(raw, prefix)

    def to_wire(self) -> list[str]:
        text = self.value.decode("utf-8", "surrogateescape")
        return ["tag", "Glob", text + "*"] if self.prefix else ["tag", "Eq", text]

    def matches(self, tag: bytes | None) -> bool:
        return tag is not None and (tag.startswith(self.value) if self.prefix else tag == self.value)


@dataclass(frozen=True, slots=True)
class Tombstone:
    """What cap or TTL removed before the reader got to it; seqs are inclusive."""

    gap_from: int
    gap_to: int
    reason: str
    missed_estimate: int
    earliest_seq: int
    head_seq: int

    def to_wire(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_wire(cls, body: dict[str, Any]) -> Tombstone:
        return cls(**{f.name: body[f.name] for f in fields(cls)})
