"""Rules of the HTTP contract, by section, that the other files leave out; over both versions of HTTP."""

from __future__ import annotations

import json
from typing import Any

import h2.settings
import pytest

from tests.support.daemon import wait_until
from tests.support.h2wire import H2Wire
from tests.support.web import JSON, Web


def one(**record: Any) -> dict[str, Any]:
    return {"records": [{"data": 1, **record}]}


# ---- 1: transport ----


def test_1_windows_and_streams_of_http2(web1: Web) -> None:
    with H2Wire(web1.port) as wire:
        assert wire.answer(wire.ask("GET", "/healthz"))[0] == 200
        codes, told = h2.settings.SettingCodes, wire.h2.remote_settings
        assert told[codes.INITIAL_WINDOW_SIZE] == 1 << 20
        assert told[codes.MAX_CONCURRENT_STREAMS] == 1024
        assert wire.h2.outbound_flow_control_window == 4 << 20


def test_1_only_http_1_has_a_connection_header(web: Web, topic: str) -> None:
    web.write(topic, 1)
    assert "connection" not in web("GET", f"/v0/topics/{topic}").headers
    with web.watch({topic: {}}) as events:
        assert ("connection" in events.answer.headers) is (web.version == "1.1")


def test_1_unparsable_numbers_of_a_query_are_the_default(web: Web, topic: str) -> None:
    web.write(topic, 1)
    for said in ("x", "-1", "1.5", "1e3", ""):
        assert web("GET", f"/v0/topics?prefix={topic}&page_size={said}").status == 200


def test_1_a_field_that_is_not_known_is_ignored(web: Web, topic: str) -> None:
    assert web("PUT", f"/v0/topics/{topic}", {"type": "queue", "color": "red"}).status == 201
    assert web("POST", f"/v0/topics/{topic}/claim", {"node": "w", "seqs": "whatever"}).status == 200


# ---- 2: the order of checks ----


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v0/topics/{}/diff", "POST"),
        ("DELETE", "/v0/topics/{}/delete", "POST"),
        ("POST", "/healthz", "GET"),
        ("GET", "/v0/watch", "POST"),
        ("DELETE", "/v0/metrics", "GET"),
    ],
)
def test_2_methods_that_a_path_does_not_know(web: Web, topic: str, method: str, path: str, allowed: str) -> None:
    answer = web(method, path.format(topic))
    assert (answer.status, answer.code, answer.headers["allow"]) == (405, "method_not_allowed", allowed)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "-1", "1.5", "1e2", '"1"', "null", "true"])
def test_2_numbers_that_are_none(web: Web, topic: str, number: str) -> None:
    web.write(topic, 1)
    answer = web("POST", f"/v0/topics/{topic}/diff", b'{"from_seq": %b}' % number.encode())
    assert (answer.status, answer.code) == (400, "invalid_request")


# ---- 5: values ----


DATA = b'{"b":1.0,"a":123456789012345678901234567890,"c":1e-7,"\\u00e9":"\\u00e9","z":[]}'


@pytest.mark.parametrize(
    "meta",
    [
        b'{"z":1.50,"a":{"n":12345678901234567890123}}',
        b'{"z":1,"a":2.50}',
        b'{"z":1e5,"y":-0,"a":1.0}',
        b'{"a":1e400}',
        b'{"a":%b}' % (b"9" * 5_000),
        b'{"a":1,"a":2}',
        b'{"$json":"x"}',
    ],
)
def test_5_data_and_meta_come_back_as_they_were_sent(web: Web, topic: str, meta: bytes) -> None:
    web("POST", f"/v0/topics/{topic}", b'{"records":[{"data":%b,"meta":%b}]}' % (DATA, meta))
    raw = web("POST", f"/v0/topics/{topic}/diff").raw
    assert b'"data":' + DATA in raw and b'"meta":' + meta in raw


def test_5_what_a_record_does_not_have_is_left_out(web: Web, topic: str) -> None:
    web("POST", f"/v0/topics/{topic}", {"records": [{"data": None}, {"data": 0, "tag": "t", "node": "n", "meta": {}}]})
    path = f"/v0/topics/{topic}/diff"
    bare, full = web("POST", path, {"include_tags": True}).body["records"]
    assert set(bare) == {"$seq", "$ts", "data"} and bare["data"] is None
    assert set(full) >= {"$seq", "$ts", "$node", "$tag", "data"} and (full["$node"], full["$tag"]) == ("n", "t")
    assert "$tag" not in web("POST", path, {"include_tags": False}).body["records"][1]


@pytest.mark.parametrize("name", ["-a", ".a", "a b", "a%2Fb", "%C3%A9", "a" * 256, "a%3Eb"])
def test_5_a_bad_name_cannot_be_made_and_does_not_exist(web: Web, name: str) -> None:
    path = f"/v0/topics/{name}"
    assert web("PUT", path, {}).code == "invalid_request"
    assert web("POST", path, one()).code == "invalid_request"
    assert web("GET", path).code == "topic_not_found"
    assert web("POST", f"{path}/diff").code == "topic_not_found"
    gone = web("DELETE", path)
    assert (gone.status, gone.body["deleted"], gone.body["routers_removed"]) == (200, False, [])


@pytest.mark.parametrize(
    ("record", "code"),
    [
        ({"tag": "t" * 256, "node": "n" * 128, "meta": {str(n): n for n in range(64)}}, None),
        ({"tag": "t" * 257}, "invalid_request"),
        ({"tag": "é" * 129}, "invalid_request"),
        ({"node": "n" * 129}, "invalid_request"),
        ({"meta": {str(n): n for n in range(65)}}, "invalid_request"),
        ({"meta": {"a": "x" * (16 << 10)}}, "invalid_request"),
        ({"meta": [1]}, "invalid_request"),
        ({"tag": 5}, "invalid_request"),
        ({"data": "x" * (1 << 20)}, "record_too_large"),
    ],
)
def test_5_limits_of_a_record(web: Web, topic: str, record: dict[str, Any], code: str | None) -> None:
    answer = web("POST", f"/v0/topics/{topic}", one(**record))
    if code is None:
        assert answer.status == 201
    else:
        assert (answer.status, answer.code) == (400, code)
        assert web("GET", f"/v0/topics/{topic}").code == "topic_not_found"  # a refused write creates no topic


def test_5_limits_of_a_write_and_of_its_key(web: Web, topic: str) -> None:
    path = f"/v0/topics/{topic}"
    assert web("POST", path, {"records": []}).code == "invalid_request"
    many = web("POST", path, {"records": [{"data": 0}] * 10_001})
    assert (many.status, many.code, many.error["detail"]["max"]) == (400, "batch_too_large", 10_000)
    assert web("POST", path, {**one(), "idempotency_key": "k" * 257}).code == "invalid_request"
    assert web("POST", path, one(), {**JSON, "Idempotency-Key": "k" * 257}).code == "invalid_request"
    assert web("POST", path, {**one(), "idempotency_key": "é" * 256}).status == 201
    assert web("POST", path, {**one(), "idempotency_key": "é" * 256}).body["deduped"] is True


def test_5_a_key_is_forgotten_behind_its_window(web: Web, topic: str) -> None:
    path = f"/v0/topics/{topic}"
    web("PUT", path, {"idempotency_window_ms": 50})
    body = {**one(), "idempotency_key": "k"}
    assert web("POST", path, body).body["deduped"] is False
    wait_until(lambda: web("POST", path, body).body["deduped"] is False, "the key to be forgotten", 30)


@pytest.mark.parametrize(
    ("given", "echoed"),
    [
        ({"durable": True}, {"durability": "fsync", "durable": True}),
        ({"durable": True, "durability": "memory"}, {"durability": "memory", "durable": False}),
        ({"durability": "ephemeral"}, {"durability": "ephemeral", "durable": False}),
        ({"priority": 5_000}, {"priority": 1_000}),
        ({"priority": -5_000}, {"priority": -1_000}),
        ({"lease_ms": 1, "claim_jitter_ms": 9_999}, {"lease_ms": 100, "claim_jitter_ms": 5_000}),
        ({"lease_ms": 1 << 40}, {"lease_ms": 86_400_000}),
        ({"dedupe_node": False, "auto_create": False}, {"dedupe_node": False, "auto_create": False}),
    ],
)
def test_5_configurations_are_clamped_and_echoed(
    web: Web, topic: str, given: dict[str, Any], echoed: dict[str, Any]
) -> None:
    config = web("PUT", f"/v0/topics/{topic}", given).body["config"]
    assert {name: config[name] for name in echoed} == echoed
    assert web("GET", f"/v0/topics/{topic}").body["config"] == config


@pytest.mark.parametrize(
    "config",
    [
        {"type": "table"},
        {"discard": "new"},
        {"durability": "eventual"},
        {"ttl_ms": -1},
        {"cap_records": 1.5},
        {"priority": "high"},
        {"dead_letter": "not a name"},
        {"durable": "yes"},
    ],
)
def test_5_configurations_that_cannot_be(web: Web, topic: str, config: dict[str, Any]) -> None:
    assert web("PUT", f"/v0/topics/{topic}", config).code == "invalid_request"
    assert web("POST", f"/v0/topics/{topic}", {**one(), "config": config}).code == "invalid_request"
    assert web("GET", f"/v0/topics/{topic}").status == 404


def test_5_a_queue_is_not_its_own_dead_letter(web: Web, topic: str) -> None:
    assert web("PUT", f"/v0/topics/{topic}", {"type": "queue", "dead_letter": topic}).code == "invalid_request"


# ---- 6: topics ----


def test_6_a_tighter_cap_applies_to_what_is_stored(web: Web, topic: str) -> None:
    path = f"/v0/topics/{topic}"
    web.write(topic, *range(10))
    web("PUT", path, {"cap_records": 4})
    state = web("GET", path).body
    assert (state["count"], state["earliest_seq"], state["head_seq"], state["next_seq"]) == (4, 7, 10, 11)


def test_6_a_look_without_touching_leaves_no_trace(web: Web, topic: str) -> None:
    path = f"/v0/topics/{topic}"
    web.write(topic, 1)
    for _ in range(2):
        assert web("GET", f"{path}?touch=false").body["last_read_ts"] is None
    web("GET", path)
    assert web("GET", f"{path}?touch=false").body["last_read_ts"] is not None


def test_6_a_topic_goes_with_its_routers_and_comes_back_new(web: Web, topic: str) -> None:
    names = [f"{topic}.z", f"{topic}.a"]
    for name in names:
        assert web("PUT", f"/v0/routers/{name}", {"source": topic, "dest": f"{name}.dest"}).status == 201
    web("POST", f"/v0/topics/{topic}", {**one(), "idempotency_key": "k"})
    gone = web("DELETE", f"/v0/topics/{topic}").body
    assert (gone["deleted"], gone["routers_removed"]) == (True, sorted(names))
    again = web("POST", f"/v0/topics/{topic}", {**one(), "idempotency_key": "k"}).body
    assert (again["first_seq"], again["created"], again["deduped"]) == (1, True, False)


# ---- 8: reads ----


def test_8_what_expired_is_told(web: Web, topic: str) -> None:
    web("PUT", f"/v0/topics/{topic}", {"ttl_ms": 100})
    web.write(topic, 1, 2)

    def expired() -> Any:
        found = web("POST", f"/v0/topics/{topic}/diff").body
        return found if not found["records"] else None

    found = wait_until(expired, "the records to expire", 30)
    assert found["tombstone"] == {
        "gap_from": 1,
        "gap_to": 2,
        "reason": "ttl",
        "missed_estimate": 2,
        "earliest_seq": 3,
        "head_seq": 2,
    }
    assert (found["caught_up"], found["lag"], found["next_from_seq"]) == (True, 0, 2)
    assert web("GET", f"/v0/topics/{topic}").body["count"] == 0


def test_8_a_gap_is_told_once_and_reading_goes_on_behind_it(web: Web, topic: str) -> None:
    web("PUT", f"/v0/topics/{topic}", {"cap_records": 3})
    for n in range(6):
        web.write(topic, n)
    found = web("POST", f"/v0/topics/{topic}/diff", {"from_seq": 1}).body
    gap = found["tombstone"]
    assert (gap["gap_from"], gap["gap_to"], gap["reason"], gap["missed_estimate"]) == (2, 3, "cap", 2)
    assert gap["earliest_seq"] == found["earliest_seq"] == found["records"][0]["$seq"] == 4
    assert web("POST", f"/v0/topics/{topic}/diff", {"from_seq": found["next_from_seq"]}).body["tombstone"] is None


def test_8_an_absent_topic_is_not_made_by_reading(web: Web, topic: str) -> None:
    assert web("POST", f"/v0/topics/{topic}/diff", {"wait_ms": 10}).code == "topic_not_found"
    assert web("GET", f"/v0/topics/{topic}").error["detail"] == {"topic": topic}


# ---- 9: deletes ----


def test_9_a_delete_ends_at_the_head_of_its_time(web: Web, topic: str) -> None:
    path = f"/v0/topics/{topic}"
    web("POST", path, {"records": [{"data": 1, "tag": "t"}, {"data": 2}]})
    assert web("POST", f"{path}/delete", {"match": ["tag", "Eq", "t"]}).body["deleted"] == 1
    web("POST", path, one(tag="t"))
    assert web("GET", path).body["count"] == 2
    assert web("POST", f"{path}/delete", {}).code == "invalid_request"
    assert web("POST", f"{path}/delete", {"before_seq": 99}).body["deleted"] == 2
    assert web("POST", f"/v0/topics/{topic}.none/delete", {"before_seq": 1}).code == "topic_not_found"


# ---- 16: priorities ----


def test_16_a_priority_that_is_set_replaces_the_automatic_one(web: Web, topic: str) -> None:
    path = f"/v0/topics/{topic}"
    web("PUT", path, {"priority": 700})
    assert web("GET", path).body["effective_priority"] == 700
    web("PUT", path, {"auto_priority": False})
    assert web("GET", path).body["effective_priority"] == 0
    web("PUT", path, {})
    web("POST", f"{path}/diff")
    assert 100 < web("GET", f"{path}?touch=false").body["effective_priority"] <= 500


# ---- 4: errors ----


def test_4_a_full_topic_says_what_is_full(web: Web, topic: str) -> None:
    web("PUT", f"/v0/topics/{topic}", {"cap_records": 1, "discard": "reject"})
    web.write(topic, 1)
    error = web("POST", f"/v0/topics/{topic}", one()).error
    assert error["code"] == "topic_full"
    assert {name: error["detail"][name] for name in ("topic", "cap_records", "head_seq", "earliest_seq")} == {
        "topic": topic,
        "cap_records": 1,
        "head_seq": 1,
        "earliest_seq": 1,
    }


def test_4_success_has_no_error_and_only_health_has_a_status(web: Web, topic: str) -> None:
    for answer in (
        web("PUT", f"/v0/topics/{topic}", {}),
        web("GET", f"/v0/topics/{topic}"),
        web("POST", f"/v0/topics/{topic}/diff"),
        web("GET", "/v0/topics?page_size=1"),
    ):
        assert not {"error", "status"} & set(json.loads(answer.raw))
