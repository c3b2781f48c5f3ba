"""Channels over HTTP: the words of topicctl, who is who by key, and watching as server-sent events."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import topicd
from tests.support.daemon import Daemon
from tests.support.ports import free_ports
from topicd.channel import channel_hash
from topicd.errors import Forbidden
from topicd.tokens import EVERYTHING, new_token

HTTP = {"TOPICD_HTTP": "true", "TOPICD_HTTP_LISTEN": "127.0.0.1:0"}


class Web:
    def __init__(self, daemon: Daemon, key: str | None = None) -> None:
        self.daemon = daemon
        self.key = key

    def open(self, method: str, path: str, body: Any = None, **headers: str) -> http.client.HTTPResponse:
        port = int(self.daemon.run.http_port.read_text())
        line = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key}"
        if body is not None:
            headers["Content-Type"] = "application/json"
        line.request(method, path, None if body is None else json.dumps(body), headers)
        return line.getresponse()

    def __call__(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        answer = self.open(method, f"/v0/channels{path}", body)
        return answer.status, json.loads(answer.read())


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    root = tmp_path_factory.mktemp("h")
    with Daemon(root, env=HTTP, wal_shards=1, delivery_shards=2) as daemon:
        yield Web(daemon)


def test_the_words(web: Web) -> None:
    room = "/" + quote("room/ü", safe="")
    status, made = web("POST", f"{room}/join?as=ann")
    assert (status, made["created"], made["owner"], made["channel"]) == (201, True, "ann", "room/ü")
    assert web("POST", f"{room}/join?as=bob")[0] == 200
    assert web("PUT", f"{room}/config?as=ann", {"persist": True, "max_clients": 2})[1]["config"]["persist"] is True
    assert web("PUT", f"{room}/acl", {"access": "publish", "users": ["ann"]})[1]["acl"]["publish"] == ["ann"]
    status, sent = web("POST", f"{room}/publish?as=ann", {"data": {"text": "hello", "n": 1.50}})
    assert (status, sent["seq"]) == (201, 1)
    history = web("GET", f"{room}/history?as=bob&from_seq=1&limit=5")[1]
    assert [(m["seq"], m["from"], m["data"]) for m in history["messages"]] == [(1, "ann", {"text": "hello", "n": 1.5})]
    assert (history["first_seq"], history["last_seq"]) == (1, 1)
    status, refused = web("GET", f"{room}/history?as=bob&from_seq=0")
    assert (status, refused["error"]["code"]) == (400, "invalid_request")
    assert web("GET", f"{room}/seq")[1]["last_seq"] == 1
    assert web("GET", f"{room}/members")[1]["users"] == ["ann", "bob"]
    assert web("GET", room)[1]["members"] == 2
    assert [row["channel"] for row in web("GET", "?as=bob")[1]["channels"]] == ["room/ü"]
    for status, code, call in (
        (403, "forbidden", ("POST", f"{room}/publish?as=bob", {"data": 1})),
        (403, "not_member", ("POST", f"{room}/publish?as=eve", {"data": 1})),
        (403, "not_owner", ("DELETE", f"{room}?as=bob")),
        (422, "channel_full", ("POST", f"{room}/join?as=eve")),
        (413, "payload_too_large", ("POST", f"{room}/publish?as=ann", {"data": "x" * 70_000})),
        (404, "channel_not_found", ("GET", "/nowhere")),
        (409, "conflict", ("POST", f"{room}/pop")),
        (400, "invalid_request", ("POST", f"{room}/join?as=two%20words")),
        (400, "invalid_request", ("PUT", f"{room}/config", {"max_clients": 0})),
        (400, "invalid_request", ("PUT", f"{room}/config", {"persits": False})),
        (400, "invalid_request", ("PUT", f"{room}/acl", {"access": "read", "user": ["ann"]})),
    ):
        found = web(*call)
        assert (found[0], found[1]["error"]["code"]) == (status, code), call
    assert web("POST", f"{room}/leave?as=bob")[1]["gone"] is False
    assert web("DELETE", f"{room}?as=ann")[0] == 200


def test_queues(web: Web) -> None:
    web("POST", "/jobs/join?as=ann")
    web("PUT", "/jobs/config", {"persist": True})
    assert web("PUT", "/jobs/type", {"type": "fifo"})[1]["type"] == "fifo"
    assert web("POST", "/jobs/push", {"data": [1, 2]})[1]["depth"] == 1
    found = web("POST", "/jobs/pop?as=ann")[1]
    assert (found["seq"], found["data"]) == (1, [1, 2])
    assert web("POST", "/jobs/pop?as=ann")[1]["error"]["code"] == "queue_empty"
    web("POST", "/jobs/push", {"data": 3})
    assert web("POST", "/jobs/clear")[1]["cleared"] == 1


def frames(answer: http.client.HTTPResponse) -> Iterator[dict[str, str]]:
    found: dict[str, str] = {}
    while line := answer.readline().decode().rstrip("\n"):
        name, _, value = line.partition(": ")
        found[name] = value
        if answer.peek(1)[:1] == b"\n":
            answer.readline()
            if "event" in found:
                yield found
            found = {}


def test_watching_goes_on_where_it_was(web: Web) -> None:
    web("POST", "/tv/join?as=ann")
    web("PUT", "/tv/config", {"persist": True})
    web("POST", "/tv/publish?as=ann", {"data": 1})
    stream = web.open("GET", "/v0/channels/tv/watch?as=ann&from_seq=0&events=true", Accept="text/event-stream")
    assert stream.status == 200
    assert web("GET", "/tv/members")[1]["connected"] == ["ann"]
    told = frames(stream)
    first = [next(told), next(told)]
    assert {one["event"] for one in first} == {"channel", "message"}
    web("POST", "/tv/publish?as=ann", {"data": {"b": 1}})
    second = next(told)
    assert (second["id"], json.loads(second["data"])["data"]) == ("2", {"b": 1})
    stream.close()
    again = web.open("GET", "/v0/channels/tv/watch?as=ann", **{"Last-Event-ID": "1"})
    told = frames(again)
    assert next(told)["id"] == "2"
    for persist in (False, True):
        web("PUT", "/tv/config", {"persist": persist})
    web("POST", "/tv/publish?as=ann", {"data": "of the new log"})
    while json.loads((found := next(told))["data"]).get("data") != "of the new log":
        assert json.loads(found["data"])["kind"] == "log"
    assert found["id"] == "1"
    back = web.open("GET", "/v0/channels/tv/watch?as=ann", **{"Last-Event-ID": "2"})  # of the old one
    told_again = frames(back)
    assert json.loads(next(told_again)["data"])["kind"] == "log"
    assert next(told_again)["id"] == "1"
    back.close()
    web("DELETE", "/tv?as=ann")
    last = next(told)
    assert json.loads(last["data"])["kind"] == "deleted"
    assert again.read() == b""
    assert web.open("GET", "/v0/channels/tv/watch?as=ann").status == 404


def test_every_refusal_has_its_name(web: Web) -> None:
    web("POST", "/full/join?as=ann")
    web("PUT", "/full/config", {"persist": True, "max_persist_messages": 1})
    web("PUT", "/full/type", {"type": "fifo"})
    web("POST", "/full/push", {"data": 1})
    status, refused = web("POST", "/full/push", {"data": 2})
    assert (status, refused["error"]["code"]) == (422, "queue_full")
    (web.daemon.data.channels / channel_hash("full") / "cursor.bin").unlink()
    web.daemon.restart()
    for method, path, body in (("POST", "/full/push", {"data": 2}), ("POST", "/full/pop", None)):
        status, refused = web(method, path, body)
        assert (status, refused["error"]["code"]) == (409, "needs_recovery")
    assert web("POST", "/full/clear")[0] == 200
    assert web("POST", "/full/push", {"data": 2})[0] == 201
    web.daemon.restart(max_channels_per_user=1)
    status, refused = web("POST", "/another/join?as=ann")
    assert (status, refused["error"]["code"]) == (422, "channel_limit")
    web.daemon.restart(max_channels_per_user=1_000)


def test_a_key_with_prefixes_sees_all_of_its_channels_page_by_page(tmp_path: Path) -> None:
    secret, digest = new_token()
    (tmp_path / "tokens.toml").write_text(
        f'[[token]]\nname = "op"\nsha256 = "{digest}"\nscopes = ["read", "write", "admin"]\nprefixes = ["b/", "d/"]\n'
    )
    with Daemon(tmp_path / "d", env=HTTP, delivery_shards=2, tokens_file=tmp_path / "tokens.toml") as daemon:
        channels = daemon.client().channels
        for name in (f"{letter}/{n}" for letter in "abcd" for n in range(8)):
            channels.join(name, user="ann")
        web, seen, after = Web(daemon, secret), [], ""
        for _ in range(9):
            page = web("GET", f"?limit=3&after={quote(after, safe='')}")[1]
            seen += [row["channel"] for row in page["channels"]]
            after = page["next"]
            if after is None:
                break
        assert seen == [f"{letter}/{n}" for letter in "bd" for n in range(8)]
        assert after is None


def test_a_key_is_its_subject_and_nobody_else(tmp_path: Path) -> None:
    secrets: dict[str, str] = {}
    text = ""
    both = ["read", "write"]
    for name, scopes, subject in (("ann", both, "ann"), ("none", both, None), ("op", [*both, "admin"], None)):
        secrets[name], digest = new_token()
        text += f'[[token]]\nname = "{name}"\nsha256 = "{digest}"\nscopes = {json.dumps(scopes)}\n'
        text += f'subject = "{subject}"\n' if subject else ""
    (tmp_path / "tokens.toml").write_text(text)
    port = free_ports(2)
    settings: dict[str, Any] = {"tokens_file": tmp_path / "tokens.toml", "listen_tcp": f"127.0.0.1:{port}"}
    with Daemon(tmp_path / "d", env=HTTP, wal_shards=1, delivery_shards=2, **settings) as daemon:
        ann, nobody, operator = (Web(daemon, secrets[name]) for name in ("ann", "none", "op"))
        assert ann("POST", "/lobby/join")[1]["owner"] == "ann"
        assert ann("POST", "/lobby/join?as=bob")[0] == 403
        assert nobody("POST", "/lobby/join")[0] == 403
        assert nobody("GET", "")[0] == 403
        assert operator("PUT", "/lobby/config", {"max_clients": 7})[1]["config"]["max_clients"] == 7
        # An operator looks after channels; it is nobody who could be in one, least of all the user of the gateway.
        for method, path, body in (
            ("POST", "/lobby/join", None),
            ("POST", "/lobby/leave", None),
            ("POST", "/lobby/publish", {"data": 1}),
            ("GET", "/lobby/watch", None),
        ):
            assert operator(method, path, body)[0] == 403, path
        assert ann("GET", "/lobby/members")[1]["users"] == ["ann"]
        assert [row["channel"] for row in ann("GET", "")[1]["channels"]] == ["lobby"]
        # The same over the native protocol.
        with topicd.connect(f"tcp://127.0.0.1:{port}", token=secrets["ann"]) as client:
            assert client.channels.publish("lobby", b"x") == 1
            assert client.channels.get("lobby", user="ann").owner == "ann"
            with pytest.raises(Forbidden, match="may not act as"):
                client.channels.publish("lobby", b"x", user="bob")
            (log,) = (found.topic for found in daemon.client().topics("topicd.channel."))
            for touch in (client.fetch, client.delete_topic, client.state):
                with pytest.raises(Forbidden):
                    touch(log)
        with topicd.connect(f"tcp://127.0.0.1:{port}", token=secrets["none"]) as client, pytest.raises(Forbidden):
            client.channels.join("lobby")
    assert EVERYTHING.subject is None
