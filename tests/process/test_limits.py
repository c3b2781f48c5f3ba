"""The limits of the contract, each with its exact error: configuration fields, and the bounded resources of the daemon,
which answer `throttled` with the limit's name."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.process.conftest import SETTINGS as SHARED
from tests.process.conftest import SHARDS, Served
from tests.process.wire import Wire, batch
from tests.support.daemon import Daemon, wait_until
from tests.support.topicmodel import DEFAULTS
from topicd.client.blocking.client import Client
from topicd.errors import Conflict, InvalidRequest, Throttled, TopicdError, TopicNotFound
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import MessageFlag
from topicd.placement import delivery_shard
from topicd.shards.delivery.writing.outlet import ENTRIES_MAX
from topicd.topic_fields import unit_of

MAX_SEQ = 2**63 - 1


@pytest.fixture
def wire(served: Served, topic: str) -> Wire:
    return served.wire(topic)


@pytest.fixture
def client(module_daemon: Daemon) -> Iterator[Client]:
    with module_daemon.client() as made:
        yield made


def configure(wire: Wire, topic: str, **config: Any) -> dict[str, Any]:
    return wire.ask(Op.CONFIGURE, {"topic": topic, "config": config})


# ---- configuration ----


def test_a_topic_has_the_documented_defaults(wire: Wire, topic: str) -> None:
    wire.open(topic)
    assert wire.state(topic)["config"] == DEFAULTS


@pytest.mark.parametrize(
    ("field", "low", "high"),
    [
        ("ttl_ms", 0, MAX_SEQ),
        ("cap_records", 0, MAX_SEQ),
        ("cap_bytes", 0, MAX_SEQ),
        ("priority", -1000, 1000),
        ("idempotency_window_ms", 0, 86_400_000),
    ],
)
def test_numbers_are_taken_at_their_limits_and_refused_beyond(
    wire: Wire, topic: str, field: str, low: int, high: int
) -> None:
    for value in (low, high):
        assert configure(wire, topic, **{field: value})["config"][field] == value
    before = wire.state(topic)["config"]
    # Times and sizes may be texts with a unit, but within the same limits.
    texts = [str(low - 1), str(high + 1), "soon", ""] if unit_of(field) else [str(low)]
    wrong: list[Any] = [low - 1, high + 1, *texts, float(low), True, []]
    for value in [*wrong, *([] if field == "priority" else [None])]:
        with pytest.raises(InvalidRequest) as refused:
            configure(wire, topic, **{field: value})
        assert field in refused.value.message
    assert wire.state(topic)["config"] == before


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("discard", ["old", "reject"]),
        ("durability", ["ephemeral", "memory", "disk", "fsync"]),
        ("retain", ["all", "acked"]),
        ("auto_priority", [True, False]),
        ("auto_create", [True, False]),
        ("dedupe_node", [True, False]),
        ("priority", [None, 0]),
    ],
)
def test_choices_are_taken_and_anything_else_is_refused(wire: Wire, topic: str, field: str, values: list[Any]) -> None:
    for value in values:
        assert configure(wire, topic, **{field: value})["config"][field] == value
    for value in ("", "none of these!", 17_000, {}):
        with pytest.raises(InvalidRequest):
            configure(wire, topic, **{field: value})


@pytest.mark.parametrize(
    ("field", "default", "value"),
    [
        ("backoff_ms", 1_000, 500),
        ("backoff_factor", 2.0, 3.0),
        ("keep_done_ms", 0, 10),
        ("max_in_flight", 0, 5),
        ("group_rate_per_s", 0, 5),
        ("breaker_failures", 0, 5),
    ],
)
def test_what_only_queues_have_is_refused_by_a_log(
    wire: Wire, topic: str, field: str, default: Any, value: Any
) -> None:
    with pytest.raises(InvalidRequest, match=f"{field} is for queues"):
        configure(wire, topic, **{field: value})
    assert configure(wire, topic, **{field: default})["created"]


@pytest.mark.parametrize(("given", "durability"), [(True, "fsync"), (False, "disk")])
def test_durable_is_another_word_for_a_durability_and_the_exact_word_wins(
    wire: Wire, topic: str, given: bool, durability: str
) -> None:
    assert configure(wire, topic, durable=given)["config"]["durability"] == durability
    assert configure(wire, topic, durable=given, durability="memory")["config"]["durability"] == "memory"


def test_a_change_with_one_bad_field_changes_nothing(wire: Wire, topic: str) -> None:
    wire.open(topic)
    for bad in ({"nonsense": 1}, {"ttl_ms": -1}, {"type": "stack"}):
        with pytest.raises(InvalidRequest):
            configure(wire, topic, cap_records=5, **bad)
    assert wire.state(topic)["config"] == DEFAULTS


def test_an_upsert_keeps_what_it_does_not_name_and_type_cannot_change(wire: Wire, topic: str) -> None:
    assert configure(wire, topic, type="log", cap_records=5)["created"]
    answer = configure(wire, topic, ttl_ms=7, type="log")
    assert not answer["created"]
    assert (answer["config"]["cap_records"], answer["config"]["ttl_ms"]) == (5, 7)
    with pytest.raises(Conflict):
        configure(wire, topic, type="queue", cap_records=9)
    assert wire.state(topic)["config"]["cap_records"] == 5


def test_records_do_not_become_ephemeral_nor_the_other_way_round(wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic)
    configure(wire, topic, durability="ephemeral")
    configure(wire, topic, durability="disk")
    wire.append(topic_id, [b"x"])
    with pytest.raises(Conflict):
        configure(wire, topic, durability="ephemeral")
    assert configure(wire, topic, durability="fsync")["config"]["durability"] == "fsync"


# ---- creation, list, state ----


def test_a_topic_comes_with_its_first_write_and_not_with_a_read(client: Client, topic: str) -> None:
    for look in (
        client.fetch,
        lambda name: list(client.read(name)),
        client.state,
        client.consumers,
        lambda name: client.delete(name, 1),
        client.delete_topic,
    ):
        with pytest.raises(TopicNotFound):
            look(topic)
    assert client.publish(topic, b"x") == 1
    assert client.state(topic).count == 1


def test_create_false_forbids_creation(wire: Wire, topic: str) -> None:
    for op, body in ((Op.OPEN, {}), (Op.CONFIGURE, {"config": {"ttl_ms": 5}})):
        with pytest.raises(TopicNotFound):
            wire.ask(op, {"topic": topic, "create": False, **body})
    wire.open(topic)
    assert not wire.ask(Op.OPEN, {"topic": topic, "create": False})["created"]


def test_topics_are_listed_by_prefix_over_all_shards_in_order(client: Client, topic: str) -> None:
    names = [f"{topic}.{number:03d}" for number in range(50)]
    for name in reversed(names):
        client.publish_many(name, [b"xy"] * 2)
    client.publish(f"{topic}-other", b"x")
    rows = list(client.topics(f"{topic}."))
    assert [row.topic for row in rows] == names
    assert {(row.head_seq, row.earliest_seq, row.count, row.bytes, row.durability) for row in rows} == {
        (2, 1, 2, 4, "disk")
    }
    assert list(client.topics(f"{topic}.nothing")) == []


def test_pages_of_a_list_neither_repeat_nor_leave_out(served: Served, client: Client, topic: str) -> None:
    names = {f"{topic}.{number}" for number in range(40)}
    for name in names:
        client.publish(name, b"x")
    found: list[str] = []
    for shard in range(SHARED["delivery_shards"]):
        wire, after = served.shard(shard), ""
        while after is not None:
            page = wire.ask(Op.LIST, {"prefix": f"{topic}.", "after": after, "limit": 3})
            assert len(page["topics"]) <= 3
            found += [row["topic"] for row in page["topics"]]
            after = page["next"]
            if after == f"{topic}.2":  # one comes and one goes between two pages
                client.delete_topic(f"{topic}.1")
    assert len(found) == len(set(found))
    assert names - set(found) <= {f"{topic}.1"}


def test_the_state_of_a_topic(wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic, priority=7)
    frames = batch([b"four", b"five5"], [b"tag", None], [None, b"node"])
    wire.appended(wire.send_append(topic_id, frames, 2))
    ts = wire.fetch(topic_id).rows[-1].ts
    state = wire.ask(Op.STATE, {"topic": topic, "touch": False})
    assert state["effective_priority"] in range(7, 508), "boosted by the read a moment ago"
    expected = {
        "topic": topic,
        "topic_id": topic_id,
        "head_seq": 2,
        "earliest_seq": 1,
        "next_seq": 3,
        "evict_floor": 1,
        "count": 2,
        "bytes": 4 + 3 + 5 + 4,
        "last_write_ts": ts,
        "config": DEFAULTS | {"priority": 7},
    }
    assert {name: state[name] for name in expected} == expected
    assert state["last_read_ts"] >= ts
    configure(wire, topic, auto_priority=False)
    assert wire.state(topic)["effective_priority"] == 7


# ---- performance ----


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_only_the_class_that_waits_for_the_disk_tells_of_it(wire: Wire, topic: str, durability: str) -> None:
    topic_id = wire.open(topic, durability=durability)
    wire.append(topic_id, [b"x"])  # the first one of a topic may wait for its reserved seqs
    found = wire.append(topic_id, [b"x"], flags=MessageFlag.PERFORMANCE).performance
    assert found is not None
    assert set(found) == {"server_total_ms", "wal_append_ms", "fsync_ms", "records_scanned", "throttle_wait_ms"}
    assert (found["fsync_ms"] > 0) == (durability == "fsync")
    assert wire.append(topic_id, [b"x"]).performance is None


# ---- bounded resources ----


def test_never_more_topics_than_allowed_however_many_try(tmp_path: Path) -> None:
    with Daemon(tmp_path, **{**SHARED, "max_topics": 6}) as daemon:
        made: list[str] = []
        limits: list[str] = []

        def create(worker: int) -> None:
            with daemon.client(timeout=0.5) as client:
                for number in range(10):
                    name = f"t{worker}.{number}"
                    try:
                        client.publish(name, b"x")
                        made.append(name)
                    except Throttled as exc:
                        limits.append(exc.detail["limit"])

        workers = [threading.Thread(target=create, args=(worker,)) for worker in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(60.0)
        client = daemon.client(timeout=0.5)
        # Exactly so many, wherever their names belong.
        assert len(made) == 6 and set(limits) == {"max_topics"}
        assert {row.topic for row in client.topics()} == set(made)
        # What exists goes on, and a place that is free again is used.
        for name in made:
            client.configure(name, ttl_ms=60_000)
            client.publish(name, b"y")
        client.delete_topic(made[0])
        assert client.publish(made[0], b"new") == 1


def test_one_shard_may_hold_all_that_is_allowed(tmp_path: Path) -> None:
    with Daemon(tmp_path, **{**SHARED, "max_topics": 6, "max_total_bytes": "2MiB"}) as daemon:
        client = daemon.client(timeout=0.5)
        names = [name for n in range(100) if delivery_shard(name := f"t{n}", SHARDS) == 0]
        for name in names[:6]:
            client.publish(name, b"x")
        with pytest.raises(Throttled) as refused:
            client.publish(names[6], b"x")
        assert (refused.value.detail["limit"], refused.value.detail["max"]) == ("max_topics", 6)
        client.publish_many(names[0], [b"x" * 1000] * 1_500)
        with pytest.raises(Throttled) as refused:
            client.publish_many(names[0], [b"x" * 1000] * 1_500)
        assert (refused.value.detail["limit"], refused.value.detail["max"]) == ("max_total_bytes", 2 << 20)
        # A shard that was killed is counted as before, also while it is away.
        daemon.wait_replaced("dlv-00", daemon.kill("dlv-00"))
        other = next(name for n in range(100) if delivery_shard(name := f"t{n}", SHARDS) == 1)
        with pytest.raises(Throttled):
            client.publish(other, b"x")


def test_all_stored_bytes_together_are_bounded(tmp_path: Path) -> None:
    with Daemon(tmp_path, **{**SHARED, "max_total_bytes": "2MiB"}) as daemon:
        client = daemon.client(timeout=0.5)
        stored = 0
        with pytest.raises(Throttled) as refused:
            for _ in range(100):
                client.publish_many("big", [b"x" * 1000] * 100)
                stored += 100
        assert refused.value.detail["limit"] == "max_total_bytes"
        state = client.state("big")
        assert (state.count, state.head_seq) == (stored, stored)
        client.delete("big", before_seq=stored + 1)

        def writes() -> bool:
            try:
                return client.publish("big", b"x") == stored + 1
            except Throttled:
                return False

        wait_until(writes, "the freed bytes to count")


def test_writes_under_way_are_bounded_per_connection(tmp_path: Path) -> None:
    with Daemon(tmp_path, **{**SHARED, "max_inflight_per_connection": 5}) as daemon:
        wire = Wire(daemon.run.delivery_socket(0))
        name = next(n for n in (f"t{i}" for i in range(50)) if _owned(wire, n))
        topic_id = wire.open(name, durability="fsync")
        stopped = [daemon.kill(f"wal-{n:02d}", signal.SIGSTOP) for n in range(int(SHARED["wal_shards"]))]
        requests = [wire.send_append(topic_id, batch([b"x" * 5000] * 100), 100) for _ in range(60)]
        wire.ask(Op.PING)  # answered behind them: all 60 were looked at while none could end
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        codes = []
        for request in requests:
            try:
                wire.appended(request)
                codes.append("ok")
            except Throttled as exc:
                assert exc.detail["limit"] == "max_inflight_per_connection"
                assert exc.detail["retry_after_ms"] > 0
                codes.append(exc.code)
        assert codes == ["ok"] * 5 + ["throttled"] * 55
        assert wire.state(name)["head_seq"] == 500, "what was refused took no seq"
        assert wire.append(topic_id, [b"x"]).count == 1, "the places are free again"


def test_changes_under_way_are_bounded(tmp_path: Path) -> None:
    with Daemon(tmp_path, **SHARED) as daemon:
        wire = Wire(daemon.run.delivery_socket(0))
        name = next(n for n in (f"t{i}" for i in range(50)) if _owned(wire, n))
        stopped = [daemon.kill(f"wal-{n:02d}", signal.SIGSTOP) for n in range(int(SHARED["wal_shards"]))]
        requests = [
            wire.send(Op.CONFIGURE, {"topic": name, "config": {"cap_records": 1 + number}})
            for number in range(ENTRIES_MAX + 50)
        ]
        ping = wire.send(Op.PING, {})
        refused = 0
        while True:  # those that were refused are answered at once, the others cannot be
            answer = wire.receive()
            if answer.request_id == ping:
                break
            assert answer.request_id in requests[-60:]
            assert answer.op == Op.ERROR
            refused += 1
        assert 50 <= refused < 60
        assert wire.ask(Op.STATE, {"topic": name})["head_seq"] == 0, "whoever only asks is answered"
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        last = wire.wait(requests[ENTRIES_MAX - 20]).map
        assert last["config"]["cap_records"] == ENTRIES_MAX - 19
        assert wire.ask(Op.CONFIGURE, {"topic": name, "config": {"cap_records": 7}})["config"]["cap_records"] == 7


def _owned(wire: Wire, name: str) -> bool:
    try:
        return bool(wire.open(name))
    except TopicdError:
        return False
