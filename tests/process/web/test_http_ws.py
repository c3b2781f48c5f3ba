"""Section 12 of the HTTP contract: WebSockets."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.daemon import wait_until
from tests.support.web import Web


def test_subscribed_then_backlog_then_caught_up_then_live(web1: Web, topic: str) -> None:
    web1.write(topic, "a", "b")
    with web1.socket() as ws:
        ws.send({"op": "subscribe", "request_id": 7, "topic": topic, "from_seq": 1, "junk": 1})
        first = ws.next()
        assert first == {
            "op": "subscribed",
            "request_id": 7,
            "topics": {topic: {"from_seq": 1, "head_seq": 2, "earliest_seq": 1}},
        }
        records = ws.next()
        assert {name: records[name] for name in ("op", "topic", "from_seq", "to_seq", "head_seq")} == {
            "op": "record",
            "topic": topic,
            "from_seq": 1,
            "to_seq": 2,
            "head_seq": 2,
        }
        assert [one["data"] for one in records["records"]] == ["b"]
        assert ws.next() == {"op": "caught_up", "topic": topic, "head_seq": 2}
        web1.write(topic, "c")
        live = ws.next()
        assert (live["op"], live["from_seq"], live["to_seq"]) == ("record", 2, 3)


def test_nothing_pending_is_said_and_a_second_subscribe_replaces(web1: Web, topic: str) -> None:
    web1.write(topic, 1, 2)
    with web1.socket() as ws:
        ws.send({"op": "subscribe", "topics": {topic: {"tail": True}}})
        assert [ws.next()["op"] for _ in range(2)] == ["subscribed", "caught_up"]
        ws.send({"op": "subscribe", "request_id": "again", "topic": topic, "include_data": False})
        assert ws.next()["request_id"] == "again"
        records = ws.next()["records"]
        assert [set(one) for one in records] == [{"$seq", "$ts"}] * 2
        ws.until("caught_up")
        web1.write(topic, 3)
        assert [ws.next()["op"], ws.next()["op"]] == ["record", "caught_up"]
        assert ws.ask({"op": "ping", "request_id": "p"}) == {"op": "pong", "request_id": "p"}
        gone = ws.ask({"op": "unsubscribe", "request_id": [1], "topic": topic, "topics": ["other"]})
        assert gone == {"op": "unsubscribed", "request_id": [1], "topics": [topic, "other"]}
        web1.write(topic, 4)
        ws.send({"op": "ping", "request_id": 1})
        assert ws.next()["op"] == "pong"


def test_publish_is_acknowledged_as_a_write_is(web1: Web, topic: str) -> None:
    with web1.socket() as ws:
        body = {"op": "publish", "request_id": "w9", "topic": topic, "records": [{"data": 1, "tag": "t"}, {"data": 2}]}
        ack = ws.ask(body)
        assert ack["performance"]["server_total_ms"] > 0 and ack["performance"]["fsync_ms"] == 0.0
        del ack["performance"]
        assert ack == {
            "op": "ack",
            "request_id": "w9",
            "topic": topic,
            "first_seq": 1,
            "last_seq": 2,
            "seqs": [1, 2],
            "head_seq": 2,
            "count": 2,
            "created": True,
            "deduped": False,
        }
        again = {**body, "idempotency_key": "k", "return_seqs": False}
        assert (ws.ask(again)["seqs"], ws.ask(again)["deduped"]) == (None, True)
        assert web1("GET", f"/v0/topics/{topic}").body["head_seq"] == 4


def test_many_publishes_keep_their_order(web1: Web, topic: str) -> None:
    with web1.socket() as ws:
        for n in range(300):
            ws.send({"op": "publish", "request_id": n, "topic": topic, "records": [{"data": n}]})
        acks = [ws.next() for _ in range(300)]
    assert sorted(one["request_id"] for one in acks) == list(range(300))
    found = web1("POST", f"/v0/topics/{topic}/diff", {"limit": 1000}).body["records"]
    assert [one["data"] for one in found] == list(range(300))
    assert {one["request_id"]: one["first_seq"] for one in acks} == {n: n + 1 for n in range(300)}


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("nonsense", "invalid_json"),
        ("[]", "invalid_json"),
        ({"op": "dance"}, "invalid_json"),
        ({"op": 5}, "invalid_json"),
        ({}, "invalid_json"),
        ({"op": "publish", "records": [{"data": 1}]}, "invalid_request"),
        ({"op": "publish", "topic": "?", "records": [{"data": 1}]}, "invalid_request"),
        ({"op": "publish", "topic": "t", "records": []}, "invalid_request"),
        ({"op": "publish", "topic": "none.such", "records": [{"data": 1}], "create": False}, "topic_not_found"),
        ({"op": "subscribe"}, "invalid_request"),
        ({"op": "subscribe", "topic": "none.such"}, "topic_not_found"),
        ({"op": "subscribe", "topic": "t", "from_seq": -1}, "invalid_request"),
        ({"op": "unsubscribe"}, "invalid_request"),
    ],
)
def test_what_is_wrong_leaves_the_socket_open(web1: Web, message: Any, code: str) -> None:
    with web1.socket() as ws:
        ws.send(message if isinstance(message, str) else {**message, "request_id": 5})
        error = ws.next()
        expected = None if isinstance(message, str) else 5
        assert (error["op"], error["request_id"], error["code"], bool(error["message"])) == (
            "error",
            expected,
            code,
            True,
        )
        assert ws.ask({"op": "ping", "request_id": 1})["op"] == "pong"


def test_binary_messages_pings_and_lenient_subscriptions(web1: Web, topic: str) -> None:
    web1.write(topic, 1)
    with web1.socket() as ws:
        ws.send_bytes(b"\x00")
        assert ws.next()["code"] == "unsupported_message"
        ws.ping()
        ws.send({"op": "subscribe", "topics": {topic: {}, "none.such": {}}, "lenient": True})
        assert list(ws.next()["topics"]) == [topic]


def test_tombstones_have_their_reason_and_deleted_topics_are_told(web1: Web, topic: str) -> None:
    web1("PUT", f"/v0/topics/{topic}", {"cap_records": 1})
    web1.write(topic, 1)
    web1.write(topic, 2)
    with web1.socket() as ws:
        ws.send({"op": "subscribe", "topic": topic})
        gap = ws.until("tombstone")
        assert gap == {
            "op": "tombstone",
            "topic": topic,
            "reason": "cap",
            "gap_from": 1,
            "gap_to": 1,
            "earliest_seq": 2,
            "head_seq": 2,
        }
        web1("DELETE", f"/v0/topics/{topic}")
        gone = ws.until("topic_deleted")
        assert gone == {"op": "topic_deleted", "topic": topic, "head_seq": 2, "reason": "deleted"}


def test_a_request_that_is_no_upgrade(webs: dict[str, Web]) -> None:
    for web in webs.values():
        answer = web("GET", "/v0/ws")
        assert (answer.status, answer.code) == (400, "invalid_request")
    assert webs["1.1"]("POST", "/v0/ws", {}).status == 405


def test_a_socket_that_does_not_read_costs_little_and_misses_nothing(web1: Web, topic: str) -> None:
    web1.write(topic, 0)
    big = "x" * 50_000

    def resident() -> int:
        found = [one for one in web1.daemon.status()["processes"] if one["name"] == "gateway-00"]
        return int(found[0]["rss"])

    with web1.socket() as ws:
        ws.send({"op": "subscribe", "topic": topic})
        ws.until("caught_up")
        before = resident()
        for n in range(1, 101):
            web1.write(topic, *[[n, big]] * 20)
        assert resident() - before < 60 << 20
        seen: list[int] = []
        while len(seen) < 2_000:
            message = ws.next()
            assert message["op"] in ("record", "caught_up")
            seen += [one["$seq"] for one in message.get("records", [])]
    assert seen == list(range(2, 2_002))


def test_a_socket_that_left_is_noticed(web1: Web, topic: str) -> None:
    def streams() -> int:
        return int(web1.daemon.stats("gateway-00")["streams"])

    wait_until(lambda: streams() == 0, "sockets of other tests to be gone")
    ws = web1.socket()
    wait_until(lambda: streams() == 1, "the socket to be counted")
    ws.close()
    wait_until(lambda: streams() == 0, "the socket to be gone")
