"""The HTTP contract for logs, through curl, over HTTP/1.1 and HTTP/2. One daemon for all."""

from __future__ import annotations

import gzip
import json
import os
import signal
import socket
import subprocess
import threading
import time
from typing import Any, NamedTuple

import pytest

from tests.process.conftest import Served
from tests.support.daemon import Daemon, wait_until
from topicd.tokens import new_token

ENVIRON = {"TOPICD_HTTP": "true", "TOPICD_HTTP_LISTEN": "127.0.0.1:0"}
JSON = ("Content-Type", "application/json")
TINY = {"cap_records": 1, "discard": "reject"}


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: Any

    @property
    def code(self) -> str:
        error = self.body["error"]
        assert set(error) <= {"code", "message", "detail"}
        assert error["message"]
        return str(error["code"])


class Web:
    def __init__(self, served: Served, version: str) -> None:
        self.served = served
        self._version = version

    @property
    def port(self) -> int:
        return int(self.served.daemon.run.http_port.read_text())

    def __call__(self, method: str, path: str, body: Any = None, *headers: tuple[str, str]) -> Answer:
        how = "--http2-prior-knowledge" if self._version == "2" else "--http1.1"
        line = ["curl", "-s", "-m", "60", how, "-D", "/dev/stderr", "-X", method]
        raw: bytes | None = None
        if body is not None:
            raw = body if isinstance(body, bytes) else json.dumps(body).encode()
            line += ["--data-binary", "@-", "-H", "Content-Type:"]
            headers = headers or (JSON,)
        for name, value in headers:
            line += ["-H", f"{name}: {value}"]
        run = subprocess.run([*line, f"http://127.0.0.1:{self.port}{path}"], input=raw, capture_output=True, check=True)
        first, *rest = run.stderr.decode().replace("\r", "").strip().rsplit("HTTP/", 1)[-1].split("\n")
        found = {n.lower(): v for n, _, v in (entry.partition(": ") for entry in rest)}
        assert first.startswith(self._version)
        text = gzip.decompress(run.stdout) if found.get("content-encoding") == "gzip" else run.stdout
        return Answer(int(first.split()[1]), found, json.loads(text))


@pytest.fixture(params=["1.1", "2"])
def web(served: Served, request: pytest.FixtureRequest) -> Web:
    return Web(served, request.param)


def test_a_topic_is_made_once_and_its_configuration_is_replaced(web: Web, topic: str) -> None:
    path = f"/v0/topics/{topic}"
    made = web("PUT", path, {"cap_records": 3, "durable": True, "unknown": 1})
    assert (made.status, made.body["created"], made.body["config"]["cap_records"]) == (201, True, 3)
    assert (made.body["config"]["durability"], made.body["config"]["durable"]) == ("fsync", True)
    again = web("PUT", path)
    assert (again.status, again.body["created"], again.body["config"]["cap_records"]) == (200, False, 0)
    assert isinstance(again.body["performance"]["server_total_ms"], float)


def test_data_and_meta_come_back_as_they_were_sent(web: Web, topic: str) -> None:
    path = f"/v0/topics/{topic}"
    data = '{"b": 1.50, "a": 123456789012345678901234567890, "é": [1, null]}'
    meta = '{"z": 123456789012345678901234567890, "a": 1.10, "n": {"deep": [true]}}'
    text = f'{{"records":[{{"data":{data},"meta":{meta},"tag":"t","node":"n"}},{{"data":null}}]}}'
    made = web("POST", path, text.encode())
    assert (made.status, made.body["seqs"], made.body["created"]) == (201, [1, 2], True)
    port = web.port
    raw = subprocess.run(
        ["curl", "-s", "-X", "POST", f"http://127.0.0.1:{port}{path}/diff"], capture_output=True, check=True
    )
    assert data.encode() in raw.stdout
    assert meta.encode() in raw.stdout
    found = web("POST", f"{path}/diff", {"include_tags": True}).body
    assert [set(record) - {"$ts"} for record in found["records"]] == [
        {"$seq", "$node", "$tag", "data", "meta"},
        {"$seq", "data"},
    ]
    assert (found["next_from_seq"], found["caught_up"], found["tombstone"], found["lag"]) == (2, True, None, 0)


def test_bytes_that_are_no_json_are_told_as_binary(web: Web, topic: str) -> None:
    web.served.daemon.client().publish(topic, b"\xff\x00")
    web.served.daemon.client().publish(topic, b'1}, {"$seq": 9')
    records = web("POST", f"/v0/topics/{topic}/diff").body["records"]
    assert [set(record["data"]) for record in records] == [{"$binary"}, {"$binary"}]


@pytest.mark.parametrize(
    ("method", "end", "body", "headers", "status", "code"),
    [
        ("PUT", "/diff", None, (), 405, "method_not_allowed"),
        ("DELETE", "/delete", None, (), 405, "method_not_allowed"),
        ("GET", "/no/such", None, (), 404, "not_found"),
        ("GET", "", None, (), 404, "topic_not_found"),
        ("POST", "/diff", {}, (("Content-Type", "text/plain"),), 415, "unsupported_media_type"),
        ("POST", "/diff", None, (), 404, "topic_not_found"),
        ("POST", "", b"{}", (JSON,), 400, "invalid_request"),
        ("POST", "", b'{"records": []}', (JSON,), 400, "invalid_request"),
        ("POST", "", b'{"records": [{"data": NaN}]}', (JSON,), 400, "invalid_request"),
        ("POST", "", b'{"records": [{}]}', (JSON,), 400, "invalid_request"),
        ("POST", "", b'{"records": [{"data": "\xff"}]}', (JSON,), 400, "invalid_request"),
        ("POST", "", {"records": [{"data": 1}] * 10_001}, (), 400, "batch_too_large"),
        ("POST", "", {"records": [{"data": "x" * (1 << 20)}]}, (), 400, "record_too_large"),
        ("POST", "", {"records": [{"data": 1, "tag": "x" * 257}]}, (), 400, "invalid_request"),
        ("POST", "", {"records": [{"data": 1}], "create": False}, (), 404, "topic_not_found"),
        ("POST", "", {"records": [{"data": 1}], "config": {"auto_create": False}}, (), 404, "topic_not_found"),
        ("POST", "", {"records": [{"data": 1}] * 2, "config": TINY}, (), 400, "record_too_large"),
        ("POST", "/diff", {"from_seq": -1}, (), 400, "invalid_request"),
        ("POST", "/diff", {"limit": 1.5}, (), 400, "invalid_request"),
        ("POST", "/delete", {}, (), 400, "invalid_request"),
        ("POST", "/delete", {"match": ["tag", "Glob", "x"]}, (), 400, "invalid_request"),
        ("POST", "/delete", {"before_seq": 1}, (), 404, "topic_not_found"),
        ("PUT", "", {"ttl_ms": -1}, (), 400, "invalid_request"),
        ("POST", "", b"no gzip", (JSON, ("Content-Encoding", "gzip")), 400, "invalid_request"),
        ("POST", "", b"{}", (JSON, ("Content-Encoding", "br")), 415, "unsupported_media_type"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_and_makes_no_topic(
    web: Web, topic: str, method: str, end: str, body: Any, headers: Any, status: int, code: str
) -> None:
    answer = web(method, f"/v0/topics/{topic}{end}", body, *headers)
    assert (answer.status, answer.code) == (status, code)
    assert web("GET", f"/v0/topics/{topic}").status == 404


def test_a_full_topic_rejects_or_evicts(web: Web, topic: str) -> None:
    path = f"/v0/topics/{topic}"
    one = {"records": [{"data": 1}]}
    assert web("POST", path, {**one, "config": {"cap_records": 1, "discard": "reject"}}).status == 201
    full = web("POST", path, one)
    assert (full.status, full.code) == (422, "topic_full")
    assert full.body["error"]["detail"] == {
        "topic": topic,
        "cap_records": 1,
        "cap_bytes": 0,
        "head_seq": 1,
        "earliest_seq": 1,
    }
    assert web("PUT", path, {"cap_records": 3}).status == 200
    assert web("POST", path, {"records": [{"data": n} for n in range(5)]}).body["seqs"] == [2, 3, 4, 5, 6]
    state = web("GET", path).body
    assert (state["head_seq"], state["count"], state["earliest_seq"], state["next_seq"]) == (6, 3, 4, 7)
    gap = web("POST", f"{path}/diff", {"from_seq": 1}).body["tombstone"]
    assert (gap["gap_from"], gap["gap_to"], gap["reason"], gap["earliest_seq"]) == (2, 3, "cap", 4)


def test_a_repeated_write_is_recognised(web: Web, topic: str) -> None:
    path = f"/v0/topics/{topic}"
    first = web("POST", path, {"records": [{"data": 1}, {"data": 2}], "idempotency_key": "k"})
    web("POST", path, {"records": [{"data": 3}]})
    again = web("POST", path, {"records": [{"data": 9}]}, JSON, ("Idempotency-Key", "k"))
    assert (first.body["deduped"], again.body["deduped"], again.status) == (False, True, 200)
    assert (again.body["seqs"], again.body["head_seq"], again.body["created"]) == ([1, 2], 2, False)


def test_a_long_poll_ends_with_the_first_record(web: Web, topic: str) -> None:
    path = f"/v0/topics/{topic}"
    web("PUT", path)
    found: list[Answer] = []
    poll = threading.Thread(target=lambda: found.append(web("POST", f"{path}/diff", {"wait_ms": 30_000})))
    poll.start()
    time.sleep(0.1)
    web("POST", path, {"records": [{"data": "here"}]})
    poll.join(30)
    assert [record["data"] for record in found[0].body["records"]] == ["here"]
    assert web("POST", f"{path}/diff", {"from_seq": 1, "wait_ms": 50}).body["records"] == []


def test_a_cursor_of_an_earlier_topic_is_noticed(web: Web, topic: str) -> None:
    path = f"/v0/topics/{topic}"
    web("POST", path, {"records": [{"data": 1}] * 3})
    assert web("DELETE", path).body["deleted"] is True
    assert web("DELETE", path).body["deleted"] is False
    web("POST", path, {"records": [{"data": 2}]})
    found = web("POST", f"{path}/diff", {"from_seq": 3}).body
    assert (found["tombstone"]["reason"], found["tombstone"]["gap_from"], found["tombstone"]["gap_to"]) == (
        "recreated",
        1,
        1,
    )
    assert [record["$seq"] for record in found["records"]] == [1]
    held = web("DELETE", f"{path}?if_empty=true")
    assert (held.status, held.code, held.body["error"]["detail"]["count"]) == (409, "topic_not_empty", 1)


def test_a_list_goes_on_behind_its_last_name(web: Web, topic: str) -> None:
    names = sorted(f"{topic}.{n}" for n in range(5))
    for name in names:
        web("PUT", f"/v0/topics/{name}")
    found, cursor = [], ""
    while True:
        page = web("GET", f"/v0/topics?prefix={topic}.&page_size=2{cursor}").body
        found += [row["topic"] for row in page["topics"]]
        if "next_cursor" not in page:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert found == names
    assert web("GET", "/v0/topics?cursor=!!").code == "invalid_request"


def test_gzip_both_ways(web: Web, topic: str) -> None:
    path = f"/v0/topics/{topic}"
    packed = gzip.compress(json.dumps({"records": [{"data": "x" * 3_000}]}).encode())
    assert web("POST", path, packed, JSON, ("Content-Encoding", "gzip")).status == 201
    found = web("POST", f"{path}/diff", b"{}", JSON, ("Accept-Encoding", "gzip"))
    assert (found.headers["content-encoding"], found.body["records"][0]["data"]) == ("gzip", "x" * 3_000)


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"POST /v0/topics/x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    ],
)
def test_bytes_that_are_no_request_get_the_envelope_and_an_end(served: Served, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", Web(served, "1.1").port), timeout=30) as sock:
        sock.sendall(sent)
        answer = b""
        while piece := sock.recv(65_536):
            answer += piece
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["error"]["code"] == "invalid_request"


def test_requests_sent_ahead_are_answered_in_order(served: Served) -> None:
    with socket.create_connection(("127.0.0.1", Web(served, "1.1").port), timeout=30) as sock:
        sock.sendall(b"".join(b"GET /v0/topics/none-%d HTTP/1.1\r\nHost: a\r\n\r\n" % n for n in range(50)))
        answer = b""
        while answer.count(b'"detail"') < 50:
            answer += sock.recv(65_536)
    places = [answer.index(b'"none-%d"' % n) for n in range(50)]
    assert places == sorted(places)


def test_a_killed_gateway_comes_back_and_a_killed_shard_is_waited_for(served: Served, topic: str) -> None:
    web, path = Web(served, "1.1"), f"/v0/topics/{topic}"
    assert web("POST", path, {"records": [{"data": 1}]}).status == 201
    old = served.daemon.kill("gateway-00", signal.SIGKILL)
    served.daemon.wait_replaced("gateway-00", old)
    wait_until(lambda: web("GET", "/readyz").status == 200, "the gateway to be ready")
    for name in ("dlv-00", "dlv-01"):
        served.daemon.kill(name)
    assert web("POST", path, {"records": [{"data": 2}]}).status in (200, 503)
    wait_until(lambda: web("GET", "/readyz").status == 200, "the shards to be back")
    assert [r["data"] for r in web("POST", f"{path}/diff").body["records"]][:1] == [1]


def test_keys_scopes_and_prefixes(tmp_path: Any) -> None:
    secrets = {name: new_token() for name in ("reader", "rest", "mine")}
    scopes = {"reader": ["read"], "rest": ["write", "delete", "admin"], "mine": ["read", "write"]}
    rows = [f'[[token]]\nname = "{n}"\nsha256 = "{secrets[n][1]}"\nscopes = {json.dumps(scopes[n])}' for n in secrets]
    rows[2] += '\nprefixes = ["mine."]'
    file = tmp_path / "tokens.toml"
    file.write_text("\n".join(rows))
    with Daemon(tmp_path / "d", env={**ENVIRON, "TOPICD_TOKENS_FILE": os.fspath(file)}) as daemon:
        web = Web(Served(daemon), "1.1")

        def ask(who: str | None, method: str, path: str, body: Any = None) -> Answer:
            key = secrets[who][0] if who in secrets else who
            return web(method, path, body, JSON, *([("Authorization", f"Bearer {key}")] if key else []))

        assert ask(None, "GET", "/no/such").status == 401
        assert ask("wrong", "GET", "/v0/topics").status == 401
        assert ask(None, "GET", "/healthz").status == 200
        assert ask("reader", "GET", "/no/such").status == 404
        assert ask("reader", "PUT", "/v0/topics/a", {}).code == "forbidden"
        assert ask("rest", "PUT", "/v0/topics/a", {}).status == 201
        assert ask("rest", "GET", "/v0/topics/a").status == 403
        assert ask("mine", "GET", "/v0/topics/a").status == 403
        one = {"records": [{"data": 1}]}
        assert ask("mine", "POST", "/v0/topics/mine.a", {**one, "config": {}}).code == "forbidden"
        assert ask("mine", "POST", "/v0/topics/mine.a", one).status == 201
        assert [row["topic"] for row in ask("mine", "GET", "/v0/topics").body["topics"]] == ["mine.a"]
        assert [row["topic"] for row in ask("reader", "GET", "/v0/topics").body["topics"]] == ["a", "mine.a"]


def test_a_port_that_is_taken_is_said_and_the_socket_serves(tmp_path: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with Daemon(tmp_path, env={**ENVIRON, "TOPICD_HTTP_LISTEN": listen}) as daemon:
            assert "HTTP is served on its socket only" in daemon.log
            line = ["curl", "-s", "--unix-socket", os.fspath(daemon.run.http_socket), "http://localhost/healthz"]
            assert json.loads(subprocess.run(line, capture_output=True, check=True).stdout)["status"] == "ok"
            assert daemon.stop().code == 0
