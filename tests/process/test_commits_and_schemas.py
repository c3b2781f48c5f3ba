"""Commits into topics that are particular about what they take: it is refused before the decision, with the place of
the record, and nothing is seen; what was decided is published, whatever the topic has become since."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.process.conftest import Served
from tests.process.test_commits import stop_behind
from tests.process.test_staging import Crash, crash_at, payloads
from tests.process.test_tcp import Site
from tests.process.wire import batch as frames_of
from tests.support.daemon import Daemon
from topicd.client.blocking.client import Client
from topicd.client.staging import commitlog, copying, judging, stages, sweep
from topicd.client.staging.names import producer_id
from topicd.client.staging.plan import Staged
from topicd.client.staging.stages import Stages
from topicd.errors import Conflict, Forbidden, SchemaViolation, Throttled
from topicd.ipc.protocol.messages import Op
from topicd.limits import LASTING, MIB

SETTINGS = {"segment_max_records": 500, "snapshot_ms": 100}
ORDER = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
NAMED = {"type": "object", "required": ["name"]}


@pytest.fixture
def client(module_daemon: Daemon) -> Iterator[Client]:
    with module_daemon.client() as made:
        yield made


def orders(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"id": n, **more} for n in range(count)]


def ids(client: Client, topic: str) -> list[Any]:
    return [json.loads(data)["id"] for data in payloads(client, topic)]


def staged_elsewhere(query: Stages, client: Client, topic: str, rows: list[Any], patch: pytest.MonkeyPatch) -> Staged:
    """In another shard than the destination's: the records have to travel."""
    there = client.caller.shard_map.shard_of(topic)
    other = next(f"{topic}.{n}" for n in range(99) if client.caller.shard_map.shard_of(f"{topic}.{n}") != there)
    whole = Stages._stage_topic
    with patch.context() as patched:
        patched.setattr(Stages, "_stage_topic", lambda mine, batch, part, name: whole(mine, batch, part, other))
        return query.write_records(0, 7, topic, rows)


# ---- schemas ----


@pytest.mark.parametrize("near", [True, False], ids=["near", "far"])
@pytest.mark.parametrize("known", ["before the stage", "behind it"])
def test_a_record_that_breaks_the_schema_fails_the_commit_before_the_decision(
    client: Client, topic: str, monkeypatch: pytest.MonkeyPatch, near: bool, known: str
) -> None:
    other, query = f"{topic}.other", client.stages(topic)
    if known == "before the stage":
        client.configure(topic, schema=ORDER)
    rows = [*orders(12_345), {"id": "bad"}, *orders(10)]
    part = query.write_records(0, 7, topic, rows) if near else staged_elsewhere(query, client, topic, rows, monkeypatch)
    client.configure(topic, schema=ORDER)
    with pytest.raises(SchemaViolation, match="nothing was published") as caught:
        query.commit(0, [query.write_records(0, 0, other, [b"any"]), part])
    detail = caught.value.detail
    assert (detail["partition"], detail["index"], detail["path"]) == (7, 12_345, "/id")
    assert "record 12345 of partition 7, /id" in caught.value.message
    assert payloads(client, topic) == payloads(client, other) == []
    assert [one for one in sweep.unfinished(client) if one.query == topic] == []
    assert client.state(topic).open_commits == 0
    query.drop(0)
    query.commit(0, [query.write_records(0, 0, topic, orders(3))])
    assert ids(client, topic) == [0, 1, 2]


@pytest.mark.parametrize("near", [True, False], ids=["near", "far"])
def test_what_follows_the_schema_is_published_in_any_size(
    client: Client, topic: str, monkeypatch: pytest.MonkeyPatch, near: bool
) -> None:
    """Runs that are larger than the daemon looks at in one go, and records that are."""
    client.configure(topic, schema=ORDER)
    query = client.stages(topic)
    rows = [*orders(900, much="x" * 10_000), {"id": 900, "much": "y" * (MIB - 100)}, *orders(20_000)]
    looks: list[int] = []
    whole = judging.Judge._look

    def look(*args: Any) -> int:
        looks.append(whole(*args))
        return looks[-1]

    monkeypatch.setattr(judging.Judge, "_look", look)
    part = query.write_records(0, 7, topic, rows) if near else staged_elsewhere(query, client, topic, rows, monkeypatch)
    assert query.commit(0, [part]) == len(rows)
    assert ids(client, topic) == [row["id"] for row in rows]
    assert sum(looks) == len(rows) and len(looks) > 3


def test_a_stage_of_many_topics_is_judged_by_each_of_them(client: Client, topic: str) -> None:
    schemas = {f"{topic}.orders": ORDER, f"{topic}.names": NAMED, f"{topic}.any": None}
    for name, schema in schemas.items():
        client.configure(name, schema=schema)

    def laid(bad: bytes) -> Iterator[tuple[str, bytearray, int]]:
        for n in range(30):
            yield f"{topic}.orders", bytearray(frames_of([b'{"id": %d}' % n])), 1
            yield f"{topic}.names", bytearray(frames_of([b'{"name": 1}', bad if n == 20 else b'{"name": 2}'])), 2
            yield f"{topic}.any", bytearray(frames_of([b"\xff"])), 1

    query = client.stages(topic)
    with pytest.raises(SchemaViolation, match=rf"{topic}.names refuses record 82 of partition 3"):
        query.commit(0, [query.write(0, 3, laid(b"{}"))])
    assert [payloads(client, name) for name in schemas] == [[], [], []]
    query.commit(0, [query.write(0, 3, laid(b'{"name": 3}'))])
    assert [len(payloads(client, name)) for name in schemas] == [30, 60, 30]


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("seen", [0, 1], ids=["unseen", "half"])
def test_a_schema_that_comes_behind_the_decision_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarted: bool, seen: int
) -> None:
    with Daemon(tmp_path, **SETTINGS) as daemon:
        with daemon.client() as client:
            client.configure("orders", schema=ORDER)
            query = client.stages("q")
            part = query.write_records(0, 0, "orders", orders(25_000))
            monkeypatch.setattr(copying, "WINDOW", 1)
            with monkeypatch.context() as patch, pytest.raises(Crash):
                crash_at(patch, copying.Copier, "_send") if not seen else crash_second_copy(patch)
                query.commit(0, [part])
            client.configure("orders", schema=NAMED)
            with pytest.raises(SchemaViolation):
                client.publish("orders", {"id": 1})
        if restarted:
            daemon.kill_all()
            daemon.start().wait_ready()
        with daemon.client() as client:
            assert client.stages("q").finish() == [0]
            assert ids(client, "orders") == list(range(25_000))
            with pytest.raises(SchemaViolation):  # for everybody else it holds
                client.publish("orders", {"id": 1})
            again = client.stages("q")
            with pytest.raises(SchemaViolation, match="nothing was published"):
                again.commit(1, [again.write_records(1, 0, "orders", orders(1))])


def crash_second_copy(patch: pytest.MonkeyPatch) -> None:
    crash_at(patch, copying.Connection, "start_copy", 5)  # three looks, one chunk


def test_a_topic_made_again_with_a_schema_gets_what_was_decided(
    client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = client.stages(topic)
    with monkeypatch.context() as patch, pytest.raises(Crash):
        stop_behind(patch, 1)
        query.commit(0, [query.write_records(0, 0, topic, orders(25_000))])
    client.delete_topic(topic)
    client.configure(topic, schema=NAMED)
    assert query.finish() == [0] and len(payloads(client, topic)) == 25_000


def test_a_hold_that_is_over_is_no_reason_to_judge_again(
    client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = client.stages(topic)
    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(copying, "COMMIT_HOLD_S", 0.001)
        crash_at(patch, copying.Copier, "copy")
        query.commit(0, [query.write_records(0, 0, topic, [b"no json"])])
    client.configure(topic, schema=ORDER)
    assert query.finish() == [0] and payloads(client, topic) == [b"no json"]


def test_a_schema_that_changes_while_it_is_asked_is_asked_again(
    client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.configure(topic, schema=ORDER)
    query, whole = client.stages(topic), judging.Judge.judge

    def changing(judge: judging.Judge, *args: Any) -> None:
        whole(judge, *args)
        client.configure(topic, schema=NAMED)

    monkeypatch.setattr(judging.Judge, "judge", changing)
    with pytest.raises(SchemaViolation, match="name"):
        query.commit(0, [query.write_records(0, 0, topic, orders(5))])
    schemas = iter([{**ORDER, "title": str(n)} for n in range(9)])
    monkeypatch.setattr(
        judging.Judge,
        "judge",
        lambda judge, *args: whole(judge, *args) or client.configure(topic, schema=next(schemas)),
    )
    client.configure(topic, schema=ORDER)
    with pytest.raises(Conflict, match="another schema 3 times"):
        query.commit(0, [query.write_records(0, 0, topic, orders(5))])
    assert payloads(client, topic) == [] and sweep.unfinished(client) == []


def test_who_says_that_it_was_judged_may_stage(tmp_path: Path) -> None:
    site = Site(tmp_path, tls=False)
    with site.daemon, site.daemon.client() as boss:
        boss.configure("orders.a", schema=ORDER)
        with site.client("job", timeout=5.0) as client:
            copier = copying.Copier(client, "orders.a", LASTING + 5)
            copier.reserve(1, 10)
        with site.client("writer", timeout=5.0) as client, pytest.raises(Forbidden, match="stage"):
            copying.Copier(client, "orders.a", LASTING + 6).reserve(1, 10)


# ---- queues, topicd's own, totals ----


def test_a_queue_that_is_drained_refuses_before_the_decision_and_not_behind_it(
    client: Client, topic: str, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.configure(topic, type="queue")
    query = client.stages(topic)
    with monkeypatch.context() as patch:
        whole = commitlog.CommitLog.decide

        def decide(*args: Any) -> Any:
            decided = whole(*args)
            served.wire(topic).ask(Op.QUEUE_DRAIN, {"topic": topic})
            return decided

        patch.setattr(commitlog.CommitLog, "decide", decide)
        assert query.commit(0, [query.write_records(0, 0, topic, [b"job"])]) == 1
    with pytest.raises(Conflict, match=r"drained.*nothing was published"):
        query.commit(1, [query.write_records(1, 0, topic, [b"job"])])
    assert payloads(client, topic) == [b"job"] and query.finish() == []


@pytest.mark.parametrize("name", ["topicd.routers", "topicd.channel.0123456789abcdef.x", "topicd.chat.00"])
def test_topicds_own_topics_are_no_destinations(client: Client, served: Served, name: str) -> None:
    with pytest.raises(Exception, match="topicd's own"):
        client.stages("q").write_records(0, 0, name, [b"x"])


def test_what_was_granted_is_not_measured_against_the_total_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    total = 8 * MIB
    with Daemon(tmp_path, max_total_bytes=total) as daemon, daemon.client(timeout=3.0) as client:
        query = client.stages("q")
        part = query.write_records(0, 0, "orders", [b"x" * 1_000] * 2_000)
        with monkeypatch.context() as patch, pytest.raises(Crash):
            crash_at(patch, copying.Copier, "copy")
            query.commit(0, [part])
        with pytest.raises(Throttled):
            while True:
                client.publish_many("others", [b"y" * 10_000] * 20)
        place = producer_id("q", "orders")
        copier = copying.Copier(client, "orders", place)
        log = commitlog.CommitLog(client, "q")
        log.refresh()
        [decision] = log.pending
        copier.copy(*decision.places["orders"][:2], stages.chunks_for("orders", decision.stages), held=True)
        assert len(payloads(client, "orders")) == 2_000
