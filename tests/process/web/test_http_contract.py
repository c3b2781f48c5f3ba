"""Sections 1 to 9, 14 and 15 of the HTTP contract, rule by rule, over both versions of HTTP."""

from __future__ import annotations

import base64
import gzip
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.web import JSON, Answer, Web


def one(*data: Any, **more: Any) -> dict[str, Any]:
    return {"records": [{"data": each} for each in data], **more}


def raw(web: Web, sent: bytes) -> bytes:
    """What comes back on a plain connection until it ends or nothing comes any more."""
    with socket.create_connection(("127.0.0.1", web.port), timeout=10) as sock:
        sock.sendall(sent)
        sock.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := sock.recv(65_536):
            answer += piece
    return answer


# ---- 1: transport ----


def test_chunked_bodies_keep_alive_and_expect(web1: Web, topic: str) -> None:
    body = json.dumps(one(1)).encode()
    head = f"POST /v0/topics/{topic} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n".encode()
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(body[n : n + 7]), body[n : n + 7]) for n in range(0, len(body), 7))
    first = head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
    second = head + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    answer = raw(web1, first + second)
    assert answer.count(b"HTTP/1.1 20") == 2
    assert web1("GET", f"/v0/topics/{topic}").body["head_seq"] == 2


def test_an_upgrade_to_h2c_is_not_taken(web1: Web) -> None:
    lines = b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
    ask = b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + lines + b"\r\n"
    assert raw(web1, ask + b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n").count(b"HTTP/1.1 200 OK") == 2


def test_http_1_0_is_told_that_its_connection_stays(web1: Web) -> None:
    asked = b"GET /healthz HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
    kept = raw(web1, asked + asked + b"GET /healthz HTTP/1.0\r\n\r\n")
    assert kept.count(b" 200 OK") == 3
    assert kept.count(b"\r\nConnection: keep-alive\r\n") == 2 and kept.count(b"\r\nConnection: close\r\n") == 1


def test_accept_may_come_in_several_lines(web: Web) -> None:
    several = [("Accept", "application/json"), ("Accept", "text/event-stream")]
    found = web.http.get(f"{web.base}/v0/watch/wid_none", headers=several)
    assert (found.status_code, found.json()["error"]["code"]) == (404, "not_found")
    assert web("GET", "/v0/watch/wid_none", headers={"Accept": "application/json"}).code == "not_acceptable"


def test_the_answer_to_head_has_no_body(web: Web) -> None:
    page = web("HEAD", "/")
    assert (page.status, page.raw) == (200, b"") and page.headers["content-type"].startswith("text/html")
    refused = web("HEAD", "/v0/topics")
    assert (refused.status, refused.raw, refused.headers["allow"]) == (405, b"", "GET")
    assert web("GET", "/healthz").status == 200


HOST = b"Host: x\r\n"
POSTED = b"POST /v0/topics/t HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        b"NOTHING\r\n\r\n",
        b"BREW /v0/topics HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET /healthz HTTP/2.0\r\n" + HOST + b"\r\n",
        b"GET /healthz HTTP/1.1\nHost: x\n\n",
        b"GET /healthz HTTP/1.1\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n" + HOST + HOST + b"\r\n",
        b"GET /healthz HTTP/1.1\r\n" + HOST + b"no colon\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n" + HOST + b"X: " + b"y" * 65_536 + b"\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n" + HOST + b"X: y\r\n" * 128 + b"\r\n",
        b"GET /" + b"y" * 65_536 + b" HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET /\xc3\xa9 HTTP/1.1\r\n" + HOST + b"\r\n",
        POSTED + b"Content-Length: many\r\n\r\n",
        POSTED + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        POSTED + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        POSTED + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        POSTED + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n",
    ],
)
def test_bytes_that_are_no_request_have_the_envelope(web1: Web, sent: bytes) -> None:
    head, _, body = raw(web1, sent).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\n")
    assert head.endswith(b"\r\nConnection: close")
    error = json.loads(body)["error"]
    assert error["code"] == "invalid_request" and error["message"]


def test_a_head_that_is_as_large_as_may_be(web1: Web) -> None:
    rest = len(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: \r\n\r\n")
    sent = b"GET /healthz HTTP/1.1\r\n" + HOST + b"X: " + b"y" * (65_536 - rest) + b"\r\n\r\n"
    assert raw(web1, sent).startswith(b"HTTP/1.1 200 OK")


def test_names_are_percent_decoded_and_slashes_at_the_end_are_no_alias(web: Web, topic: str) -> None:
    web.write(topic, 1)
    assert web("GET", "/v0/topics/" + topic.replace(".", "%2E")).status == 200
    assert web("GET", f"/v0/topics/{topic}/").code == "not_found"
    assert web("GET", "/v0/topics/").code == "not_found"
    assert web("GET", "/healthz/").code == "not_found"


@pytest.mark.parametrize(("said", "seqs"), [("false", 0), ("0", 0), ("no", 1), ("", 1), ("1", 1), ("FALSE", 1)])
def test_booleans_of_a_query(web: Web, topic: str, said: str, seqs: int) -> None:
    answer = web("POST", f"/v0/topics/{topic}?return_seqs={said}", one(1))
    assert ("seqs" in answer.body) is bool(seqs)


# ---- 2: the order of checks ----


def test_what_is_wrong_first_answers(web: Web, topic: str) -> None:
    path, text = f"/v0/topics/{topic}", {"Content-Type": "text/plain"}
    steps: list[tuple[Answer, int, str]] = [
        (web("GET", "/v0/no/such/path"), 404, "not_found"),
        (web("PATCH", path, b"{}", text), 405, "method_not_allowed"),
        (web("POST", f"{path}/diff", b"{}", text), 415, "unsupported_media_type"),
        (web("POST", f"{path}/diff", b"{}", {}), 415, "unsupported_media_type"),
        (web("POST", f"{path}/diff", b"nonsense"), 400, "invalid_request"),
        (web("POST", f"{path}/diff", b'{"from_seq": "1"}'), 400, "invalid_request"),
        (web("POST", f"{path}/diff", b'{"from_seq": 1}'), 404, "topic_not_found"),
        (web("POST", path, b"", {}), 415, "unsupported_media_type"),
        (web("POST", path, b"", JSON), 400, "invalid_request"),
        (web("POST", f"{path}/delete", b"", JSON), 400, "invalid_request"),
        (web("POST", f"{path}/diff"), 404, "topic_not_found"),
        (web("POST", "/v0/topics/%3F", one(1)), 400, "invalid_request"),
        (web("PUT", "/v0/topics/%3F", {}), 400, "invalid_request"),
        (web("GET", "/v0/topics/%3F"), 404, "topic_not_found"),
        (web("POST", "/v0/topics/%3F/diff"), 404, "topic_not_found"),
    ]
    assert [(answer.status, answer.code) for answer, *_ in steps] == [(status, code) for _, status, code in steps]
    assert all(answer.headers["content-type"] == "application/json" for answer, *_ in steps)
    assert web("DELETE", "/v0/topics/%3F").body["deleted"] is False


def test_a_method_that_a_path_does_not_know_is_told_those_it_knows(web: Web) -> None:
    allowed = web("PUT", "/v0/topics/a/diff", b"").headers["allow"]
    assert allowed == "POST"
    assert set(web("PATCH", "/v0/topics/a").headers["allow"].split(", ")) == {"DELETE", "GET", "POST", "PUT"}
    assert web("DELETE", "/v0/topics/a/delete").status == 405


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=utf-8", "application/json ;x=y"])
def test_content_types_that_are_json(web: Web, topic: str, kind: str) -> None:
    assert web("POST", f"/v0/topics/{topic}", one(1), {"Content-Type": kind}).status == 201


@pytest.mark.parametrize(
    "body",
    [
        b'{"records":[{"data":Infinity}]}',
        b'{"records":[{"data":-Infinity}]}',
        b'{"records":[{"data":01}]}',
        b'{"records":[{"data":"\\ud800"}]}',
        b'{"records":[{"data":1}],}',
        b'{"records":[{"data":1}]} x',
        b'\xef\xbb\xbf{"records":[{"data":1}]}',
        b"[" * 100_000,
        b'{"records":[{"data":' + b"[" * 100_000 + b"]" * 100_000 + b"}]}",
        b'{"records":[{"data":1,"meta":[]}]}',
        b'{"records":[{"data":1,"meta":' + json.dumps({f"k{n}": n for n in range(65)}).encode() + b"}]}",
        b'{"records":[{"data":1,"meta":{"k":"' + b"x" * 16_384 + b'"}}]}',
        b'{"records":[{"data":1,"node":"' + b"x" * 129 + b'"}]}',
        b'{"records":[{"data":1}],"idempotency_key":"' + b"x" * 257 + b'"}',
        b'{"records":[{"data":1}],"config":{"priority":1.5}}',
        b'{"records":[{"data":1}],"config":{"dead_letter":"?"}}',
        b'{"records":{"data":1}}',
        b"null",
    ],
)
def test_bodies_that_are_refused(web: Web, topic: str, body: bytes) -> None:
    answer = web("POST", f"/v0/topics/{topic}", body)
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert web("GET", f"/v0/topics/{topic}").status == 404


def test_gzip_is_taken_bounded_and_given_only_if_asked_for(web: Web, topic: str) -> None:
    path, packed = f"/v0/topics/{topic}", {**JSON, "Content-Encoding": "gzip"}
    assert web("POST", path, gzip.compress(json.dumps(one("x" * 2_000)).encode()), packed).status == 201
    bomb = gzip.compress(b'{"records":[{"data":"' + b"x" * (65 << 20) + b'"}]}', 1)
    assert web("POST", path, bomb, packed).code == "payload_too_large"
    assert web("POST", path, gzip.compress(b"{}")[:-9], packed).code == "invalid_request"
    plain = web("POST", f"{path}/diff", b"{}")
    assert "content-encoding" not in plain.headers
    asked = {**JSON, "Accept-Encoding": "gzip, br"}
    assert web("POST", f"{path}/diff", b"{}", asked).headers["content-encoding"] == "gzip"
    for refused in ("gzip;q=0", "br, GZIP; q=0.0", "br;q=1, xgzip"):
        asked["Accept-Encoding"] = refused
        assert "content-encoding" not in web("POST", f"{path}/diff", b"{}", asked).headers
    assert (
        "content-encoding" not in web("GET", path, None, {"Accept-Encoding": "gzip"}).headers
        or len(web("GET", path, None, {"Accept-Encoding": "gzip"}).raw) >= 1_024
    )


def test_a_body_that_is_announced_too_large_is_refused_at_once(web1: Web) -> None:
    head = (
        b"POST /v0/topics/a HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 67108865\r\n\r\n"
    )
    answer = raw(web1, head)
    assert answer.startswith(b"HTTP/1.1 413 ") and b'"payload_too_large"' in answer


# ---- 4, 5, 6: errors, values, topics ----


def test_the_whole_configuration_is_echoed_and_replaced(web: Web, topic: str) -> None:
    path = f"/v0/topics/{topic}"
    given = {
        "ttl_ms": 3_600_000,
        "cap_records": 10,
        "cap_bytes": 1_000,
        "discard": "reject",
        "durability": "memory",
        "durable": True,
        "priority": 5_000,
        "auto_priority": False,
        "auto_create": False,
        "idempotency_window_ms": 5,
        "dedupe_node": False,
        "lease_ms": 1,
        "claim_jitter_ms": 99_999,
        "leases_durable": True,
        "retain": "all",
    }
    made = web("PUT", path, given)
    assert made.status == 201, made.raw
    expected = {**given, "durable": False, "priority": 1_000, "lease_ms": 100, "claim_jitter_ms": 5_000, "type": "log"}
    assert made.body["config"].items() >= expected.items()
    assert web("PUT", path, given).body["created"] is False
    defaults = web("PUT", path).body["config"]
    assert (
        defaults.items()
        >= {
            "type": "log",
            "ttl_ms": 0,
            "cap_records": 0,
            "cap_bytes": 0,
            "discard": "old",
            "durability": "disk",
            "durable": False,
            "priority": None,
            "auto_priority": True,
            "auto_create": True,
            "idempotency_window_ms": 120_000,
            "dedupe_node": True,
            "lease_ms": 30_000,
            "claim_jitter_ms": 0,
            "max_deliveries": 0,
            "dead_letter": None,
            "leases_durable": False,
        }.items()
    )
    assert web("GET", path).body["config"] == defaults


def test_the_type_of_a_topic_stays(web: Web, topic: str) -> None:
    path = f"/v0/topics/{topic}"
    assert web("PUT", path, {"type": "queue"}).status == 201
    for body in ({}, {"type": "log"}):
        refused = web("PUT", path, body)
        assert (refused.status, refused.code) == (409, "topic_exists_incompatible")
        detail = {"topic": topic, "existing_type": "queue", "requested_type": "log"}
        assert refused.error["detail"].items() >= detail.items()
    assert web("PUT", path, {"type": "queue", "dead_letter": topic}).code == "invalid_request"


def test_created_is_told_to_one_of_many(web: Web, topic: str) -> None:
    clients = [Web(web.daemon, web.version) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        put = list(pool.map(lambda each: each("PUT", f"/v0/topics/{topic}.p", {}).status, clients))
        post = list(pool.map(lambda each: each("POST", f"/v0/topics/{topic}.w", one(1)).status, clients))
    for client in clients:
        client.close()
    assert sorted(put) == sorted(post) == [200] * 7 + [201]


def test_the_state_of_a_topic(web: Web, topic: str) -> None:
    path = f"/v0/topics/{topic}"
    web("PUT", path, {})
    fresh = web("GET", f"{path}?touch=false").body
    assert (fresh["head_seq"], fresh["next_seq"], fresh["earliest_seq"], fresh["count"], fresh["bytes"]) == (
        0,
        1,
        1,
        0,
        0,
    )
    assert (fresh["last_write_ts"], fresh["last_read_ts"], fresh["effective_priority"]) == (None, None, 0)
    assert "queue" not in fresh
    web.write(topic, "abc")
    web("GET", path)
    used = web("GET", f"{path}?touch=false").body
    assert used["bytes"] == len('"abc"') and isinstance(used["effective_priority"], int)
    assert abs(used["last_write_ts"] - time.time() * 1000) < 60_000 and used["last_read_ts"] is not None


def test_pages_have_their_size_and_skip_nothing_while_names_go(web: Web, topic: str) -> None:
    names = [f"{topic}.{n}" for n in range(6)]
    for name in names:
        web("PUT", f"/v0/topics/{name}", {})
    page = web("GET", f"/v0/topics?prefix={topic}.&page_size=3").body
    assert [row["topic"] for row in page["topics"]] == names[:3]
    assert set(page["topics"][0]) >= {
        *("topic", "head_seq", "earliest_seq", "count", "bytes", "durable", "effective_priority")
    }
    web("DELETE", f"/v0/topics/{names[2]}")
    rest = web("GET", f"/v0/topics?prefix={topic}.&page_size=9999&cursor={page['next_cursor']}").body
    assert [row["topic"] for row in rest["topics"]] == names[3:] and "next_cursor" not in rest
    assert len(web("GET", f"/v0/topics?prefix={topic}.&page_size=0").body["topics"]) == 1
    assert len(web("GET", f"/v0/topics?prefix={topic}.&page_size=many").body["topics"]) == 5
    assert web("GET", f"/v0/topics?prefix={'x' * 300}").body["topics"] == []
    for broken in ("!!", "AAAA", base64.urlsafe_b64encode(b'{"after":1}').decode().rstrip("=")):
        assert web("GET", f"/v0/topics?cursor={broken}").code == "invalid_request"


# ---- 7: writes ----


def test_a_write_tells_what_it_did(web: Web, topic: str) -> None:
    path = f"/v0/topics/{topic}"
    made = web("POST", path, {"records": [{"data": None}, {"data": 2}], "node": "gw", "unknown": {}})
    body = made.body
    performance = body.pop("performance")
    assert made.status == 201
    assert body == {
        "topic": topic,
        "first_seq": 1,
        "last_seq": 2,
        "seqs": [1, 2],
        "head_seq": 2,
        "count": 2,
        "created": True,
        "deduped": False,
    }
    assert performance["server_total_ms"] > 0 and performance["fsync_ms"] == 0.0 and "wal_append_ms" in performance
    read = web("POST", f"{path}/diff").body
    records = read["records"]
    assert [record["$node"] for record in records] == ["gw", "gw"] and records[0]["data"] is None
    assert read["performance"]["records_scanned"] == 2 and read["performance"]["throttle_wait_ms"] == 0
    gone = web("POST", f"{path}/delete", {"before_seq": 2}).body
    assert gone["deleted"] == 1 and "records_scanned" in gone["performance"]


def test_a_synced_write_tells_how_long_the_sync_took(web: Web, topic: str) -> None:
    web("PUT", f"/v0/topics/{topic}", {"durable": True})
    for more in ({}, {"idempotency_key": "k"}):
        assert web("POST", f"/v0/topics/{topic}", one(1, **more)).body["performance"]["fsync_ms"] > 0


def test_what_may_create_a_topic(web: Web, topic: str) -> None:
    path = f"/v0/topics/{topic}"
    assert web("POST", path, one(1, create=False)).code == "topic_not_found"
    assert web("POST", path, one(1, config={"auto_create": False})).code == "topic_not_found"
    assert web("POST", path, one(1, create=True, config={"auto_create": False, "cap_records": 7})).status == 201
    again = web("POST", path, one(1, config={"cap_records": 9}))
    assert (again.status, web("GET", path).body["config"]["cap_records"]) == (200, 7)


def test_equal_keys_append_once_also_at_the_same_time(web: Web, topic: str) -> None:
    path = f"/v0/topics/{topic}"
    clients = [Web(web.daemon, web.version) for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda each: each("POST", path, one(1, 2, idempotency_key="k")).body, clients))
    for client in clients:
        client.close()
    assert sorted(each["deduped"] for each in found) == [False] + [True] * 5
    assert {tuple(each["seqs"]) for each in found} == {(1, 2)} and sum(each["created"] for each in found) <= 1
    other = web("POST", path, one(9, idempotency_key="k"), {**JSON, "Idempotency-Key": "other"}).body
    assert (other["deduped"], other["count"], web("GET", path).body["head_seq"]) == (True, 2, 2)
    header = web("POST", path, one(9), {**JSON, "Idempotency-Key": "h"}).body
    assert (header["deduped"], header["seqs"]) == (False, [3])


def test_keys_are_looked_up_before_the_cap(web: Web, topic: str) -> None:
    path, config = f"/v0/topics/{topic}", {"cap_records": 1, "discard": "reject"}
    assert web("POST", path, one(1, idempotency_key="k", config=config)).status == 201
    assert web("POST", path, one(1, idempotency_key="k")).body["deduped"] is True
    full = web("POST", path, one(1))
    assert (full.status, full.code) == (422, "topic_full")
    assert web("POST", path, one(1, 2)).code == "record_too_large"


# ---- 8, 9: reads and deletes ----


def test_limits_of_a_read_are_clamped(web: Web, topic: str) -> None:
    path = f"/v0/topics/{topic}/diff"
    web.write(topic, *range(1_500))
    assert [len(web("POST", path, {"limit": n}).body["records"]) for n in (0, 7, 5_000)] == [256, 7, 1_000]
    few = web("POST", path, {"max_batch_bytes": 1}).body
    assert (len(few["records"]), few["next_from_seq"], few["caught_up"], few["lag"]) == (1, 1, False, 1_499)


def test_own_records_move_the_cursor_and_nothing_else(web: Web, topic: str) -> None:
    web("POST", f"/v0/topics/{topic}", one(*range(5), node="me"))
    for node in ("me", ["me", "you"]):
        found = web("POST", f"/v0/topics/{topic}/diff", {"node": node}).body
        assert (found["records"], found["caught_up"], found["next_from_seq"], found["lag"]) == ([], True, 5, 0)
    assert len(web("POST", f"/v0/topics/{topic}/diff", {"node": "ME"}).body["records"]) == 5


def test_a_long_poll_ends_with_whatever_comes(web: Web, topic: str) -> None:
    path = f"/v0/topics/{topic}"
    web("PUT", path, {})

    def poll(**body: Any) -> tuple[Answer, float]:
        client, began = Web(web.daemon, web.version), time.monotonic()
        answer = client("POST", f"{path}/diff", {"wait_ms": 20_000, **body})
        client.close()
        return answer, time.monotonic() - began

    with ThreadPoolExecutor(2) as pool:
        hidden, seen = pool.submit(poll, node="me"), pool.submit(poll)
        time.sleep(0.2)
        web("POST", path, one(1, node="me"))
        (first, took), (second, _) = hidden.result(15), seen.result(15)
        assert (first.body["records"], first.body["next_from_seq"], took < 10) == ([], 1, True)
        assert [record["data"] for record in second.body["records"]] == [1]
        gone = pool.submit(poll, from_seq=1)
        time.sleep(0.2)
        web("DELETE", path)
        assert gone.result(15)[0].code == "topic_not_found"


def test_deleted_records_are_gone_without_a_tombstone(web: Web, topic: str) -> None:
    path = f"/v0/topics/{topic}"
    tags = ["a:1", "a:2", "b:1", "", "a:3"]
    web("POST", path, {"records": [{"data": n, "tag": tag} for n, tag in enumerate(tags)]})
    gone = web("POST", f"{path}/delete", {"match": "a:*", "before_seq": 3}).body
    assert (gone["deleted"], gone["earliest_seq"], gone["head_seq"], gone["count"]) == (2, 3, 5, 3)
    assert web("POST", f"{path}/delete", {"match": ["tag", "Eq", "b:1"]}).body["deleted"] == 1
    assert web("POST", f"{path}/delete", {"match": "a"}).body["deleted"] == 0
    found = web("POST", f"{path}/diff", {}).body
    assert ([record["$seq"] for record in found["records"]], found["tombstone"]) == ([4, 5], None)
    for match in (["tag", "Eq"], ["node", "Eq", "x"], ["tag", "Is", "x"], ["tag", "Glob", "x"], 5, ["tag", "Eq", 5]):
        assert web("POST", f"{path}/delete", {"match": match}).code == "invalid_request"


# ---- 14: health and metrics ----


def test_health_readiness_and_metrics(web: Web, topic: str) -> None:
    web.write(topic, 1)
    for path in ("/v0/health", "/healthz"):
        found = web("GET", path)
        assert (found.status, found.body["status"], set(found.body)) == (200, "ok", {"status", "version", "uptime_ms"})
    for path in ("/v0/ready", "/readyz"):
        found = web("GET", path)
        assert (found.body["status"], found.body["wal_replay_complete"]) == ("ready", True)
        assert found.body["topics"] >= 1
    text = web("GET", "/v0/metrics", None, {"Accept": "*/*"})
    assert text.headers["content-type"] == "text/plain; version=0.0.4"
    lines = text.raw.decode().splitlines()
    assert f'topics_topic_head_seq{{topic="{topic}"}} 1' in lines or "topics_topic_metrics_truncated 1" in lines
    names = {line.split("{")[0].split(" ")[0] for line in lines if not line.startswith("#")}
    assert names >= {
        *("topics_topics", "topics_topics_by_class", "topics_routers", "topics_records_live", "topics_bytes_live"),
        *("topics_queue_topics", "topics_queue_leases_in_flight", "topics_sse_connections", "topics_watch_sessions"),
        *("topics_ready", "topics_recovery_progress", "topics_uptime_ms", "topics_wal_frames_total"),
        *("topics_wal_batches_total", "topics_wal_fsyncs_total", "topics_wal_bytes_written_total"),
        *("topics_wal_rotations_total", "topics_wal_submit_full_total", "topics_wal_queue_depth"),
        *("topics_wal_queue_depth_peak", "topics_wal_read_only", "topics_wal_fsync_latency_us_bucket"),
        *("topics_wal_fsync_latency_us_sum", "topics_wal_fsync_latency_us_count", "topics_topic_metrics_truncated"),
    }
    bounds = [line.split('"')[1] for line in lines if "latency_us_bucket" in line]
    assert bounds == ["50", "100", "250", "500", "1000", "5000", "10000", "50000", "100000", "+Inf"]
    body = web("GET", "/v0/metrics", None, {"Accept": "application/json"}).body
    assert set(body) >= {
        *("topics", "topics_ephemeral", "topics_memory", "topics_disk", "topics_fsync", "routers", "records_live"),
        *("bytes_live", "queue_topics", "queue_leases_in_flight", "sse_connections", "watch_sessions", "ready"),
        *("replay_progress", "uptime_ms", "wal"),
    }
    assert set(body["wal"]) == {
        *("frames", "batches", "fsyncs", "bytes_written", "rotations", "queue_depth", "queue_depth_peak"),
        *("submit_full_total", "read_only", "fsync_count", "fsync_micros_total"),
    }


def test_every_answer_says_how_long_it_took(web: Web, topic: str) -> None:
    web.write(topic, 1)
    asked = [
        web("PUT", f"/v0/topics/{topic}", {}),
        web("GET", f"/v0/topics/{topic}"),
        web("GET", "/v0/topics?page_size=1"),
        web("POST", f"/v0/topics/{topic}/diff"),
        web("POST", f"/v0/topics/{topic}/delete", {"before_seq": 1}),
        web("GET", "/v0/routers"),
        web("DELETE", f"/v0/topics/{topic}"),
    ]
    assert all(each.body["performance"]["server_total_ms"] >= 0 and "error" not in each.body for each in asked)
