"""What users may say, and what they are told when it is not allowed."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from topicd.errors import InvalidRequest
from topicd.spark.options import ConnectionOptions, ReadOptions
from topicd.spark.schema import default_schema
from topicd.spark.writer import WriteOptions


def parsed(**options: str) -> ReadOptions:
    return ReadOptions.parse({"topic": "orders", **options})


def test_names_count_in_any_case_and_those_of_spark_are_passed_over() -> None:
    found = ReadOptions.parse({"TOPIC": "orders", "MinPartitions": "3", "path": "/x", "serialization.format": "1"})
    assert (found.topics, found.min_partitions) == (("orders",), 3)


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("startingOfests", "startingOffsets"),
        ("topicPatern", "topicPattern"),
        ("commited", "committed"),
        ("sockt", "socket"),
    ],
)
def test_a_misspelt_name_is_refused_with_what_was_meant(wrong: str, meant: str) -> None:
    with pytest.raises(InvalidRequest, match=rf"(?i)option {wrong} is unknown; did you mean {meant}\?"):
        ReadOptions.parse({"topic": "orders", wrong: "1"})


def test_a_misspelt_name_is_refused_when_writing_too() -> None:
    with pytest.raises(InvalidRequest, match=r"did you mean stageTtl\?"):
        WriteOptions.parse({"topic": "orders", "stageTll": "60"})
    WriteOptions.parse({"topic": "orders", "checkpointLocation": "x", "queryName": "q", "path": "p"})


def test_kafka_names_are_aliases() -> None:
    found = ReadOptions.parse({"subscribe": "b, a", "maxOffsetsPerTrigger": "7", "includeHeaders": "true"})
    assert (found.topics, found.max_records_per_trigger, found.meta_form) == (("b", "a"), 7, "json")
    assert ReadOptions.parse({"subscribePattern": "or.*"}).pattern == "or.*"


def test_defaults_are_those_of_the_documentation() -> None:
    found = parsed()
    assert (found.starting.default, found.ending.default) == ("earliest", "latest")
    assert found.losses.fail
    assert (found.min_records_per_trigger, found.max_trigger_delay) == (None, 900.0)
    assert found.meta_form is None and not found.committed
    assert (found.value_format, found.match, found.nodes, found.consumer) == (None, None, (), None)


@pytest.mark.parametrize(
    ("said", "form", "kind"),
    [
        ("true", "json", "string"),
        ("JSON", "json", "string"),
        ("map", "map", "map<string,string>"),
        ("binary", "binary", "binary"),
        ("false", None, ""),
    ],
)
def test_meta_has_the_form_that_is_asked_for(said: str, form: str | None, kind: str) -> None:
    found = parsed(includeMeta=said)
    assert found.meta_form == form
    assert f", meta {kind}," in default_schema(found) if form else "meta" not in default_schema(found)


def test_options_travel_to_executors_and_hide_the_token() -> None:
    found = parsed(token="secret", host="h:1", startingOffsets='{"orders": 5}')
    assert pickle.loads(pickle.dumps(found)) == found
    assert "secret" not in repr(found)


@pytest.mark.parametrize(
    ("text", "position"), [('{"orders": 17}', 17), ('{"orders": -2}', "earliest"), ('{"orders": "latest"}', "latest")]
)
def test_offsets_by_topic(text: str, position: Any) -> None:
    bound = parsed(startingOffsets=text).starting
    assert (bound.of("orders"), bound.of("other")) == (position, "earliest")


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1700000000123", 1_700_000_000_123),
        ("2026-01-31T12:00:00.5Z", 1_769_860_800_500),
        ("2026-01-31 13:00:00+01:00", 1_769_860_800_000),
        ("2026-01-31 12:00:00", 1_769_860_800_000),
    ],
)
def test_moments_are_utc_unless_they_say_otherwise(text: str, ms: int) -> None:
    assert parsed(startingTimestamp=text).starting.ts_ms == ms


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topic": "a", "topics": "b"}, "one of the options topic, topics and topicPattern"),
        ({}, "one of the options topic, topics and topicPattern"),
        ({"topics": "b", "subscribe": "b"}, "options topics and subscribe say the same"),
        ({"topic": "no spaces"}, "topic name 'no spaces' is not allowed"),
        ({"topicPattern": "a("}, "option topicPattern is not a regular expression"),
        ({"topic": "a", "startingOffsets": "17"}, "option startingOffsets must be earliest, latest or JSON"),
        ({"topic": "a", "startingOffsets": '{"a": -3}'}, "option startingOffsets must be"),
        ({"topic": "a", "startingOffsets": '{"a": true}'}, "option startingOffsets must be"),
        ({"topic": "a", "endingOffsets": '{"a": "soon"}'}, "option endingOffsets must be"),
        ({"topic": "a", "startingTimestamp": "yesterday"}, "option startingTimestamp must be milliseconds"),
        ({"topic": "a", "startingTimestamp": "1", "startingOffsets": "earliest"}, "exclude each other"),
        ({"topic": "a", "minPartitions": "0"}, "option minPartitions must be at least 1, not '0'"),
        ({"topic": "a", "failOnDataLoss": "maybe"}, "option failOnDataLoss must be true or false"),
        (
            {"topic": "a", "valueFormat": "xml"},
            "option valueFormat must be one of binary, string, json, avro, protobuf",
        ),
        ({"topic": "a", "includeMeta": "yaml"}, "option includeMeta must be true, false or one of json, map, binary"),
        ({"topic": "a", "committed": "mostly"}, "option committed must be true or false"),
        ({"topic": "a", "valueFormat": "avro"}, "valueFormat=avro needs option schemaFile"),
        ({"topic": "a", "schemaFile": "x"}, "option schemaFile belongs to valueFormat=avro"),
        ({"topic": "a", "messageName": "x"}, "option messageName belongs to valueFormat=protobuf"),
        ({"topic": "a", "valueFormat": "avro", "schemaFile": "/no/file"}, "'/no/file' cannot be read: No such file"),
        (
            {"topic": "a", "startingOffsets": '{"b": 5}'},
            "startingOffsets names topic 'b', which is not read; read are a",
        ),
        (
            {"topics": "a,b", "endingOffsets": '{"c": 5}'},
            "endingOffsets names topic 'c', which is not read; read are a, b",
        ),
        ({"topicPattern": "a.*", "startingOffsets": '{"b": 5}'}, "'b', which is not read; read are those that fit a.*"),
        (
            {"topic": "a", "startingOffsets": '{"a": 9}', "endingOffsets": '{"a": 8}'},
            "topic a: the start, seq 9, is behind the end, seq 8",
        ),
        ({"topic": "a", "startingTimestamp": "2", "endingTimestamp": "1"}, "is later than endingTimestamp"),
        ({"topic": "a", "maxTriggerDelay": "5"}, "option maxTriggerDelay belongs to minRecordsPerTrigger"),
        (
            {"topic": "a", "minRecordsPerTrigger": "5", "maxOffsetsPerTrigger": "4"},
            "option minRecordsPerTrigger is 5, more than maxRecordsPerTrigger, 4",
        ),
        ({"topic": "a", "acknowledgeGaps": "1-5"}, "option acknowledgeGaps must be JSON as the error"),
        ({"path": "x"}, "FROM name WITH (topic = '...')"),
        ({"topic": "a", "schema": "id INT"}, "option schema belongs to valueFormat=json"),
        ({"topic": "a", "tag": "x", "tagPrefix": "y"}, "options tag and tagPrefix exclude each other"),
        ({"topic": "a", "socket": "/x", "host": "y:1"}, "options socket and host exclude each other"),
        ({"topic": "a", "host": "y"}, "option host needs a port"),
        ({"topic": "a", "host": "y:1", "port": "2"}, "option host needs a port"),
        ({"topic": "a", "socket": "/x", "caFile": "/ca"}, "option caFile belongs to option host"),
    ],
)
def test_what_is_not_allowed_is_named(options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        ReadOptions.parse(options)
    assert said in raised.value.message


@pytest.mark.parametrize(
    ("options", "target"),
    [
        ({}, None),
        ({"socket": "/run/topicd"}, "/run/topicd"),
        ({"host": "db", "port": "7410"}, "tls://db:7410"),
        ({"host": "db:7410", "tls": "false"}, "tcp://db:7410"),
        ({"host": "[::1]:7410"}, "tls://[::1]:7410"),
    ],
)
def test_where_the_daemon_is(options: dict[str, str], target: str | None) -> None:
    assert ConnectionOptions.parse(options).target == target
