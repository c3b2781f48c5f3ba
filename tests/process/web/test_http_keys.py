"""Keys and limits of the HTTP contract (sections 2, 3, 11.2, 15) on a daemon with tokens."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.process.conftest import SETTINGS
from tests.process.web.conftest import ENVIRON
from tests.support.daemon import Daemon, wait_until
from tests.support.web import Web
from topicd.tokens import new_token

People = dict[str, tuple[list[str], list[str]]]
SCOPES: People = {
    "all": (["read", "write", "delete", "admin"], []),
    "reader": (["read"], []),
    "writer": (["write"], []),
    "mine": (["read", "write", "delete", "admin"], ["mine."]),
}
LIMITS = {
    "max_sse_connections_per_key": 2,
    "max_watch_sessions": 5,
    "max_topics": 8,
}


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Web]]:
    with visited(tmp_path_factory.mktemp("keys"), SCOPES, LIMITS) as found:
        yield found


@contextmanager
def visited(root: Path, people: People, limits: dict[str, int]) -> Iterator[dict[str, Web]]:
    """A daemon with such keys, and a client for each."""
    secrets = {name: new_token() for name in people}
    rows = []
    for name, (scopes, prefixes) in people.items():
        row = f'[[token]]\nname = "{name}"\nsha256 = "{secrets[name][1]}"\nscopes = {json.dumps(scopes)}\n'
        rows.append(row + (f"prefixes = {json.dumps(prefixes)}\n" if prefixes else ""))
    (root / "tokens.toml").write_text("\n".join(rows))
    environ = {**ENVIRON, "TOPICD_TOKENS_FILE": os.fspath(root / "tokens.toml")}
    with Daemon(root / "d", env=environ, **{**SETTINGS, **limits}) as daemon:
        found = {name: Web(daemon, key=secrets[name][0]) for name in people} | {"nobody": Web(daemon)}
        yield found
        for web in found.values():
            web.close()


def test_a_session_opens_only_with_the_key_that_made_it(people: dict[str, Web], tmp_path: Path) -> None:
    boss, reader, nobody = people["all"], people["reader"], people["nobody"]
    boss.write("mine.a", 1)
    url = boss.session({"mine.a": {}})
    assert nobody.events("/v0/watch/wid_none").refused().code == "not_found"
    assert nobody.events("/v0/watch/wid_none", {"Accept": "application/json"}).refused().status == 406
    assert nobody.events(url).refused().code == "unauthorized"
    assert reader.events(url).refused().code == "unauthorized"
    with boss.events(url) as events:
        assert events.records(1) == [1]
    with nobody.events(f"{url}?token={boss.key}") as events:
        assert events.status == 200
    assert nobody("GET", f"/v0/topics?token={boss.key}").code == "unauthorized"


def test_prefixes_hold_for_names_in_bodies(people: dict[str, Web]) -> None:
    boss, mine = people["all"], people["mine"]
    boss.write("other", 1)
    boss.write("mine.a", 1)
    refused = mine("POST", "/v0/watch", {"topics": {"mine.a": {}, "other": {}}})
    assert (refused.status, refused.code, refused.error["detail"]) == (403, "forbidden", {"topic": "other"})
    config = {"type": "queue", "dead_letter": "other"}
    for dead in (
        mine("PUT", "/v0/topics/mine.dead", config),
        mine("POST", "/v0/topics/mine.dead", {"records": [{"data": 1}], "config": config}),
    ):
        assert (dead.status, dead.code, dead.error["detail"]) == (403, "forbidden", {"topic": "other"})
    assert boss("GET", "/v0/topics/mine.dead").status == 404
    router = mine("PUT", "/v0/routers/mine.r", {"source": "mine.a", "dest": "other"})
    assert (router.status, router.code) == (403, "forbidden")
    assert boss("PUT", "/v0/routers/mine.x", {"source": "mine.a", "dest": "other2"}).status == 201
    assert mine("GET", "/v0/routers/mine.x").code == "forbidden"
    assert mine("DELETE", "/v0/routers/mine.x").code == "forbidden"
    assert mine("GET", "/v0/routers").body["routers"] == []
    assert boss("DELETE", "/v0/routers/mine.x").body["deleted"] is True


def test_scopes_of_commands_and_jobs(people: dict[str, Web]) -> None:
    reader, writer, boss = people["reader"], people["writer"], people["all"]
    boss("PUT", "/v0/topics/mine.q", {"type": "queue"})
    assert reader("POST", "/v0/topics/mine.q/claim", {"node": "w"}).code == "forbidden"
    assert writer("POST", "/v0/topics/mine.q/claim", {"node": "w"}).code == "forbidden"
    assert writer("POST", "/v0/topics/mine.q/ack", {"node": "w", "seqs": []}).status == 200
    with reader.socket() as ws:
        publish = {"op": "publish", "request_id": 1, "topic": "mine.a", "records": [{"data": 1}]}
        assert ws.ask(publish)["code"] == "forbidden"
    with writer.socket() as ws:
        assert ws.ask({"op": "subscribe", "request_id": 1, "topic": "mine.a"})["code"] == "forbidden"
        assert ws.ask({**publish, "config": {}})["code"] == "forbidden"
        assert ws.ask(publish)["op"] == "ack"
    assert people["nobody"].socket().status == 401
    assert writer("GET", "/v0/metrics").code == "forbidden"


def test_streams_and_sessions_are_limited_and_places_come_back(people: dict[str, Web]) -> None:
    boss, reader = people["all"], people["reader"]
    boss.write("mine.a", 1)
    url = reader.session({"mine.a": {}})
    streams = [reader.events(url), reader.events(url)]
    refused = reader.events(url).refused()
    assert (refused.status, refused.code, refused.headers["retry-after"]) == (429, "throttled", "1")
    assert refused.error["detail"] == {"limit": "max_sse_connections_per_key", "max": 2}
    assert reader.socket().status == 429
    with boss.events(boss.session({"mine.a": {}})) as events:
        assert events.status == 200
    for stream in streams:
        stream.close()

    def opens() -> bool:
        stream = reader.events(url)
        stream.close()
        return stream.status == 200

    wait_until(opens, "the places to come back")
    made = [reader("POST", "/v0/watch", {"topics": {"mine.a": {}}}) for _ in range(6)]
    assert made[-1].error["detail"] == {"limit": "max_watch_sessions", "max": 5}


def test_topics_are_limited_for_the_daemon_as_a_whole(people: dict[str, Web]) -> None:
    boss = people["all"]
    answers = [boss("PUT", f"/v0/topics/many.{n}", {}) for n in range(12)]
    refused = next(answer for answer in answers if answer.status != 201)
    assert (refused.status, refused.code, refused.headers["retry-after"]) == (429, "throttled", "1")
    assert refused.error["detail"] == {"limit": "max_topics", "max": 8}
    assert boss("PUT", "/v0/topics/many.0", {"ttl_ms": 5}).status == 200
    assert boss("POST", "/v0/topics/many.x", {"records": [{"data": 1}]}).error["detail"]["limit"] == "max_topics"


def test_streams_of_a_revoked_key_end_at_the_next_reload(tmp_path: Path) -> None:
    with visited(tmp_path, {"all": SCOPES["all"], "leaving": (["read", "write", "admin"], [])}, {}) as people:
        boss, leaving, tokens = people["all"], people["leaving"], tmp_path / "tokens.toml"
        boss.write("orders", 1)
        boss("PUT", "/v0/topics/jobs", {"type": "queue"})
        url = leaving.session({"orders": {}})
        with (
            leaving.events("/v0/stats") as figures,
            people["nobody"].events(f"{url}?token={leaving.key}") as records,
            leaving.events("/v0/topics/jobs/work?node=w") as work,
            leaving.socket() as socket,
            boss.events(boss.session({"orders": {}})) as stays,
        ):
            assert records.records(1) == stays.records(1) == [1]
            assert socket.ask({"op": "subscribe", "request_id": 1, "topic": "orders"})["op"] != "error"
            kept, gone = re.subn(r'\[\[token\]\]\nname = "leaving"\n(.+\n)+', "", tokens.read_text())
            assert gone == 1
            tokens.write_text(kept)
            boss.daemon.kill("supervisor", signal.SIGHUP)
            for stream in (figures, records, work):
                last = [event for event in stream.rest() if event.name][-1]
                assert (last.name, last.data["code"], last.data["error"]) == ("error", 401, "unauthorized")
            assert socket.until("error")["code"] == "unauthorized"
            assert socket.until_closed() == 1008
            boss.write("orders", 2)
            assert stays.records(1) == [2]
            assert leaving("GET", "/v0/topics").status == 401
            assert leaving.events(url).refused().code == "unauthorized"
