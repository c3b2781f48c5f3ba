"""Section 11 of the HTTP contract: watch sessions and their streams."""

from __future__ import annotations

import base64
import json
import re
import socket
import time
from typing import Any

import pytest

from tests.support.daemon import wait_until
from tests.support.web import Web


def decoded(id: str) -> dict[str, int]:
    found: dict[str, int] = json.loads(base64.urlsafe_b64decode(id + "=" * (-len(id) % 4)))
    return found


def test_a_session_says_where_it_stands(web: Web, topic: str) -> None:
    web.write(topic, 1, 2, 3)
    made = web("POST", "/v0/watch", {"topics": {topic: {"from_seq": 1}}, "unknown": 1})
    body = made.body
    assert (made.status, body["session_ttl_ms"]) == (200, 300_000)
    assert re.fullmatch(r"wid_[A-Za-z0-9_-]{22}", body["wid"])
    assert body["stream_url"] == f"/v0/watch/{body['wid']}"
    assert body["topics"] == {topic: {"from_seq": 1, "head_seq": 3, "earliest_seq": 1}}
    tail = web("POST", "/v0/watch", {"topics": {topic: {"tail": True}}}).body
    assert tail["topics"][topic]["from_seq"] == 3
    assert tail["performance"]["server_total_ms"] > 0


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({}, 400, "invalid_request"),
        ({"topics": {}}, 400, "invalid_request"),
        ({"topics": {f"t{n}": {} for n in range(257)}}, 400, "invalid_request"),
        ({"topics": {"none.such": {}}}, 404, "topic_not_found"),
        ({"topics": {"?": {}}}, 404, "topic_not_found"),
        ({"topics": {"a": {"from_seq": -1}}}, 400, "invalid_request"),
        ({"topics": {"a": {}}, "consistency": "weak"}, 400, "invalid_request"),
        ({"topics": ["a"]}, 400, "invalid_request"),
    ],
)
def test_a_session_that_cannot_be(web: Web, body: Any, status: int, code: str) -> None:
    answer = web("POST", "/v0/watch", body)
    assert (answer.status, answer.code) == (status, code)


def test_unknown_topics_are_left_out_leniently(web: Web, topic: str) -> None:
    web.write(topic, 1)
    made = web("POST", "/v0/watch?lenient=true", {"topics": {topic: {}, "none.such": {}}})
    assert list(made.body["topics"]) == [topic]


def test_backlog_caught_up_live_and_their_bytes(web: Web, topic: str) -> None:
    web.write(topic, "a", {"b": 1})
    with web.watch({topic: {}}) as events:
        head = events.answer.headers
        assert head["content-type"] == "text/event-stream; charset=utf-8"
        assert (head["cache-control"], head["x-accel-buffering"]) == ("no-store", "no")
        assert head.get("connection") == ("keep-alive" if web.version == "1.1" else None)
        first = events.raw()
        assert first is not None and first.text == "retry: 2000"
        backlog, drained = events.next(), events.next()
        web.write(topic, "live")
        live = events.next()
    assert [one.name for one in (backlog, drained, live)] == ["record", "caught-up", "record"]
    assert [record["data"] for record in backlog.data["records"]] == ["a", {"b": 1}]
    assert ": " not in backlog.text and ", " not in backlog.text
    assert {name: backlog.data[name] for name in ("topic", "from_seq", "to_seq", "head_seq")} == {
        "topic": topic,
        "from_seq": 0,
        "to_seq": 2,
        "head_seq": 2,
    }
    assert drained.data == {"topic": topic, "head_seq": 2}
    assert [decoded(one.id) for one in (backlog, drained, live)] == [{topic: 2}, {topic: 2}, {topic: 3}]
    assert (live.data["from_seq"], live.data["to_seq"], live.data["head_seq"]) == (2, 3, 3)


def test_data_of_many_lines_stays_on_one_and_keeps_its_tokens(web: Web, topic: str) -> None:
    text = b'{"records": [{"data": {"a":\n 1.50e3,\r\n\t"b": 123456789012345678901, "c": "x, y: \\n"}}]}'
    assert web("POST", f"/v0/topics/{topic}", text).status == 201
    with web.watch({topic: {}}) as events:
        assert '{"a":1.50e3,"b":123456789012345678901,"c":"x, y: \\n"}' in events.next().text


def test_nothing_pending_is_said_at_once(web: Web, topic: str) -> None:
    web("PUT", f"/v0/topics/{topic}", {})
    with web.watch({topic: {}}) as events:
        first = events.next()
        assert (first.name, first.data) == ("caught-up", {"topic": topic, "head_seq": 0})


def test_limits_of_a_frame(web: Web, topic: str) -> None:
    web.write(topic, *range(5))
    with web.watch({topic: {}}, limit=2) as events:
        sizes = [len(events.next().data["records"]) for _ in range(3)]
        assert events.next().name == "caught-up"
        web.write(topic, *range(5))
        live = [events.next() for _ in range(4)]
    assert sizes == [2, 2, 1]
    assert [len(one.data["records"]) for one in live[:3]] == [2, 2, 1]
    assert [one.data["to_seq"] for one in live[:3]] == [7, 9, 10]
    assert live[3].name == "caught-up"
    with web.watch({topic: {}}, max_batch_bytes=1) as events:
        assert len(events.next().data["records"]) == 1


def test_the_id_of_a_frame_resumes_behind_it_and_only_rewinds(web: Web, topic: str) -> None:
    web.write(topic, *range(4))
    url = web.session({topic: {}}, limit=1)
    with web.events(url) as events:
        ids = [events.next().id for _ in range(4)]
        assert events.next().name == "caught-up"
    with web.events(url, {"Last-Event-ID": ids[1]}) as events:
        assert events.records(2) == [2, 3]
    with web.events(f"{url}?cursor={ids[0]}") as events:
        assert events.records(3) == [1, 2, 3]
    mixed = base64.urlsafe_b64encode(json.dumps({topic: 2, "other": "x", "third": 1.5}).encode()).decode()
    with web.events(url, {"Last-Event-ID": mixed}) as events:
        assert events.records(2) == [2, 3]
    ahead = base64.urlsafe_b64encode(json.dumps({topic: 99, "other": 1}).encode()).decode().rstrip("=")
    for said in (ahead, "!!", "AAAA", base64.urlsafe_b64encode(b"[1]").decode()):
        with web.events(url, {"Last-Event-ID": said}) as events:
            assert events.next().name == "caught-up"


def test_the_session_goes_on_where_its_stream_was(web: Web, topic: str) -> None:
    web.write(topic, 1, 2)
    url = web.session({topic: {}})
    with web.events(url) as events:
        assert events.records(2) == [1, 2]
        with web.events(url) as again:  # while the old one is open
            assert again.next().name == "caught-up"
    web.write(topic, 3)
    with web.events(url) as events:
        assert events.records(1) == [3]


def test_ids_name_all_topics_of_the_session(web: Web, topic: str) -> None:
    names = [f"{topic}.{n}" for n in range(3)]
    for name in names:
        web.write(name, name)
    with web.watch({name: {} for name in names}) as events:
        seen = [events.next() for _ in range(6)]
        assert set(decoded(seen[0].id)) == set(names)
        assert decoded(seen[-1].id) == dict.fromkeys(names, 1)


def test_many_topics_have_short_ids_that_resume_as_well(web1: Web, topic: str) -> None:
    names = [f"{topic}.{n:03d}" for n in range(100)]
    for name in names:
        web1.write(name, name, "second")
    url = web1.session({name: {} for name in names}, limit=1)
    with web1.events(url) as events:
        first = events.next()
        while events.next().name != "caught-up":
            pass
    assert len(first.id) < 1_000
    with web1.events(url, {"Last-Event-ID": first.id}) as events:
        assert len(events.records(199)) == 199


def test_a_gap_comes_before_what_is_behind_it(web: Web, topic: str) -> None:
    web("PUT", f"/v0/topics/{topic}", {"cap_records": 2})
    web.write(topic, 1)
    web.write(topic, 2, 3, 4, 5)
    with web.watch({topic: {}}) as events:
        gap, records = events.next(), events.next()
    assert (gap.name, decoded(gap.id)) == ("tombstone", {topic: 3})
    assert gap.data == {
        "topic": topic,
        "reason": "from_seq_too_old",
        "gap_from": 1,
        "gap_to": 3,
        "earliest_seq": 4,
        "head_seq": 5,
    }
    assert (records.data["from_seq"], [one["$seq"] for one in records.data["records"]]) == (3, [4, 5])


def test_a_topic_that_is_deleted_ends_alone_and_the_last_one_ends_the_stream(web: Web, topic: str) -> None:
    names = [f"{topic}.a", f"{topic}.b"]
    for name in names:
        web.write(name, name)
    with web.watch({name: {} for name in names}) as events:
        events.records(2)
        web("DELETE", f"/v0/topics/{names[0]}")
        while (gone := events.next()).name != "topic-deleted":
            pass
        assert gone.data == {"topic": names[0], "head_seq": 1, "reason": "deleted"}
        web.write(names[1], "still")
        assert events.records(1) == ["still"]
        web("DELETE", f"/v0/topics/{names[1]}")
        assert [one.name for one in events.rest() if one.name][-1] == "topic-deleted"


def test_a_topic_that_was_made_anew_is_told_to_a_session_that_comes_back(web: Web, topic: str) -> None:
    web.write(topic, "old", "old")
    url = web.session({topic: {}})
    with web.events(url) as events:
        events.records(2)
    web("DELETE", f"/v0/topics/{topic}")
    web.write(topic, "new")
    with web.events(url) as events:
        gap, records = events.next(), events.next()
    assert (gap.name, gap.data["reason"], gap.data["gap_from"], gap.data["gap_to"]) == ("tombstone", "recreated", 1, 1)
    assert [one["data"] for one in records.data["records"]] == ["new"]


def test_own_records_are_left_out_silently(web: Web, topic: str) -> None:
    web.write(topic, "mine", node="me")
    with web.watch({topic: {}}, node="me") as events:
        assert events.next().name == "caught-up"
        web.write(topic, "mine too", node="me")
        web.write(topic, "yours", node="you")
        assert events.records(1) == ["yours"]
    web("PUT", f"/v0/topics/{topic}", {"dedupe_node": False})
    with web.watch({topic: {}}, node=["me", "you"]) as events:
        assert events.records(3) == ["mine", "mine too", "yours"]


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_strong_streams_wait_for_the_disk(web1: Web, topic: str, durability: str) -> None:
    web1("PUT", f"/v0/topics/{topic}", {"durability": durability})
    web1.write(topic, 1)
    with web1.watch({topic: {}}, consistency="strong") as events:
        assert events.records(1) == [1]
        web1.write(topic, 2)
        web1.write(topic, 3)
        assert events.records(2) == [2, 3]


def test_what_of_a_record_is_told(web: Web, topic: str) -> None:
    web("POST", f"/v0/topics/{topic}", {"records": [{"data": 1, "tag": "t", "node": "n", "meta": {"m": 1}}]})
    shapes = {
        "plain": ({}, {"$seq", "$ts", "$node", "data", "meta"}),
        "tags": ({"include_tags": True, "include_meta": False}, {"$seq", "$ts", "$node", "$tag", "data"}),
        "bare": ({"include_data": False}, {"$seq", "$ts", "$node", "meta"}),
    }
    for options, fields in shapes.values():
        with web.watch({topic: {}}, **options) as events:
            assert set(events.next().data["records"][0]) == fields


def test_silence_is_broken_by_comments_without_an_id(web: Web, topic: str) -> None:
    web("PUT", f"/v0/topics/{topic}", {})
    with web.watch({topic: {}}, heartbeat_ms=1) as events:
        events.next()
        began = time.monotonic()
        beat = events.raw()
        assert beat is not None and re.fullmatch(r": hb \d{13}", beat.text)
        assert 0.9 < time.monotonic() - began < 5


def test_streams_that_are_refused(web: Web, topic: str) -> None:
    web.write(topic, 1)
    url = web.session({topic: {}})
    for accept in ("application/json", "text/html, application/xhtml+xml"):
        refused = web.events("/v0/watch/wid_none", {"Accept": accept}).refused()
        assert (refused.status, refused.code) == (406, "not_acceptable")
    for accept in ("*/*", "text/event-stream", "text/html, */*;q=0.1"):
        refused = web.events("/v0/watch/wid_none", {"Accept": accept}).refused()
        assert (refused.status, refused.code) == (404, "not_found")
        with web.events(url, {"Accept": accept}) as events:
            assert events.status == 200
    assert web("POST", url, {}).status == 405


def test_a_reader_that_left_is_noticed_while_nothing_is_sent(webs: dict[str, Web], topic: str) -> None:
    web = webs["1.1"]
    web("PUT", f"/v0/topics/{topic}", {})

    def streams() -> int:
        return int(web.daemon.stats("gateway-00")["streams"])

    wait_until(lambda: streams() == 0, "streams of other tests to be gone")
    events = [each.watch({topic: {}}, heartbeat_ms=60_000) for each in webs.values()]
    assert [each.next().name for each in events] == ["caught-up"] * 2
    wait_until(lambda: streams() == 2, "the streams to be counted")
    for each in events:
        each.close()
    wait_until(lambda: streams() == 0, "the streams to be gone")


def test_a_reader_that_does_not_read_is_caught_up_later_without_loss(web1: Web, topic: str) -> None:
    big = "x" * 20_000
    url = web1.session({topic: {}} if web1.write(topic, "first") else {})
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 18)
        sock.settimeout(30)
        sock.connect(("127.0.0.1", web1.port))
        sock.sendall(f"GET {url} HTTP/1.0\r\nHost: x\r\n\r\n".encode())
        for n in range(60):
            web1.write(topic, *[[n * 10 + i, big] for i in range(10)])
        text = b""
        while b'"$seq":601,' not in text:
            text += sock.recv(1 << 20)
    seqs = [int(seq) for seq in re.findall(rb'"\$seq":(\d+)', text)]
    assert seqs == list(range(1, 602))
    frames = text.count(b"event: record")
    assert frames < 600 and b"tombstone" not in text
