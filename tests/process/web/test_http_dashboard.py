"""What the dashboard's pages ask of the gateway: lists, searches, moves, steering, and who may."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.process.conftest import SETTINGS
from tests.process.web.conftest import ENVIRON
from tests.support.daemon import Daemon, wait_until
from tests.support.web import Web
from topicd.tokens import digest_of


def put(web: Web, topic: str, *data: Any, tag: str | None = None) -> None:
    rows = [{"data": one, **({"tag": tag} if tag else {})} for one in data]
    assert web("POST", f"/v0/topics/{topic}", {"records": rows}).status in (200, 201)


def browse(web: Web, topic: str, **wanted: Any) -> Any:
    answer = web("POST", f"/dashboard/topics/{topic}/browse", wanted)
    assert answer.status == 200, answer.raw
    return answer.body


def seqs(found: Any) -> list[int]:
    return [row["seq"] for row in found["records"]]


# ---- topics ----


def test_topics_come_in_any_order_page_by_page(web1: Web, topic: str) -> None:
    for at in range(5):
        put(web1, f"{topic}.{at}", *range(at + 1))
    for sort, names in (("name", "01234"), ("count", "43210")):
        found: list[str] = []
        cursor = ""
        while True:
            page = web1("GET", f"/dashboard/topics?prefix={topic}.&sort={sort}&page_size=2&cursor={cursor}").body
            found += [row["topic"][-1] for row in page["topics"]]
            cursor = page.get("next_cursor", "")
            if not cursor:
                break
        assert "".join(found) == names
    assert web1("GET", "/dashboard/topics?sort=colour").code == "invalid_request"
    assert web1("GET", "/dashboard/topics?cursor=*").code == "invalid_request"


def test_a_topic_is_told_with_what_hangs_on_it(web1: Web, topic: str, http_daemon: Daemon) -> None:
    put(web1, topic, 1, 2, 3)
    with http_daemon.client() as client:
        client.open_consumer(topic, "app")
    web1("PUT", f"/v0/routers/{topic}-r", {"source": topic, "dest": f"{topic}.copy"})
    found = web1("GET", f"/dashboard/topics/{topic}").body
    assert (found["head_seq"], found["consumers"][0]["lag"], found["routers_out"][0]["dest"]) == (3, 3, f"{topic}.copy")
    wait_until(lambda: web1("GET", f"/dashboard/topics/{topic}").body["files"], "a segment")
    assert web1("GET", "/dashboard/topics/no.such").code == "topic_not_found"


def test_a_field_is_changed_and_the_others_stay(web1: Web, topic: str) -> None:
    web1("PUT", f"/v0/topics/{topic}", {"cap_records": 10, "ttl_ms": 5000})
    path = f"/dashboard/topics/{topic}/config"
    config = web1("POST", path, {"config": {"cap_records": 20}}).body["config"]
    assert (config["cap_records"], config["ttl_ms"]) == (20, 5000)
    for wrong in ({"colour": 1}, {"cap_records": -1}, {"durability": "wood"}):
        assert web1("POST", path, {"config": wrong}).code == "invalid_request"
    assert web1("GET", f"/dashboard/topics/{topic}").body["config"] == config


# ---- browse ----


def test_records_are_found_by_seq_time_tag_and_text(web1: Web, topic: str) -> None:
    put(web1, topic, *({"n": n} for n in range(1, 301)), tag="early")
    time.sleep(0.01)
    between = int(time.time() * 1000)
    time.sleep(0.01)
    put(web1, topic, {"n": 301, "word": "Needle"}, {"n": 302}, tag="late")
    newest = browse(web1, topic, limit=3)
    assert (seqs(newest), newest["stopped"], newest["order"]) == ([302, 301, 300], "limit", "newest first")
    assert seqs(browse(web1, topic, before_seq=300, limit=2)) == [299, 298]
    assert seqs(browse(web1, topic, from_seq=10, limit=2)) == [11, 12]
    assert seqs(browse(web1, topic, from_ts=between)) == [301, 302]
    assert seqs(browse(web1, topic, tag="late")) == [302, 301]
    assert seqs(browse(web1, topic, tag="e*", limit=1)) == [300]
    found = browse(web1, topic, text="needle")
    assert (seqs(found), found["stopped"], found["looked_at"]) == ([301], "end", 302)
    assert browse(web1, topic, text="absent")["records"] == []


def test_a_search_says_how_far_it_looked(web1: Web, topic: str) -> None:
    for _ in range(5):
        put(web1, topic, *["x"] * 6_000)
    found = browse(web1, topic, text="needle", from_seq=0)
    assert (found["records"], found["stopped"]) == ([], "scan")
    assert 20_000 <= found["looked_at"] < 30_000 and found["looked_to"] == found["looked_at"]
    rest = browse(web1, topic, text="needle", from_seq=found["looked_to"])
    assert (rest["stopped"], rest["looked_from"], rest["looked_to"]) == ("end", found["looked_to"] + 1, 30_000)
    back = browse(web1, topic, text="needle")
    assert back["stopped"] == "scan" and back["looked_to"] == 30_000 and back["looked_from"] <= 10_001


def test_what_was_evicted_is_a_gap_with_its_reason(web1: Web, topic: str) -> None:
    web1("PUT", f"/v0/topics/{topic}", {"cap_records": 3})
    put(web1, topic, *range(10))
    (gap,) = browse(web1, topic, from_seq=0)["gaps"]
    assert (gap["gap_from"], gap["gap_to"], gap["reason"]) == (1, 7, "cap")
    assert seqs(browse(web1, topic)) == [10, 9, 8]
    assert browse(web1, topic, limit=1)["stopped"] == "limit"
    web1("PUT", f"/v0/topics/{topic}.empty", {})
    assert browse(web1, f"{topic}.empty")["stopped"] == "end"


# ---- consumers ----


def test_a_move_is_previewed_and_then_done(web1: Web, topic: str, http_daemon: Daemon) -> None:
    put(web1, topic, *range(10))
    with http_daemon.client() as client:
        client.open_consumer(topic, "app")
        client.ack_consumer(topic, "app", 6)
    ways: list[tuple[dict[str, int], tuple[int, int, int]]] = [
        ({"seq": 2}, (2, 0, 4)),
        ({"seq": 9}, (9, 3, 0)),
        ({"by": -100}, (0, 0, 6)),
        ({"by": 100}, (10, 4, 0)),
        ({"ts": 1}, (0, 0, 6)),
        ({"ts": 4_000_000_000_000}, (10, 4, 0)),
    ]
    for way, (to, skips, repeats) in ways:
        found = web1("POST", f"/dashboard/consumers/{topic}/preview", {"name": "app", **way}).body
        assert (found["from"], found["to"], found["skips"], found["repeats"]) == (6, to, skips, repeats), way
    moved = web1("POST", f"/dashboard/consumers/{topic}/move", {"name": "app", "seq": 2}).body
    assert moved["consumer"]["acked_seq"] == 2
    (row,) = web1("GET", f"/dashboard/consumers?prefix={topic}").body["consumers"]
    assert (row["topic"], row["name"], row["lag"]) == (topic, "app", 8)
    path = f"/dashboard/consumers/{topic}/preview"
    assert web1("POST", path, {"name": "app", "seq": 11}).status == 409
    assert web1("POST", path, {"name": "app"}).code == "invalid_request"
    assert web1("POST", path, {"name": "app", "seq": 1, "by": 1}).code == "invalid_request"
    assert web1("POST", path, {"name": "nobody", "seq": 1}).code == "consumer_not_found"
    assert web1("POST", f"/dashboard/consumers/{topic}/remove", {"name": "app"}).status == 200
    assert web1("GET", f"/dashboard/consumers?prefix={topic}").body["consumers"] == []


# ---- queues ----


@pytest.fixture
def queue(web1: Web, topic: str) -> str:
    web1("PUT", f"/v0/topics/{topic}", {"type": "queue", "max_deliveries": 1, "dead_letter": f"{topic}.dead"})
    put(web1, topic, *({"n": n} for n in range(1, 7)))
    return topic


def steer(web: Web, queue: str, action: str, *which: int) -> int:
    answer = web("POST", f"/dashboard/queues/{queue}/steer", {"action": action, "seqs": list(which)})
    assert answer.status == 200, answer.raw
    return int(answer.body["changed"])


def states(web: Web, queue: str) -> dict[int, str]:
    rows = web("POST", f"/dashboard/queues/{queue}/jobs", {}).body["jobs"]
    return {row["seq"]: row["state"] for row in rows}


def test_jobs_are_seen_without_being_taken_and_steered(web1: Web, queue: str) -> None:
    web1("POST", f"/v0/topics/{queue}/claim", {"node": "w", "max": 2})
    assert states(web1, queue) == {1: "in_flight", 2: "in_flight", **dict.fromkeys(range(3, 7), "ready")}
    assert web1("GET", f"/dashboard/queues/{queue}/why?seq=1").body["state"] == "in_flight"
    assert steer(web1, queue, "release", 1, 3) == 1  # nobody holds 3
    assert steer(web1, queue, "delete", 2, 4) == 2  # one that is held, one that waits
    assert states(web1, queue) == dict.fromkeys((1, 3, 5, 6), "ready")
    assert web1("POST", f"/dashboard/queues/{queue}/steer", {"action": "delete", "seqs": []}).code == "invalid_request"
    assert web1("GET", "/dashboard/queues/no.such").code == "topic_not_found"


def test_dead_letters_are_redriven_one_some_and_all(web1: Web, queue: str) -> None:
    web1("POST", f"/v0/topics/{queue}/claim", {"node": "w", "max": 6})
    web1("POST", f"/v0/topics/{queue}/nack", {"node": "w", "seqs": [1, 2, 3, 4, 5, 6]})
    path = f"/dashboard/queues/{queue}"

    def letters(text: str = "") -> list[Any]:
        found: list[Any] = web1("POST", f"{path}/dead", {"text": text}).body["letters"]
        return found

    wait_until(lambda: len(letters()) == 6, "all letters")
    (three,) = letters('"N": 3')  # whatever the case
    assert three["job_seq"] == 3
    assert web1("POST", f"{path}/redrive", {"seqs": [three["seq"]]}).body["redriven"] == 1
    assert web1("POST", f"{path}/redrive", {"text": '"n": 5'}).body["redriven"] == 1
    assert len(letters()) == 4
    assert web1("POST", f"{path}/redrive", {"text": '"n": 6', "discard": True}).body["discarded"] == 1
    rest = web1("POST", f"{path}/redrive", {}).body
    assert (rest["redriven"], rest["next"], letters()) == (3, None, [])
    assert len(states(web1, queue)) == 5


def test_a_queue_is_paused_drained_resumed_and_scheduled(web1: Web, queue: str) -> None:
    path = f"/dashboard/queues/{queue}"
    assert web1("POST", f"{path}/mode", {"action": "pause", "reason": "lunch"}).body["paused"]["reason"] == "lunch"
    found = web1("GET", path).body
    assert found["paused"]["by"] == "user" and any("lunch" in line or "paused" in line for line in found["why"])
    assert web1("POST", f"{path}/mode", {"action": "resume"}).body["paused"] is None
    assert web1("POST", f"{path}/mode", {"action": "drain"}).body["draining"]
    assert web1("POST", f"{path}/cron", {"name": "n", "schedule": "0 3 * * *", "data": "x"}).body["created"]
    assert web1("POST", f"{path}/cron", {"name": "n", "schedule": "whenever"}).code == "invalid_request"
    (row,) = web1("GET", path).body["crons"]
    assert (row["name"], row["data"]) == ("n", "x")
    assert web1("POST", f"{path}/cron", {"name": "n", "remove": True}).body["removed"]
    assert queue in [row["topic"] for row in web1("GET", f"/dashboard/queues?prefix={queue}").body["queues"]]


# ---- the stream ----


def test_the_stream_tells_the_pulse_and_the_newest_records(web: Web, topic: str) -> None:
    put(web, topic, 0)
    with web.events(f"/dashboard/stream?tail={topic}&rate=8") as events:
        assert events.next().name == "hello"
        assert events.next().name == "history"
        put(web, topic, *range(1, 51))
        shown, skipped, ticks = 0, 0, 0
        while shown + skipped < 50 or not ticks:
            event = events.next()
            if event.name == "records":
                shown, skipped = shown + len(event.data["records"]), skipped + event.data["skipped"]
                assert event.data["records"][-1]["text"] == "50"
            ticks += event.name == "tick"
        assert 0 < shown <= 10 and shown + skipped == 50
    assert web.events("/dashboard/stream?tail=no.such").refused().code == "topic_not_found"


# ---- who may ----


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    root = tmp_path_factory.mktemp("locked")
    rows = (("all", '["read","write","delete","admin","consume"]', "[]"), ("reader", '["read"]', '["open."]'))
    text = ""
    for name, scopes, prefixes in rows:
        digest = digest_of(f"{name}-key").hex()
        text += f'[[token]]\nname = "{name}"\nsha256 = "{digest}"\nscopes = {scopes}\nprefixes = {prefixes}\n'
    path: Path = root / "tokens.toml"
    path.write_text(text)
    with Daemon(root, env={**ENVIRON, "TOPICD_TOKENS_FILE": str(path)}, **SETTINGS) as daemon:
        yield daemon


def hello(web: Web) -> Any:
    with web.events("/dashboard/stream") as events:
        return events.next().data


def test_without_a_token_there_are_figures_and_no_names(locked: Daemon) -> None:
    owner, guest = Web(locked, key="all-key"), Web(locked)
    put(owner, "secret.topic", 1)
    put(owner, "open.topic", 1)
    assert hello(guest)["guest"] and hello(guest)["scopes"] == []
    with owner.events("/dashboard/stream") as whole, guest.events("/dashboard/stream") as events:
        while "secret.topic" not in (told := whole.next()).text or told.name != "tick":
            pass  # until there is a name to be told
        seen = [event for event in (events.next() for _ in range(6)) if event.name == "tick"]
        assert seen[-1].data["now_ms"] >= told.data["now_ms"]
        assert all(event.data["processes"] and "secret" not in event.text for event in seen)
    for path in ("topics", "topics/secret.topic", "queues", "consumers", "routers"):
        assert guest("GET", f"/dashboard/{path}").code == "unauthorized", path
    assert guest("POST", "/dashboard/topics/secret.topic/browse", {}).code == "unauthorized"
    assert guest("POST", "/dashboard/topics/secret.topic/config", {"config": {}}).code == "unauthorized"
    assert guest.events("/dashboard/stream?tail=secret.topic").refused().code == "unauthorized"
    assert Web(locked, key="wrong")("GET", "/dashboard/topics").code == "unauthorized"


def test_each_action_needs_its_scope_and_each_name_its_prefix(locked: Daemon) -> None:
    owner, reader = Web(locked, key="all-key"), Web(locked, key="reader-key")
    put(owner, "secret.topic", 1)
    put(owner, "open.topic", 1)
    assert hello(reader)["scopes"] == ["read"]
    for sort in ("name", "bytes"):
        found = reader("GET", f"/dashboard/topics?sort={sort}").body["topics"]
        assert [row["topic"] for row in found] == ["open.topic"], sort
    assert browse(reader, "open.topic")["records"]
    assert reader("POST", "/dashboard/topics/secret.topic/browse", {}).code == "forbidden"
    for path, body in (
        ("topics/open.topic/config", {"config": {}}),
        ("consumers/open.topic/move", {"name": "x", "seq": 1}),
        ("queues/open.topic/steer", {"action": "delete", "seqs": [1]}),
        ("queues/open.topic/mode", {"action": "pause"}),
        ("queues/open.topic/redrive", {}),
    ):
        assert reader("POST", f"/dashboard/{path}", body).code == "forbidden", path
