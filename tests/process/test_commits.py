"""Commits that their topics refuse: before the decision nothing has happened, behind it the state says what is half-way
and how it ends. Room is held, answers come in any order, and readers of whole commits see no half of one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.process.cli_kit import run_ctl
from tests.process.conftest import Served
from tests.process.test_staging import Crash, crash_at, internal, numbered, payloads
from tests.support.daemon import Daemon
from topicd.client.blocking.client import Client
from topicd.client.staging import commitlog, copying, sweep
from topicd.client.staging.names import producer_id
from topicd.client.staging.stages import Stages
from topicd.errors import Conflict, NotReady, TopicFull
from topicd.ipc.protocol.messages import Op
from topicd.limits import LASTING, MIB

SETTINGS = {"segment_max_records": 500, "snapshot_ms": 100, "max_inflight_bytes": 2 * MIB}


@pytest.fixture
def client(module_daemon: Daemon) -> Iterator[Client]:
    with module_daemon.client() as made:
        yield made


@pytest.fixture
def private_daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(tmp_path, **SETTINGS) as daemon:
        yield daemon


def stop_behind(patch: pytest.MonkeyPatch, answers: int) -> None:
    """Whoever commits dies when so many chunks are acknowledged."""
    patch.setattr(copying, "WINDOW", 1)
    crash_at(patch, copying.Connection, "finish_append", answers + 1)


def half_published(client: Client, topic: str, monkeypatch: pytest.MonkeyPatch, records: int = 25_000) -> Stages:
    """Of a batch that is decided the first 10,000 records, at least, are published."""
    query = client.stages(topic)
    part = query.write_records(0, 0, topic, numbered("half", records))
    with monkeypatch.context() as patch, pytest.raises(Crash):
        stop_behind(patch, 1)
        query.commit(0, [part])
    return client.stages(topic)


# ---- room ----


def test_more_rows_than_the_cap_of_a_topic_that_discards_the_old(client: Client, topic: str) -> None:
    client.configure(topic, cap_records=5_000)
    query = client.stages(topic)
    assert query.commit(0, [query.write_records(0, 0, topic, numbered("", 20_000))]) == 20_000
    assert payloads(client, topic) == numbered("", 20_000)[-5_000:]
    query.commit(1, [query.write_records(1, 0, topic, [b"next"])])
    assert payloads(client, topic)[-1] == b"next" and sweep.unfinished(client) == []


def test_a_topic_that_rejects_refuses_before_anything_is_decided(client: Client, topic: str) -> None:
    client.configure(topic, cap_records=25_000, discard="reject")
    job = client.stages(topic, ends=True)
    with pytest.raises(TopicFull, match="nothing was published"):
        job.commit(0, [job.write_records(0, 0, topic, numbered("", 30_000))])
    assert payloads(client, topic) == []
    assert [one for one in sweep.unfinished(client) if one.query == topic] == [] and job.drop(0) == 1
    again = client.stages(f"{topic}.again", ends=True)
    again.commit(0, [again.write_records(0, 0, topic, numbered("", 25_000))])
    sweep.finish(client, topic)
    assert payloads(client, topic) == numbered("", 25_000)


def test_of_two_topics_the_second_full_the_first_gets_nothing(client: Client, topic: str) -> None:
    full = f"{topic}.full"
    client.configure(full, cap_records=10, discard="reject")
    query = client.stages(topic)
    parts = [query.write_records(0, 0, topic, [b"a"] * 8), query.write_records(0, 1, full, [b"b"] * 11)]
    with pytest.raises(TopicFull):
        query.commit(0, parts)
    assert payloads(client, topic) == payloads(client, full) == [] and query.finish() == []
    client.configure(topic, cap_records=8, discard="reject")
    client.publish_many(topic, [b"mine"] * 8)  # what was held for the commit is not held any more


def test_room_that_is_held_is_nobody_elses(client: Client, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client.configure(topic, cap_records=20_000, discard="reject")
    query = client.stages(topic)
    part = query.write_records(0, 0, topic, numbered("", 15_000))
    with monkeypatch.context() as patch, pytest.raises(Crash):
        crash_at(patch, copying.Copier, "copy")
        query.commit(0, [part])
    with pytest.raises(TopicFull, match="kept for commits"):
        client.publish_many(topic, [b"x"] * 5_001)
    client.publish_many(topic, [b"x"] * 5_000)
    assert query.finish() == [0]
    assert payloads(client, topic) == [b"x"] * 5_000 + numbered("", 15_000)


def test_a_cap_that_is_lowered_behind_the_decision_stops_nothing(
    client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.configure(topic, cap_records=30_000, discard="reject")
    query = half_published(client, topic, monkeypatch)
    client.configure(topic, cap_records=30_000, cap_bytes=1_000_000)
    assert query.finish() == [0]
    assert payloads(client, topic) == numbered("half", 25_000)


def test_held_room_outlives_the_daemon(private_daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    with private_daemon.client() as client:
        client.configure("held", cap_records=20_000, discard="reject")
        query = client.stages("q")
        part = query.write_records(0, 0, "held", numbered("", 15_000))
        with monkeypatch.context() as patch, pytest.raises(Crash):
            crash_at(patch, copying.Copier, "copy")
            query.commit(0, [part])
    for stop in (private_daemon.kill_all, private_daemon.stop):
        stop()
        private_daemon.start().wait_ready()
        with private_daemon.client() as client:
            with pytest.raises(TopicFull, match="kept for commits"):
                client.publish_many("held", [b"x"] * 5_001)
    with private_daemon.client() as client:
        assert client.stages("q").finish() == [0] and payloads(client, "held") == numbered("", 15_000)


def test_chunks_keep_the_limits_of_their_topic(client: Client, topic: str, served: Served) -> None:
    client.configure(topic, cap_records=25)
    query = client.stages(topic)
    query.commit(0, [query.write_records(0, n, topic, numbered(f"{n}-", 10)) for n in range(5)])
    answer = served.wire(topic).ask(Op.PRODUCER, {"topic": topic, "producer_id": producer_id(topic, topic)})
    assert answer["expected"] == 4  # 20 + 20 + 10
    assert len(payloads(client, topic)) == 25


# ---- answers in any order ----


def test_a_refusal_that_overtakes_an_answer_is_waited_out(client: Client, topic: str) -> None:
    """max_inflight_bytes is 2 MiB here: chunks that follow each other are refused while the first is stored."""
    query = client.stages(topic)
    rows = [b"%d" % n * 40 for n in range(40_000)]
    query.commit(0, [query.write_records(0, n, topic, rows[n::4]) for n in range(4)])
    assert payloads(client, topic) == [row for n in range(4) for row in rows[n::4]]


def test_of_several_refusals_the_first_chunks_is_told() -> None:
    class Answers:
        def __init__(self, given: list[tuple[int, Any]]) -> None:
            self._given = given

        def finish_append(self) -> tuple[int, Any]:
            return self._given.pop(0)

        def close(self) -> None:
            pass

    first, second = TopicFull("first"), Conflict("second")
    flying = copying.Flying(Answers([(3, second), (1, None), (2, first)]))  # type: ignore[arg-type]
    for request_id in (1, 2, 3):
        flying.add(request_id, 10)
    with pytest.raises(TopicFull, match="first"):
        flying.land()
    stray = copying.Flying(Answers([(9, None)]))  # type: ignore[arg-type]
    stray.add(1, 10)
    with pytest.raises(Exception, match="request 9, which is not under way"):
        stray.make_room(1, 5)


# ---- finish goes on, abandon gives up ----


@pytest.fixture
def tidy(client: Client) -> None:
    """Without what other tests have left."""
    for one in sweep.unfinished(client):
        sweep.abandon(client, one.key, take_back=True)


def test_one_commit_that_cannot_be_published_does_not_stop_the_others(
    client: Client, module_daemon: Daemon, tidy: None, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("stuck", "fine"):
        half_published(client, f"{topic}.{name}", monkeypatch)
    client.delete_topic(f"{topic}.stuck")
    client.configure(f"{topic}.stuck", cap_records=5_000, discard="reject")
    found = run_ctl(module_daemon, "stages", "finish", "--json", code=1)
    outcome = {one["query"]: one["error"] for one in json.loads(found.stdout)}
    assert outcome[f"{topic}.fine"] is None and "5000" in outcome[f"{topic}.stuck"]
    assert "stages abandon" in found.stderr
    assert payloads(client, f"{topic}.fine") == numbered("half", 25_000) and payloads(client, f"{topic}.stuck") == []

    run_ctl(module_daemon, "stages", "abandon", f"{topic}.stuck", code=2)
    run_ctl(module_daemon, "stages", "abandon", "nobody", "--yes", code=4)
    [part] = json.loads(run_ctl(module_daemon, "stages", "abandon", f"{topic}.stuck", "--yes", "--json").stdout)
    assert (part["topic"], part["records"], part["published"]) == (f"{topic}.stuck", 25_000, 0)
    assert run_ctl(module_daemon, "stages", "finish").stdout == "nothing is unfinished\n"


def test_who_finishes_asks_all_topics_before_the_first_gets_anything(
    client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, query = f"{topic}.full", client.stages(topic)
    parts = [query.write_records(0, 0, topic, [b"a"] * 8), query.write_records(0, 1, full, [b"b"] * 11)]
    with monkeypatch.context() as patch, pytest.raises(Crash):
        crash_at(patch, copying.Copier, "copy")
        query.commit(0, parts)
    client.delete_topic(full)
    client.configure(full, cap_records=10, discard="reject")
    with pytest.raises(TopicFull, match="do not write it again"):
        client.stages(topic).finish()
    assert payloads(client, topic) == payloads(client, full) == []
    client.configure(full, cap_records=11)
    assert client.stages(topic).finish() == [0]
    assert (payloads(client, topic), payloads(client, full)) == ([b"a"] * 8, [b"b"] * 11)


@pytest.mark.parametrize("restarted", [False, True])
def test_an_abandoned_commit_is_taken_back_and_the_batch_may_come_again(
    private_daemon: Daemon, monkeypatch: pytest.MonkeyPatch, restarted: bool
) -> None:
    with private_daemon.client() as client:
        client.publish("orders", b"before")
        query = half_published(client, "orders", monkeypatch)
        client.publish("orders", b"behind")
        [part] = query.abandon()
        assert (part.records, part.taken_back) == (25_000, part.published)
        assert 10_000 <= part.published < 25_000 and sum(b - a + 1 for a, b in part.seqs) == part.published
    if restarted:
        private_daemon.kill_all()
        private_daemon.start().wait_ready()
    with private_daemon.client() as client:
        assert payloads(client, "orders") == [b"before", b"behind"]
        state = client.state("orders")
        assert (state.count, state.settled_seq, state.open_commits) == (2, state.head_seq, 0)
        again = client.stages("orders")
        assert again.finish() == [] and sweep.unfinished(client) == []
        again.commit(0, [again.write_records(0, 0, "orders", [b"again"])])
        assert payloads(client, "orders") == [b"before", b"behind", b"again"]


def test_an_abandoned_commit_that_is_kept_is_over(client: Client, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    query = half_published(client, topic, monkeypatch)
    [part] = query.abandon(take_back=False)
    there = payloads(client, topic)  # what was on its way when the publishing broke off may have come meanwhile
    assert (part.published, part.taken_back) == (len(there), 0)
    assert query.commit(0, [query.write_records(0, 0, topic, [b"again"])]) == 25_000
    query.commit(1, [query.write_records(1, 0, topic, [b"next"])])
    assert payloads(client, topic) == [*there, b"next"]
    state = client.state(topic)
    assert state.settled_seq == state.head_seq


def test_whoever_still_publishes_an_abandoned_commit_is_refused(
    client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = half_published(client, topic, monkeypatch)
    asleep = client.stages(topic)
    log = commitlog.CommitLog(client, topic)
    log.refresh()
    [decision] = log.pending
    query.abandon()
    with pytest.raises(Conflict):
        copier = asleep._copier(topic)
        place = decision.places[topic]
        copier._send(place.topic_id, place.first_no + 1, asleep._chunks(decision, topic)[1:])
    assert payloads(client, topic) == []


def test_giving_up_is_finished_by_the_next_when_it_is_interrupted(
    client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = half_published(client, topic, monkeypatch)
    with monkeypatch.context() as patch, pytest.raises(Crash):
        crash_at(patch, copying.Copier, "abandon")
        query.abandon()
    again = client.stages(topic)
    again.commit(0, [again.write_records(0, 0, topic, [b"again"])])
    assert payloads(client, topic) == [b"again"]


def test_what_is_published_to_its_end_is_not_abandoned(
    client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = client.stages(topic)
    part = query.write_records(0, 0, topic, [b"all"])
    with monkeypatch.context() as patch, pytest.raises(Crash):
        crash_at(patch, commitlog.CommitLog, "finish")
        query.commit(0, [part])
    with pytest.raises(Conflict, match="published to its end"):
        query.abandon()
    assert query.finish() == [0] and payloads(client, topic) == [b"all"]
    assert not any("stage" in name for name in internal(client, query))


def test_a_batch_under_way_is_not_abandoned(topic: str, served: Served) -> None:
    wire = served.wire(topic)
    topic_id, mine = wire.open(topic), LASTING + 9
    room = {"topic": topic, "producer_id": mine, "records": 10, "bytes": 100, "hold_ms": 1_000}
    assert wire.ask(Op.OPEN_COMMIT, room)["first_no"] == 1
    wire.append(topic_id, [b"x"], producer=mine, batch_no=1)
    ask = {"topic": topic, "producer_id": mine, "first_no": 1}
    try:
        assert wire.ask(Op.ABANDON_COMMIT, ask)["deleted"] == 1
    except NotReady:
        pytest.fail("nothing was under way")
    assert wire.ask(Op.PRODUCER, {"topic": topic, "producer_id": mine})["expected"] == (1 << 32) + 2


# ---- whole commits only ----


def test_readers_of_whole_commits_see_no_half_of_one(
    client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = f"{topic}.other"
    client.publish(topic, b"before")
    query = client.stages(topic)
    parts = [query.write_records(0, 0, topic, [b"one"]), query.write_records(0, 1, other, numbered("", 25_000))]
    with monkeypatch.context() as patch, pytest.raises(Crash):
        stop_behind(patch, 2)
        query.commit(0, parts)
    client.publish(topic, b"behind")
    assert payloads(client, topic) == [b"before", b"one", b"behind"]
    state = client.state(topic)
    assert (state.head_seq, state.settled_seq, state.open_commits) == (3, 1, 1)
    page = client.fetch(topic, committed=True)
    assert (page.payloads(), page.caught_up) == ([b"before"], True)
    assert [batch.payloads() for batch in client.history(topic, committed=True)] == [[b"before"]]
    assert client.fetch(other, committed=True).payloads() == [] and len(payloads(client, other)) >= 10_000
    with client.watch(topic, start="earliest", committed=True) as events:
        assert next(events).data == b"before"
        assert query.finish() == [0]
        assert [next(events).data, next(events).data] == [b"one", b"behind"]
    assert client.fetch(topic, committed=True).payloads() == [b"before", b"one", b"behind"]


def test_a_reader_that_waits_for_whole_commits_is_woken_when_one_is_closed(
    client: Client, module_daemon: Daemon, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from threading import Thread

    query = half_published(client, topic, monkeypatch)
    found: list[int] = []

    def wait() -> None:
        with module_daemon.client() as own:
            found.append(len(own.fetch(topic, committed=True, wait=20.0, limit=5)))

    waiting = Thread(target=wait)
    waiting.start()
    query.finish()
    waiting.join()
    assert found == [5]


def test_an_open_commit_outlives_the_daemon(private_daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    with private_daemon.client() as client:
        client.publish("orders", b"before")
        half_published(client, "orders", monkeypatch)
    for stop in (private_daemon.kill_all, private_daemon.stop):
        stop()
        private_daemon.start().wait_ready()
        with private_daemon.client() as client:
            assert client.fetch("orders", committed=True).payloads() == [b"before"]
            assert client.state("orders").head_seq > 10_000
    with private_daemon.client() as client:
        assert client.stages("orders").finish() == [0]
        assert list(client.history("orders", committed=True)) and client.state("orders").settled_seq == 25_001
