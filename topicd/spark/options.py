"""What a user says with `.option(...)`. Promise: names in any case, every value checked before anything is connected,
unknown names passed over (Spark adds its own)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from topicd import values
from topicd.client.core.arguments import milliseconds
from topicd.errors import InvalidRequest
from topicd.model import check_topic_name
from topicd.values import NO_LIMIT

TIMEOUT_S = 60.0  # restarts of the daemon are waited out that long


class Given:
    """Options by name, typed; errors name the option as the user writes it.

    The first name is the option's own, the others are aliases; giving two of them is an error.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {name.lower(): value for name, value in options.items()}

    def text(self, *names: str) -> str | None:
        """None when it is absent; empty counts as absent."""
        given = [name for name in names if self._values.get(name.lower())]
        if len(given) > 1:
            raise InvalidRequest(f"options {' and '.join(given)} say the same: give one of them")
        return self._values[given[0].lower()] if given else None

    def count(self, *names: str, low: int = 1, high: int = NO_LIMIT) -> int | None:
        found = self._parsed({"kind": "count", "low": low, "high": high}, names)
        return None if found is None else int(found)

    def seconds(self, *names: str, default: float) -> float:
        found = self._parsed({"kind": "seconds", "low": 0.0, "high": float(NO_LIMIT)}, names)
        return default if found is None else float(found)

    def flag(self, *names: str, default: bool) -> bool:
        found = self._parsed({"kind": "flag"}, names)
        return default if found is None else bool(found)

    def choice(self, *names: str, choices: tuple[str, ...]) -> str | None:
        found = self._parsed({"kind": "choice", "choices": choices}, names)
        return None if found is None else str(found)

    def words(self, *names: str) -> tuple[str, ...]:
        """A comma-separated list."""
        found = self.text(*names)
        return tuple(word for part in (found or "").split(",") if (word := part.strip()))

    def _parsed(self, rule: values.Rule, names: tuple[str, ...]) -> Any:
        found = self.text(*names)
        if found is None:
            return None
        try:
            return values.parse(found, rule)
        except ValueError as exc:
            raise InvalidRequest(f"option {names[0]} {exc}, not {found!r:.100}") from None


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """Where the daemon is; hashable, so that a process keeps one client per place.

    Neither socket nor host: where `topicd.connect()` looks.
    """

    target: str | None = None
    token: str | None = None
    ca_file: str | None = None
    timeout: float = TIMEOUT_S

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ConnectionOptions:
        given = Given(options)
        socket, host = given.text("socket"), given.text("host")
        if socket and host:
            raise InvalidRequest("options socket and host exclude each other: one daemon is read")
        target = _remote(given, host) if host else socket
        ca_file = given.text("caFile")
        if ca_file and not (target or "").startswith("tls://"):
            raise InvalidRequest("option caFile belongs to option host with tls=true")
        return cls(target, given.text("token"), ca_file, given.seconds("timeout", default=TIMEOUT_S))

    def __repr__(self) -> str:
        return f"ConnectionOptions({self.target or 'the default place'})"  # the token stays out of logs


def _remote(given: Given, host: str) -> str:
    """host, host:port or host and port as options; TLS unless it is declined."""
    port = given.count("port", high=65_535)
    bare = re.fullmatch(r"(\[[^]]+\]|[^:]+)(?::(\d+))?", host)
    if bare is None:
        raise InvalidRequest(f"option host must be a name or address, perhaps with :port, not {host!r:.100}")
    name, its_port = bare.groups()
    if (port is None) == (its_port is None):
        raise InvalidRequest("option host needs a port: host=name:port, or option port, not both")
    return f"{'tls' if given.flag('tls', default=True) else 'tcp'}://{name}:{port or its_port}"


Position = str | int  # "earliest", "latest" or a seq
EARLIEST, LATEST = "earliest", "latest"
VALUE_FORMATS = ("binary", "string", "json")


@dataclass(frozen=True, slots=True)
class Bound:
    """Where reading begins or ends: one place for all topics, places by topic, or a moment."""

    default: str
    seqs: tuple[tuple[str, Position], ...] = ()
    ts_ms: int | None = None

    def of(self, topic: str) -> Position:
        """Counts where no moment is given."""
        return dict(self.seqs).get(topic, self.default)

    def has(self, position: Position) -> bool:
        """Whether some topic begins or ends there."""
        return self.ts_ms is None and (self.default == position or position in dict(self.seqs).values())


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Seqs of bounds as in Kafka: the starting one is read, the ending one is not."""

    connection: ConnectionOptions
    topics: tuple[str, ...]
    pattern: str | None
    starting: Bound
    ending: Bound
    min_partitions: int | None
    max_records_per_partition: int | None
    max_records_per_trigger: int | None
    fail_on_data_loss: bool
    include_meta: bool
    value_format: str | None  # None: as the type of the column says
    value_schema: str | None
    match: str | None  # as the client takes it
    nodes: tuple[str, ...]  # only theirs; empty: everybody's
    exclude_nodes: tuple[str, ...]
    consumer: str | None
    idle_wait: float

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ReadOptions:
        given = Given(options)
        topics, pattern = _subjects(given)
        value_format = given.choice("valueFormat", choices=VALUE_FORMATS)
        value_schema = given.text("schema")
        if value_schema is not None and value_format != "json":
            raise InvalidRequest("option schema belongs to valueFormat=json")
        return cls(
            connection=ConnectionOptions.parse(options),
            topics=topics,
            pattern=pattern,
            starting=_bound(given, "starting", EARLIEST),
            ending=_bound(given, "ending", LATEST),
            min_partitions=given.count("minPartitions"),
            max_records_per_partition=given.count("maxRecordsPerPartition"),
            max_records_per_trigger=given.count("maxRecordsPerTrigger", "maxOffsetsPerTrigger"),
            fail_on_data_loss=given.flag("failOnDataLoss", default=True),
            include_meta=given.flag("includeMeta", "includeHeaders", default=False),
            value_format=value_format,
            value_schema=value_schema,
            match=_match(given),
            nodes=given.words("node"),
            exclude_nodes=given.words("excludeNode"),
            consumer=given.text("consumer"),
            idle_wait=given.seconds("idleWait", default=0.25),
        )


def _subjects(given: Given) -> tuple[tuple[str, ...], str | None]:
    pattern = given.text("topicPattern", "subscribePattern")
    one, many = given.text("topic"), given.words("topics", "subscribe")
    if sum(map(bool, (pattern, one, many))) != 1:
        raise InvalidRequest("one of the options topic, topics and topicPattern is needed, and only one")
    if pattern is None:
        names = (one,) if one else tuple(dict.fromkeys(many))
        return tuple(check_topic_name(name) for name in names), None
    try:
        re.compile(pattern)
    except re.error as exc:
        raise InvalidRequest(f"option topicPattern is not a regular expression: {exc}") from None
    return (), pattern


def _bound(given: Given, which: str, default: str) -> Bound:
    text, moment = given.text(f"{which}Offsets"), given.text(f"{which}Timestamp")
    if text is not None and moment is not None:
        raise InvalidRequest(f"options {which}Offsets and {which}Timestamp exclude each other")
    if moment is not None:
        return Bound(default, ts_ms=_moment(f"{which}Timestamp", moment))
    if text is None or text.strip().lower() in (EARLIEST, LATEST):
        return Bound((text or default).strip().lower())
    return Bound(default, _seqs(f"{which}Offsets", text))


def _seqs(name: str, text: str) -> tuple[tuple[str, Position], ...]:
    """{"orders": 17, "audit": "latest"}; Kafka's -2 and -1 stand for earliest and latest."""
    wrong = InvalidRequest(
        f'option {name} must be earliest, latest or JSON like {{"orders": 17, "audit": "latest"}}, not {text!r:.200}'
    )
    try:
        found = json.loads(text)
    except ValueError:
        raise wrong from None
    if not isinstance(found, dict):
        raise wrong
    words = {-2: EARLIEST, -1: LATEST, EARLIEST: EARLIEST, LATEST: LATEST}
    seqs: list[tuple[str, Position]] = []
    for topic, seq in found.items():
        if isinstance(seq, bool) or not isinstance(seq, str | int):
            raise wrong
        position = words.get(seq, seq)
        if isinstance(position, str) != (seq in words) or (isinstance(position, int) and position < 0):
            raise wrong
        seqs.append((topic, position))
    return tuple(seqs)


def _moment(name: str, text: str) -> int:
    """Milliseconds since 1970, or a date and time; UTC unless it says otherwise."""
    if text.strip().isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidRequest(
            f"option {name} must be milliseconds since 1970 or like 2026-01-31T12:00:00Z, not {text!r:.100}"
        ) from None
    return milliseconds(moment if moment.tzinfo else moment.replace(tzinfo=UTC))


def _match(given: Given) -> str | None:
    tag, prefix = given.text("tag"), given.text("tagPrefix")
    if tag and prefix:
        raise InvalidRequest("options tag and tagPrefix exclude each other")
    return f"{prefix}*" if prefix else tag
