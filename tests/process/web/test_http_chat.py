"""The chat store over HTTP."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.daemon import Daemon, wait_until
from tests.support.ports import free_ports
from tests.support.web import JSON, Web
from topicd.tokens import new_token

ENVIRON = {"TOPICD_HTTP": "true", "TOPICD_HTTP_LISTEN": "127.0.0.1:0", "TOPICD_CHAT": "true"}


@pytest.fixture(scope="module")
def chat_web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    with Daemon(tmp_path_factory.mktemp("chat"), wal_shards=1, delivery_shards=1, env=ENVIRON) as daemon:
        web = Web(daemon)
        yield web
        web.close()


def lines_of(web: Web, path: str, count: int, headers: dict[str, str] | None = None) -> list[tuple[str, str, str]]:
    """(id, event, data) of the first events of a stream."""
    found: list[tuple[str, str, str]] = []
    with httpx.stream("GET", web.base + path, headers=headers, timeout=30) as stream:
        assert stream.status_code == 200
        event: dict[str, str] = {}
        for line in stream.iter_lines():
            name, _, value = line.partition(": ")
            if not line and "data" in event:
                found.append((event.get("id", ""), event["event"], event["data"]))
                event = {}
                if len(found) == count:
                    break
            elif name in ("id", "event", "data"):
                event[name] = value
    return found


def test_messages_inboxes_members_progress_and_identities(chat_web: Web) -> None:
    web = chat_web
    sent = web("POST", "/v0/chat/kitchen/messages", {"text": "dinner", "user": "ann", "id": "ab" * 32})
    assert (sent.status, sent.body["seq"]) == (200, 1)
    assert web("POST", "/v0/chat/kitchen/messages", {"text": "dinner", "user": "ann", "id": "ab" * 32}).body["seq"] == 0
    assert web("POST", "/v0/chat/kitchen/members", {"member": "bob", "user": "ann"}).status == 200
    (row,) = web("GET", "/v0/chat/inbox?user=bob").body["chats"]
    assert (row["chat_name"], row["unread"], row["preview"]) == ("kitchen", 1, "dinner")
    (message,) = web("GET", "/v0/chat/kitchen/messages?user=bob&limit=10").body["messages"]
    assert message["text"] == "dinner"
    assert web("PUT", "/v0/chat/kitchen/progress", {"seq": 1, "user": "bob"}).body["read_seq"] == 1
    assert len(web("GET", "/v0/chat/kitchen/members?user=bob").body["members"]) == 2
    assert web("PUT", "/v0/chat/identity", {"hex": "00ff", "user": "ann"}).body["stored"]
    assert web("GET", "/v0/chat/identity?of=ann").body["hex"] == "00ff"
    assert web("POST", "/v0/chat/kitchen/remove", {"member": "bob", "user": "ann"}).status == 200
    refused = web("GET", "/v0/chat/kitchen/messages?user=bob")
    assert (refused.status, refused.code) == (403, "forbidden")


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/v0/chat/room/messages", {"text": "x"}, 400),
        ("POST", "/v0/chat/room/messages", {"user": "ann"}, 400),
        ("POST", "/v0/chat/room/messages", {"text": "x", "user": "ann", "id": "ab"}, 400),
        ("GET", "/v0/chat/room/messages?user=ann&after=nonsense", None, 400),
        ("GET", "/v0/chat/inbox", None, 400),
        ("GET", "/v0/chat/identity?of=nobody", None, 404),
        ("PUT", "/v0/chat/identity", {"hex": "xyz", "user": "ann"}, 400),
        ("PUT", "/v0/chat/room/progress", {"seq": -1, "user": "ann"}, 400),
        ("GET", "/v0/chat/room/events?user=ann&after_seq=x", None, 400),
        ("GET", "/v0/chat/room/events?user=ann&after_seq=-1", None, 400),
        ("GET", "/v0/chat/room/events?user=ann&after_seq=4294967296", None, 400),
    ],
)
def test_what_cannot_be_is_refused(chat_web: Web, method: str, path: str, body: object, status: int) -> None:
    assert chat_web("POST", "/v0/chat/room/messages", {"text": "x", "user": "ann"}).status == 200  # the room is there
    assert chat_web(method, path, body).status == status


def test_streams_go_on_behind_the_last_event(chat_web: Web) -> None:
    web = chat_web
    for number in range(6):
        web("POST", "/v0/chat/live/messages", {"text": str(number), "user": "ann"})
    first = lines_of(web, "/v0/chat/live/events?user=ann&after_seq=0", 3)
    assert [(id, event, json.loads(data)["text"]) for id, event, data in first] == [
        ("1", "message", "0"),
        ("2", "message", "1"),
        ("3", "message", "2"),
    ]
    rest = lines_of(web, "/v0/chat/live/events?user=ann", 3, {"Last-Event-ID": "3"})
    assert [id for id, _, _ in rest] == ["4", "5", "6"]
    ((_, event, data),) = lines_of(web, "/v0/chat/inbox-events?user=ann", 1)
    assert event == "chat"
    assert json.loads(data)["row"]["preview"] == "5"
    assert web("GET", "/v0/chat/live/events?user=stranger").status == 403


class Listener(threading.Thread):
    """Somebody who comes back with the last id, as browsers do."""

    def __init__(self, web: Web, path: str) -> None:
        super().__init__(daemon=True)
        self._web, self._path = web, path
        self.heard: list[tuple[str, dict[str, Any]]] = []
        self.connections = 0
        self.over = False

    def run(self) -> None:
        last = ""
        while not self.over:
            try:
                with httpx.stream(
                    "GET", self._web.base + self._path, headers={"Last-Event-ID": last} if last else {}, timeout=60
                ) as stream:
                    self.connections += stream.status_code == 200
                    for line in stream.iter_lines():
                        name, _, value = line.partition(": ")
                        if name == "id":
                            last = value
                        elif name == "event":
                            event = value
                        elif name == "data":
                            self.heard.append((event, json.loads(value)))
                        if self.over:
                            return
            except httpx.HTTPError:
                time.sleep(0.05)


def test_streams_have_no_hole_whoever_dies(tmp_path: Path) -> None:
    """The chat process: the stream goes on. The gateway: it goes on behind the last id."""
    port = free_ports(1)
    env = {**ENVIRON, "TOPICD_HTTP_LISTEN": f"127.0.0.1:{port}"}
    with Daemon(tmp_path, wal_shards=1, delivery_shards=1, env=env) as daemon:
        web, chat = Web(daemon), daemon.client().chat
        chat.send("live", "1", user="ann")
        chat.add("live", "bob")
        messages = Listener(web, "/v0/chat/live/events?user=bob&after_seq=0")
        rows = Listener(web, "/v0/chat/inbox-events?user=bob")
        for one in (messages, rows):
            one.start()
        sent = 1
        for victim in ("chat-00", "gateway-00", "chat-00", "dlv-00"):
            wait_until(lambda wanted=sent: len(messages.heard) == wanted, f"all {sent} before {victim}")
            daemon.kill(victim)
            for _ in range(30):
                sent += 1
                chat.send("live", str(sent), user="ann")
        wait_until(lambda: len(messages.heard) == sent, "everything")
        assert [body["seq"] for _, body in messages.heard] == list(range(1, sent + 1))
        assert [body["text"] for _, body in messages.heard] == [str(number) for number in range(1, sent + 1)]
        assert messages.connections == 2
        wait_until(lambda: rows.heard[-1][1]["row"]["preview"] == str(sent), "the last change of the inbox")
        chat.remove("live", "bob")
        wait_until(lambda: rows.heard[-1][1]["row"] is None, "that it is gone")
        event, body = wait_until(lambda: messages.heard[sent:], "the end")[0]
        assert (event, body["error"]) == ("error", "ended")
        assert {event for event, _ in rows.heard} == {"chat"}
        for one in (messages, rows):
            one.over = True
        web.close()


def test_a_key_acts_as_the_user_of_its_name(tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("keys")
    secret, digest = new_token()
    tokens = root / "tokens.toml"
    tokens.write_text(f'[[token]]\nname = "ann"\nsha256 = "{digest}"\nscopes = ["read", "write"]\n')
    environ = {**ENVIRON, "TOPICD_TOKENS_FILE": str(tokens)}
    with Daemon(root / "d", wal_shards=1, delivery_shards=1, env=environ) as daemon:
        web = Web(daemon, key=secret)
        assert web("POST", "/v0/chat/room/messages", {"text": "mine"}).status == 200
        assert web("POST", "/v0/chat/room/messages", {"text": "his", "user": "bob"}).status == 403
        assert web("GET", "/v0/chat/inbox?user=bob").status == 403
        assert len(web("GET", "/v0/chat/inbox").body["chats"]) == 1
        web.close()


def test_without_a_chat_store_nothing_is_there(web1: Web) -> None:
    assert web1("GET", "/v0/chat/inbox?user=ann").status == 404


def test_the_log_of_the_store_cannot_be_written_over_http(chat_web: Web) -> None:
    """The gateway is a process of topicd's own, too, and writes for others."""
    assert chat_web("POST", "/v0/chat/guarded/messages", {"text": "one", "user": "ann"}).status == 200
    for method, path, body in (
        ("POST", "/v0/topics/topicd.chat.00", {"records": [{"data": "garbage"}]}),
        ("PUT", "/v0/topics/topicd.chat.00", {"ttl_ms": 1_000}),
        ("DELETE", "/v0/topics/topicd.chat.00", None),
    ):
        refused = chat_web(method, path, body)
        assert (refused.status, refused.code) == (403, "forbidden"), (method, refused)


def test_the_log_of_the_store_is_read_by_no_key_but_one_that_may_do_everything(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """What is in it is for the members of each chat."""
    root = tmp_path_factory.mktemp("private")
    secrets = {name: new_token() for name in ("ann", "boss")}
    scopes = {"ann": ["read", "consume", "write", "delete"], "boss": ["read", "admin"]}
    tokens = root / "tokens.toml"
    tokens.write_text(
        "".join(
            f'[[token]]\nname = "{name}"\nsha256 = "{digest}"\nscopes = {json.dumps(scopes[name])}\n'
            for name, (_, digest) in secrets.items()
        )
    )
    environ = {**ENVIRON, "TOPICD_TOKENS_FILE": str(tokens)}
    log = "topicd.chat.00"
    asked = [
        ("GET", f"/v0/topics/{log}", None),
        ("POST", f"/v0/topics/{log}/diff", {}),
        ("POST", "/v0/watch", {"topics": {log: {"from_seq": 0}}}),
        ("GET", f"/dashboard/topics/{log}", None),
        ("POST", f"/dashboard/topics/{log}/browse", {}),
        ("GET", f"/dashboard/stream?tail={log}", None),
    ]
    with Daemon(root / "d", wal_shards=1, delivery_shards=1, env=environ) as daemon:
        daemon.client().chat.send("@cid", "top secret", user="bob")
        web = Web(daemon, key=secrets["ann"][0])
        for method, path, body in asked:
            refused = web(method, path, body)
            assert (refused.status, refused.code) == (403, "forbidden"), (path, refused)
        listed = web("GET", "/v0/topics?prefix=topicd.").body["topics"]
        assert [row["topic"] for row in listed if row["topic"].startswith(log)] == []
        web.close()
        boss = Web(daemon, key=secrets["boss"][0])
        assert boss("POST", f"/v0/topics/{log}/diff", {}).status == 200
        boss.close()


@pytest.mark.parametrize("body", [b'{"text": "\\ud800", "user": "ann"}', b'{"text": "x", "user": "\\ud800"}'])
def test_half_a_character_is_refused(chat_web: Web, body: bytes) -> None:
    """JSON can spell it, and no text can hold it."""
    refused = httpx.post(f"{chat_web.base}/v0/chat/half/messages", content=body, headers=JSON, timeout=30)
    assert refused.status_code == 400, refused.text
