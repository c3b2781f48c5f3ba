"""Stages: nothing is seen before it is decided, what is decided is published once, whoever finishes it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from tests.process.cli_kit import run_ctl
from tests.process.conftest import Served
from tests.process.wire import batch as frames_of
from tests.support.daemon import Daemon, drain_topic
from topicd.client.blocking.client import Client
from topicd.client.staging import commitlog, copying, stages, sweep
from topicd.client.staging.commitlog import CommitLog
from topicd.client.staging.names import STAGES, producer_id
from topicd.client.staging.plan import MAX_BATCH_BYTES, NO_LIMIT, Chunk, Run, Staged, chunks_for
from topicd.client.staging.stages import Stages
from topicd.errors import Conflict, InvalidRequest, OutOfOrder, TopicNotFound
from topicd.ipc.protocol.messages import Op
from topicd.limits import LASTING, MIB

SETTINGS = {"segment_max_records": 500, "snapshot_ms": 100}


class Crash(Exception):
    """Stands for the death of whoever commits."""


@pytest.fixture
def client(module_daemon: Daemon) -> Iterator[Client]:
    with module_daemon.client() as made:
        yield made


@pytest.fixture
def query(client: Client, topic: str) -> Stages:
    return client.stages(topic)


def numbered(prefix: str, count: int) -> list[bytes]:
    return [f"{prefix}{n}".encode() for n in range(count)]


def payloads(client: Client, topic: str) -> list[bytes]:
    try:
        return [record.data for record in drain_topic(client, topic)]
    except TopicNotFound:
        return []


def internal(client: Client, query: Stages) -> list[str]:
    key = stages.names.query_key(query.query)
    return [info.topic for info in client.topics(internal=True) if key in info.topic]


# ---- what is seen ----


def test_nothing_is_seen_before_the_commit_and_everything_after_it(client: Client, topic: str, query: Stages) -> None:
    first = query.write_records(0, 0, topic, numbered("a", 12_345))
    second = query.write_records(0, 1, topic, numbered("b", 10))
    assert payloads(client, topic) == []
    assert query.commit(0, [first, second]) == 12_355
    assert payloads(client, topic) == numbered("a", 12_345) + numbered("b", 10)
    assert not any(name.startswith(STAGES) for name in internal(client, query))


def test_records_keep_tag_node_and_meta(client: Client, topic: str, query: Stages) -> None:
    records = [(b"x", "t", "n", {"k": [1, "two"]}), (b"", None, None, None), ({"json": 1}, "u", None, None)]
    query.commit(0, [query.write_records(0, 0, topic, records)])
    found = [(record.data, record.tag, record.node, record.meta) for record in drain_topic(client, topic)]
    assert found == [(b"x", "t", "n", {"k": [1, "two"]}), (b"", None, None, {}), (b'{"json":1}', "u", None, {})]


def test_a_small_commit_of_many_stages_is_one_batch(client: Client, topic: str, query: Stages, served: Served) -> None:
    parts = [query.write_records(0, n, topic, numbered(f"{n}-", 10)) for n in range(5)]
    query.commit(0, parts)
    answer = served.wire(topic).ask(Op.PRODUCER, {"topic": topic, "producer_id": producer_id(topic, topic)})
    assert answer["expected"] == 2
    assert len({record.ts for record in drain_topic(client, topic)}) == 1


def test_one_stage_holds_records_of_many_topics(client: Client, topic: str, query: Stages) -> None:
    def laid() -> Iterator[tuple[str, bytearray, int]]:
        for n in range(30):
            yield f"{topic}.{n % 3}", bytearray(frames_of([b"%d" % n, b"%d." % n])), 2

    query.commit(0, [query.write(0, 0, laid()), query.write_records(0, 1, f"{topic}.0", [b"last"])])
    for place in range(3):
        wanted = [data for n in range(place, 30, 3) for data in (b"%d" % n, b"%d." % n)]
        assert payloads(client, f"{topic}.{place}") == wanted + ([b"last"] if place == 0 else [])


def test_what_is_not_committed_is_dropped_and_never_seen(client: Client, topic: str, query: Stages) -> None:
    query.write_records(3, 0, topic, [b"a"])
    query.write_records(3, 1, topic, [b"b"])
    assert query.drop(3) == 2
    assert payloads(client, topic) == [] and internal(client, query) == []


def test_a_commit_takes_the_leftovers_of_its_batch_along(client: Client, topic: str, query: Stages) -> None:
    query.write_records(0, 0, topic, [b"an attempt that failed"])
    later = query.write_records(1, 0, topic, [b"next"])
    query.commit(0, [query.write_records(0, 0, topic, [b"counts"])])
    assert payloads(client, topic) == [b"counts"]
    assert [name for name in internal(client, query) if name.startswith(STAGES)] == [later.topic]


def test_nothing_written_is_nothing_stored(client: Client, topic: str, query: Stages) -> None:
    assert query.commit(0, [query.write(0, 0, [])]) == 0
    assert internal(client, query) == []


# ---- once ----


def test_a_batch_is_committed_once_and_the_first_decision_counts(client: Client, topic: str, query: Stages) -> None:
    assert query.commit(0, [query.write_records(0, 0, topic, [b"first"])]) == 1
    assert query.commit(0, [query.write_records(0, 0, topic, [b"second", b"third"])]) == 1
    query.commit(1, [query.write_records(1, 0, topic, [b"next"])])
    assert payloads(client, topic) == [b"first", b"next"]
    assert not any(name.startswith(STAGES) for name in internal(client, query))


def test_a_batch_older_than_what_is_remembered_is_refused(
    client: Client, topic: str, query: Stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commitlog, "BATCHES_KEPT", 2)
    for number in range(9):
        query.commit(number, [query.write_records(number, 0, topic, [b"%d" % number])])
    log = CommitLog(client, topic)
    log.refresh()
    assert len(log.decisions) < 5
    with pytest.raises(Conflict, match="checkpoint"):
        query.commit(2, [query.write_records(2, 0, topic, [b"again"])])
    assert payloads(client, topic) == [b"%d" % n for n in range(9)]


def test_a_delayed_commit_never_decides_a_later_one(client: Client, topic: str, query: Stages) -> None:
    """Somebody slept between looking and deciding, and others went on."""
    query.commit(5, [query.write_records(5, 0, topic, [b"5"])])
    asleep = CommitLog(client, topic)
    with pytest.raises(Conflict):
        asleep.decide(4, (query.write_records(4, 0, topic, [b"4"]),), {})
    # Nor does it decide anew what others have decided: the first decision of a batch counts.
    with suppress(Conflict):
        asleep.decide(5, (query.write_records(5, 1, topic, [b"not 5"]),), {})
    assert query.finish() == []
    assert payloads(client, topic) == [b"5"]
    query.commit(6, [query.write_records(6, 0, topic, [b"6"])])
    assert payloads(client, topic) == [b"5", b"6"]


@pytest.mark.parametrize("ends", [False, True], ids=["query", "job"])
def test_committers_that_race_publish_once(client: Client, module_daemon: Daemon, topic: str, ends: bool) -> None:
    mine = client.stages(topic, ends=ends)
    parts = [mine.write_records(0, n, topic, numbered(f"{n}-", 6_000)) for n in range(4)]
    start, problems = threading.Barrier(3), list[BaseException]()

    def commit(order: list[Staged]) -> None:
        try:
            with module_daemon.client() as own:
                start.wait()
                own.stages(topic, ends=ends).commit(0, order)
        except (Conflict, InvalidRequest) as error:
            problems.append(error)  # of a job that somebody else has cleaned up already

    orders = [parts, list(reversed(parts)), parts[1:] + parts[:1]]
    threads = [threading.Thread(target=commit, args=(order,)) for order in orders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = payloads(client, topic)
    assert any(found == [data for part in order for data in _data_of(parts, part)] for order in orders)
    assert len(problems) < 3 and (ends or not problems)


def _data_of(parts: list[Staged], part: Staged) -> list[bytes]:
    return numbered(f"{parts.index(part)}-", 6_000)


# ---- finished by somebody else ----


def crash_at(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, calls: int = 1) -> None:
    """The n-th call does not happen, and nothing after it."""
    whole, left = getattr(owner, name), [calls]

    def crash(*args: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] <= 0:
            raise Crash
        return whole(*args, **options)

    monkeypatch.setattr(owner, name, crash)


@pytest.mark.parametrize(
    ("owner", "name", "calls", "decided"),
    [
        (stages.Stages, "_hold", 1, False),
        (commitlog.CommitLog, "decide", 1, False),
        (copying.Copier, "copy", 1, True),
        (copying.Connection, "start_copy", 1, True),
        (copying.Connection, "start_copy", 2, True),
        (copying.Connection, "finish_append", 2, True),
        (commitlog.CommitLog, "finish", 1, True),
        (stages.Stages, "_clean", 1, True),
    ],
)
def test_a_commit_that_dies_is_finished_by_the_next_or_never_seen(
    client: Client, topic: str, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, calls: int, decided: bool
) -> None:
    query = client.stages(topic)
    parts = [query.write_records(0, n, topic, numbered(f"{n}-", 6_000)) for n in range(4)]
    wanted = [data for n in range(4) for data in numbered(f"{n}-", 6_000)]
    with monkeypatch.context() as patch, pytest.raises(Crash):
        crash_at(patch, owner, name, calls)
        query.commit(0, parts)
    if not decided:
        assert payloads(client, topic) == [] and query.finish() == []
        wanted = numbered("again", 3)
    again = client.stages(topic)
    again.commit(0, [again.write_records(0, 0, topic, numbered("again", 3))])
    again.commit(1, [again.write_records(1, 0, topic, [b"next"])])
    assert payloads(client, topic) == [*wanted, b"next"]
    assert not any(name.startswith(STAGES) for name in internal(client, query))


@pytest.mark.parametrize(("name", "calls"), [("start_append", 1), ("start_append", 2), ("finish_append", 2)])
def test_a_commit_whose_records_travel_is_finished_all_the_same(
    client: Client, topic: str, monkeypatch: pytest.MonkeyPatch, name: str, calls: int
) -> None:
    """By whoever comes next, in whichever way: the chunks and their numbers are the same."""
    query = client.stages(topic)
    parts = [query.write_records(0, n, topic, numbered(f"{n}-", 6_000)) for n in range(4)]
    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(copying.Near, "ranges", lambda near, chunk: None)
        crash_at(patch, copying.Connection, name, calls)
        query.commit(0, parts)
    assert query.finish() == [0]
    assert payloads(client, topic) == [data for n in range(4) for data in numbered(f"{n}-", 6_000)]


def test_a_stage_of_another_shard_is_published(client: Client, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a start with another number of shards."""
    there = client.caller.shard_map.shard_of(topic)
    other = next(f"{topic}.{n}" for n in range(99) if client.caller.shard_map.shard_of(f"{topic}.{n}") != there)
    query = client.stages(topic)
    whole = Stages._stage_topic
    with monkeypatch.context() as patch:
        patch.setattr(Stages, "_stage_topic", lambda mine, batch, part, name: whole(mine, batch, part, other))
        far = query.write_records(0, 0, topic, numbered("far", 12_000))
    assert client.caller.shard_map.shard_of(far.topic) != there
    near = query.write_records(0, 1, topic, numbered("near", 12_000))
    assert client.caller.shard_map.shard_of(near.topic) == there
    query.commit(0, [far, near])
    assert payloads(client, topic) == numbered("far", 12_000) + numbered("near", 12_000)


def test_records_of_a_stage_beside_its_destination_do_not_travel(
    client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = client.stages(topic)
    parts = [query.write_records(0, n, topic, numbered(f"{n}-", 9_000)) for n in range(3)]
    with monkeypatch.context() as patch:
        crash_at(patch, copying.Connection, "start_append")
        crash_at(patch, copying.StageReader, "take")
        query.commit(0, parts)
    assert payloads(client, topic) == [data for n in range(3) for data in numbered(f"{n}-", 9_000)]


def test_a_job_that_died_is_finished_by_anybody(client: Client, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    job = client.stages(topic, ends=True)
    part = job.write_records(0, 0, topic, numbered("", 25_000))
    with monkeypatch.context() as patch, pytest.raises(Crash):
        crash_at(patch, copying.Connection, "finish_append", 2)
        job.commit(0, [part])
    [left] = [one for one in sweep.unfinished(client) if one.query == topic]
    assert (left.batch, left.stages, left.records, left.ends) == (0, 1, 25_000, True)
    assert sweep.finish(client, left.key) == [sweep.Finished(left, None)]
    assert payloads(client, topic) == numbered("", 25_000)
    assert internal(client, job) == []


def test_a_thousand_other_producers_do_not_make_a_commit_repeat_itself(
    client: Client, topic: str, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon forgets ordinary producers; a commit may be left for days in between."""
    query = client.stages(topic)
    part = query.write_records(0, 0, topic, numbered("", 12_000))
    with monkeypatch.context() as patch, pytest.raises(Crash):
        crash_at(patch, commitlog.CommitLog, "finish")
        query.commit(0, [part])
    wire = served.wire(topic)
    topic_id = wire.open(topic)
    for producer in range(1, 1_100):
        wire.append(topic_id, [b"other"], producer=producer, batch_no=1)
    assert query.finish() == [0]
    assert [data for data in payloads(client, topic) if data != b"other"] == numbered("", 12_000)


def test_a_destination_made_anew_gets_the_whole_batch(
    client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = client.stages(topic)
    query.commit(0, [query.write_records(0, 0, topic, [b"before"])])
    part = query.write_records(1, 0, topic, numbered("", 15_000))
    with monkeypatch.context() as patch, pytest.raises(Crash):
        crash_at(patch, copying.Connection, "finish_append", 2)
        query.commit(1, [part])
    client.delete_topic(topic)
    query.commit(2, [query.write_records(2, 0, topic, [b"behind"])])
    assert payloads(client, topic) == [*numbered("", 15_000), b"behind"]


# ---- what expires ----


def test_a_stage_that_expired_fails_the_commit_and_nothing_is_published(client: Client, topic: str) -> None:
    query = client.stages(topic, ttl=0.001)
    parts = [query.write_records(0, 0, topic, [b"gone"]), client.stages(topic).write_records(0, 1, topic, [b"there"])]
    with pytest.raises(Conflict, match="expired"):
        query.commit(0, parts)
    assert payloads(client, topic) == [] and query.finish() == []


def test_what_is_decided_does_not_expire(client: Client, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    query = client.stages(topic, ttl=3600)
    part = query.write_records(0, 0, topic, [b"kept"])
    assert client.state(part.topic).config.ttl_ms == 3_600_000
    with monkeypatch.context() as patch, pytest.raises(Crash):
        crash_at(patch, copying.Copier, "copy")
        query.commit(0, [part])
    assert client.state(part.topic).config.ttl_ms == 0
    [info] = [one for one in sweep.list_stages(client, 2**62) if one.stage == part.topic]
    assert info.decided
    assert part.topic not in [one.stage for one in sweep.drop_expired(client, 2**62, 0)]


def test_old_stages_are_dropped_and_young_ones_are_not(client: Client, topic: str, query: Stages) -> None:
    part = query.write_records(7, 3, topic, [b"left", b"behind"])
    [info] = [one for one in sweep.list_stages(client, client.state(part.topic).last_write_ts or 0) if one.batch == 7]
    assert replace(info, idle_ms=0) == sweep.StageInfo(part.topic, info.key, 7, 3, 2, info.bytes, 0, False)
    now = client.state(part.topic).last_write_ts or 0
    assert part.topic not in [one.stage for one in sweep.drop_expired(client, now + 999, 1000)]
    assert part.topic in [one.stage for one in sweep.drop_expired(client, now + 2001, 1000)]
    assert internal(client, query) == []


# ---- names ----


def test_names_of_topicds_own_are_refused_and_hidden(client: Client, topic: str, query: Stages, served: Served) -> None:
    for make in (lambda: client.publish("topicd.mine", b"x"), lambda: client.configure("topicd.mine")):
        with pytest.raises(InvalidRequest, match="topicd's own"):
            make()
    with pytest.raises(InvalidRequest, match="topicd's own"):
        query.write_records(0, 0, "topicd.mine", [b"x"])
    part = query.write_records(0, 0, topic, [b"x"])
    assert part.topic not in [info.topic for info in client.topics()]
    assert part.topic in [info.topic for info in client.topics(internal=True)]
    wire = served.wire(part.topic)
    hidden = wire.ask(Op.SUBSCRIBE, {"pattern": "t*", "credit": 1024})
    assert part.topic not in [row["topic"] for row in hidden["topics"]]
    shown = wire.ask(Op.SUBSCRIBE, {"pattern": f"{STAGES}*", "credit": 1024})
    assert part.topic in [row["topic"] for row in shown["topics"]]


# ---- the producer op ----


def test_a_lasting_producer_begins_at_one_and_says_what_is_next(topic: str, served: Served) -> None:
    wire = served.wire(topic)
    topic_id, mine = wire.open(topic), LASTING + 5
    ask = {"topic": topic, "producer_id": mine}
    assert wire.ask(Op.PRODUCER, ask) == {"topic_id": topic_id, "expected": 1}
    with pytest.raises(OutOfOrder) as early:
        wire.append(topic_id, [b"x"], producer=mine, batch_no=2)
    assert early.value.detail["expected"] == 1
    wire.append(topic_id, [b"x"], producer=mine, batch_no=1)
    assert wire.ask(Op.RELEASE_PRODUCER, ask)["expected"] == 2
    assert wire.append(topic_id, [b"x"], producer=mine, batch_no=1).deduped


# ---- the plan ----


def test_chunks_keep_the_limits_and_the_order() -> None:
    sizes = [(4_000, MIB), (6_000, MIB), (1, 5), (10_000, 40 * MIB), (1, 30 * MIB), (2, 34 * MIB)]
    staged = Staged("s", tuple(Run("t", records, size) for records, size in sizes))
    chunks = chunks_for("t", [staged])
    assert [(chunk.records, [piece.from_seq for piece in chunk.pieces]) for chunk in chunks] == [
        (10_000, [0, 4_000]),
        (1, [10_000]),
        (10_000, [10_001]),
        (3, [20_001, 20_002]),
    ]
    assert Chunk(records=1, bytes=MAX_BATCH_BYTES).takes(Run("t", 1, 1), NO_LIMIT) is False
    assert Staged.from_wire(staged.to_wire()) == staged


# ---- topicctl ----


def test_topicctl_lists_finishes_and_drops(
    client: Client, module_daemon: Daemon, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep.drop(client, sweep.list_stages(client, 0))  # of other tests
    for log in sweep.commit_logs(client):
        log.remove()
    job = client.stages(topic, ends=True)
    part = job.write_records(0, 0, topic, [b"a", b"b"])
    with monkeypatch.context() as patch, pytest.raises(Crash):
        crash_at(patch, copying.Copier, "copy")
        job.commit(0, [part])
    other = client.stages(f"{topic}.other").write_records(4, 2, topic, [b"never"])
    shown = json.loads(run_ctl(module_daemon, "stages", "list", "--json").stdout)
    assert {one["stage"]: one["decided"] for one in shown["stages"]} == {part.topic: True, other.topic: False}
    [left] = shown["unfinished"]
    assert (left["query"], left["records"]) == (topic, 2)
    assert "unfinished commits" in run_ctl(module_daemon, "stages", "list").stdout

    finished = json.loads(run_ctl(module_daemon, "stages", "finish", left["key"], "--json").stdout)
    assert finished == [{**left, "error": None}] and payloads(client, topic) == [b"a", b"b"]
    assert run_ctl(module_daemon, "stages", "finish").stdout == "nothing is unfinished\n"

    assert run_ctl(module_daemon, "stages", "drop", "--expired").stdout == "dropped 0 stages\n"
    run_ctl(module_daemon, "stages", "drop", code=2)
    run_ctl(module_daemon, "stages", "drop", "nobody", code=4)
    assert other.topic in run_ctl(module_daemon, "topic", "list", "--all", "--json").stdout
    assert other.topic not in run_ctl(module_daemon, "topic", "list", "--json").stdout
    assert run_ctl(module_daemon, "stages", "drop", _key(other), "--yes").stdout == "dropped 1 stage\n"
    assert run_ctl(module_daemon, "stages", "list").stdout == "no stages\n"


def _key(staged: Staged) -> str:
    name = stages.names.parse_stage(staged.topic)
    assert name is not None
    return name.key
