"""Schemas: what is refused and where it says so, what is bounded, and that nothing gets around them by accident."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from tests.unit.delivery.desk import Desk, append_body
from topicd.errors import BatchTooLarge, InvalidRequest, NotReady, SchemaViolation
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import message
from topicd.limits import SCATTERED, SCHEMA_WRITE_MAX
from topicd.model import TopicConfig
from topicd.shards.delivery.writing import schema

ORDER = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "a/b": {"type": "array", "items": {"type": "string"}}},
    "required": ["id"],
}
TEXT = json.dumps(ORDER)


@pytest.mark.parametrize(
    ("data", "path", "reason"),
    [
        (b'{"id": "x"}', "/id", "integer"),
        (b'{"id": 1, "a/b": ["x", 2]}', "/a~1b/1", "string"),
        (b"[]", "", "object"),
        (b"{}", "", "required"),
        (b"hello", "", "cannot be read as JSON"),
        (b"", "", "cannot be read as JSON"),
        (b"[" * 100_000, "", "cannot be read as JSON"),
        (b'{"id": "' + b"0" * 5_000 + b'"}', "/id", "0000"),
        (b'{"id": 1' + b"0" * 5_000 + b".5}", "", "cannot be read as JSON"),
    ],
)
def test_what_does_not_follow_is_told_by_its_place(data: bytes, path: str, reason: str) -> None:
    found = schema.refusal("orders", TEXT, [b'{"id": 1}', data])
    assert isinstance(found, SchemaViolation)
    assert (found.detail["index"], found.detail["path"]) == (1, path)
    assert reason in found.detail["reason"] and len(found.detail["reason"]) <= 300
    assert schema.refusal("orders", TEXT, [b'{"id": 1}']) is None


@pytest.mark.parametrize(
    "bad",
    [
        {"type": "nonsense"},
        {"$ref": "http://example.com/x.json"},  # nothing is fetched
        {"$ref": "file:///etc/passwd"},
        {"$ref": "#/$defs/none"},
        {"pattern": "(?=x)"},  # no linear time
        {"pattern": "(x{1000}){1000}"},
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_before_a_topic_has_it(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="schema"):
        schema.check_schema(json.dumps(bad))


def test_a_pattern_that_takes_others_for_ever_is_quick() -> None:
    text = json.dumps({"pattern": "^(a+)+$"})
    assert schema.refusal("t", text, [json.dumps("a" * 100_000 + "!").encode()]) is not None


def test_one_write_is_bounded() -> None:
    assert isinstance(schema.refusal("t", TEXT, [b" " * SCHEMA_WRITE_MAX, b" "]), BatchTooLarge)


def test_without_the_library_it_is_refused_and_never_let_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema_rs", None)
    schema._compiled.cache_clear()
    with pytest.raises(InvalidRequest, match=r"topicd\[schema\]"):
        schema.check_schema(TEXT)
    assert isinstance(schema.refusal("t", TEXT, [b'{"id": 1}']), NotReady)


@pytest.mark.parametrize("given", [ORDER, TEXT, json.dumps(ORDER, indent=4)])
def test_it_is_given_as_a_value_or_as_text(given: Any) -> None:
    config = TopicConfig.from_fields({"schema": given})
    assert config.schema == json.dumps(ORDER, separators=(",", ":"))
    assert TopicConfig.from_stored(config.to_fields()) == config
    assert config.updated({"schema": None}).schema is None


@pytest.mark.parametrize("given", [7, True, [], "true", "{", "x" * 70_000, {"const": "x" * 70_000}, {"x": {1, 2}}])
def test_what_is_no_schema_is_refused(given: Any) -> None:
    with pytest.raises(InvalidRequest, match="schema"):
        TopicConfig.from_fields({"schema": given})


# ---- in the shard ----


def test_a_refused_write_leaves_nothing_behind_and_the_next_one_is_stored(desk: Desk) -> None:
    topic = desk.topic(schema=ORDER)
    desk.append(topic, [b'{"id": 1}'])
    with pytest.raises(SchemaViolation):
        desk.append(topic, [b'{"id": 2}', b'{"id": "x"}'])
    desk.write(topic, [b'{"id": 3}'])
    assert (topic.seqs.visible, topic.contents.count) == (2, 2)


def test_the_quick_way_for_single_records_is_checked_too(desk: Desk) -> None:
    free, checked, line = desk.topic("free"), desk.topic(schema=ORDER), desk.line()
    messages = {
        topic.name: b"".join(
            message(Op.APPEND, n, append_body(topic.id, [b"nope"], producer=7, number=n)) for n in (1, 2)
        )
        for topic in (free, checked)
    }
    line.feed(messages["free"])
    line.feed(messages["orders"])
    desk.settle()
    assert (free.seqs.visible, checked.seqs.visible) == (2, 0)
    assert [answer.op for answer in line.answers].count(Op.ERROR) == 2


def test_what_topicd_writes_itself_is_not_stopped_by_a_schema() -> None:
    assert not schema.is_checked(SCATTERED | 5)
    assert schema.is_checked(5) and schema.is_checked(0)


def test_configuring_refuses_a_bad_one_and_changes_nothing(desk: Desk) -> None:
    topic, line = desk.topic(schema=ORDER), desk.line()
    for field in ({"type": "nonsense"}, 7):
        with pytest.raises(InvalidRequest, match="schema"):
            line.ask(Op.CONFIGURE, topic=topic.name, config={"schema": field})
    assert topic.config.schema == json.dumps(ORDER, separators=(",", ":"))
