"""What a user says with `.option(...)`. Promise: names in any case, misspelt ones refused, every value checked before
anything is connected."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from topicd.errors import InvalidRequest
from topicd.model import check_topic_name
from topicd.spark import loss
from topicd.spark.bounds import EARLIEST, LATEST, Bound, check_bounds, parse_bound
from topicd.spark.formats.codec import AVRO, PROTOBUF, Codec
from topicd.spark.formats.loading import load
from topicd.spark.given import Given
from topicd.spark.loss import Policy

CONNECTION_NAMES = ("socket", "host", "port", "tls", "token", "caFile", "timeout")
_READ_NAMES = (
    *("topic", "topics", "subscribe", "topicPattern", "subscribePattern"),
    *("startingOffsets", "startingTimestamp", "endingOffsets", "endingTimestamp"),
    *("tag", "tagPrefix", "node", "excludeNode"),
    *("valueFormat", "schema", "schemaFile", "messageName", "includeMeta", "includeHeaders"),
    *("committed", "failOnDataLoss", loss.OPTION),
    *("minPartitions", "maxRecordsPerPartition", "consumer", "idleWait"),
    *(
        "maxRecordsPerTrigger",
        "maxOffsetsPerTrigger",
        "minRecordsPerTrigger",
        "minOffsetsPerTrigger",
        "maxTriggerDelay",
    ),
)

TIMEOUT_S = 60.0  # restarts of the daemon are waited out that long


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


JSON = "json"
VALUE_FORMATS = ("binary", "string", JSON, AVRO, PROTOBUF)
META_FORMS = (JSON, "map", "binary")
TRIGGER_DELAY_S = 900.0  # as Kafka's


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
    min_records_per_trigger: int | None
    max_trigger_delay: float  # how long fewer are waited for
    losses: Policy
    committed: bool  # nothing of a commit before all of it is there
    meta_form: str | None  # one of META_FORMS; None: no such column
    value_format: str | None  # None: as the type of the column says
    value_schema: str | None  # DDL, for JSON
    codec: Codec | None  # for formats with a schema file
    match: str | None  # as the client takes it
    nodes: tuple[str, ...]  # only theirs; empty: everybody's
    exclude_nodes: tuple[str, ...]
    consumer: str | None
    idle_wait: float

    @property
    def parses(self) -> bool:
        """Data becomes values of its own type, null where it does not fit."""
        return self.value_format == JSON or self.codec is not None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ReadOptions:
        given = Given(options)
        given.check_names((*_READ_NAMES, *CONNECTION_NAMES))
        topics, pattern = _subjects(given)
        starting, ending = parse_bound(given, "starting", EARLIEST), parse_bound(given, "ending", LATEST)
        check_bounds(starting, ending, topics, pattern)
        value_format, value_schema, codec = _value(given)
        return cls(
            connection=ConnectionOptions.parse(options),
            topics=topics,
            pattern=pattern,
            starting=starting,
            ending=ending,
            min_partitions=given.count("minPartitions"),
            max_records_per_partition=given.count("maxRecordsPerPartition"),
            max_records_per_trigger=given.count("maxRecordsPerTrigger", "maxOffsetsPerTrigger"),
            min_records_per_trigger=_least(given),
            max_trigger_delay=given.seconds("maxTriggerDelay", default=TRIGGER_DELAY_S),
            losses=_losses(given),
            committed=given.flag("committed", default=False),
            meta_form=_meta_form(given),
            value_format=value_format,
            value_schema=value_schema,
            codec=codec,
            match=_match(given),
            nodes=given.words("node"),
            exclude_nodes=given.words("excludeNode"),
            consumer=given.text("consumer"),
            idle_wait=given.seconds("idleWait", default=0.25),
        )


# Spark gives Python sources none of the options of a table in its catalog.
_TABLES = (
    ". (Spark hands the OPTIONS of a CREATE TABLE to no Python source: use CREATE TEMPORARY VIEW name USING topicd "
    "OPTIONS (...), or give them where the table is read: SELECT ... FROM name WITH (topic = '...'))"
)


def _subjects(given: Given) -> tuple[tuple[str, ...], str | None]:
    pattern = given.text("topicPattern", "subscribePattern")
    one, many = given.text("topic"), given.words("topics", "subscribe")
    if sum(map(bool, (pattern, one, many))) != 1:
        hint = "" if pattern or one or many else _TABLES
        raise InvalidRequest(f"one of the options topic, topics and topicPattern is needed, and only one{hint}")
    if pattern is None:
        names = (one,) if one else tuple(dict.fromkeys(many))
        return tuple(check_topic_name(name) for name in names), None
    try:
        re.compile(pattern)
    except re.error as exc:
        raise InvalidRequest(f"option topicPattern is not a regular expression: {exc}") from None
    return (), pattern


def _least(given: Given) -> int | None:
    least = given.count("minRecordsPerTrigger", "minOffsetsPerTrigger")
    most = given.count("maxRecordsPerTrigger", "maxOffsetsPerTrigger")
    if least is None and given.text("maxTriggerDelay") is not None:
        raise InvalidRequest("option maxTriggerDelay belongs to minRecordsPerTrigger")
    if least is not None and most is not None and least > most:
        raise InvalidRequest(f"option minRecordsPerTrigger is {least}, more than maxRecordsPerTrigger, {most}")
    return least


def _losses(given: Given) -> Policy:
    gaps = given.text(loss.OPTION)
    return Policy(given.flag("failOnDataLoss", default=True), loss.parse_gaps(gaps) if gaps is not None else ())


def _meta_form(given: Given) -> str | None:
    names = ("includeMeta", "includeHeaders")
    said = (given.text(*names) or "").strip().lower()
    if said in META_FORMS:
        return said
    try:
        return JSON if given.flag(*names, default=False) else None
    except InvalidRequest:
        forms = ", ".join(META_FORMS)
        raise InvalidRequest(f"option includeMeta must be true, false or one of {forms}, not {said!r:.100}") from None


def _value(given: Given) -> tuple[str | None, str | None, Codec | None]:
    name = given.choice("valueFormat", choices=VALUE_FORMATS)
    schema, file, message = given.text("schema"), given.text("schemaFile"), given.text("messageName")
    if schema is not None and name != JSON:
        raise InvalidRequest("option schema belongs to valueFormat=json")
    if message is not None and name != PROTOBUF:
        raise InvalidRequest("option messageName belongs to valueFormat=protobuf")
    if name not in (AVRO, PROTOBUF):
        if file is not None:
            raise InvalidRequest("option schemaFile belongs to valueFormat=avro and valueFormat=protobuf")
        return name, schema, None
    if file is None:
        raise InvalidRequest(f"valueFormat={name} needs option schemaFile")
    return name, None, load(name, file, message)


def _match(given: Given) -> str | None:
    tag, prefix = given.text("tag"), given.text("tagPrefix")
    if tag and prefix:
        raise InvalidRequest("options tag and tagPrefix exclude each other")
    return f"{prefix}*" if prefix else tag
