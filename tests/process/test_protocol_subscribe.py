"""SUBSCRIBE on a real daemon: every record once and in order, credit, lag and catch-up, patterns, endings."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.process.conftest import SHARDS, Served
from tests.process.wire import Fetched, Wire, batch
from tests.support.daemon import Daemon, wait_until
from topicd import limits
from topicd.errors import InvalidRequest, Throttled, TopicdError, TopicNotFound
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import CREDIT
from topicd.limits import KIB, MIB
from topicd.placement import delivery_shard

SETTINGS = {"outbox_bytes": "256KiB", "max_inflight_per_connection": 50}


@pytest.fixture
def wire(served: Served, topic: str) -> Wire:
    return served.wire(topic)


def follow(wire: Wire, subscription: int, last_seq: int) -> list[Fetched]:
    """Pushes of one topic up to the one with that seq."""
    found = []
    while not found or found[-1].next_from_seq < last_seq:
        found.append(wire.pushed(subscription))
    return found


def seqs(pushes: list[Fetched]) -> list[int]:
    return [seq for push in pushes for seq in push.seqs]


# ---- every record once ----


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_what_was_and_what_comes_arrives_once_and_in_order(served: Served, topic: str, durability: str) -> None:
    writer, reader = served.wire(topic), served.wire(topic)
    topic_id = writer.open(topic, durability=durability)
    writer.append(topic_id, [b"old"] * 50)
    subscription = reader.subscribe([{"topic": topic}], credit=1 << 30)
    ids = [writer.send_append(topic_id, batch([b"new"] * 3), 3) for _ in range(50)]
    pushes = follow(reader, subscription, 200)
    for request_id in ids:
        writer.appended(request_id)
    assert seqs(pushes) == list(range(1, 201))
    assert all(push.topic_id == topic_id for push in pushes)
    assert pushes[-1].caught_up


def test_a_subscription_begins_where_it_is_told(served: Served, wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic)
    wire.append(topic_id, [b"%d" % n for n in range(10)])
    rows = wire.read_all(topic_id)
    places = {
        "start": ({}, 1),
        "seq": ({"from_seq": 4}, 5),
        "time": ({"from_ts": rows[0].ts}, 1),
        "tail": ({"tail": True}, 11),
        "future": ({"from_seq": 10}, 11),
    }
    readers = {name: served.wire(topic) for name in places}
    subs = {name: readers[name].subscribe([{"topic": topic, **where}]) for name, (where, _) in places.items()}
    wire.append(topic_id, [b"last"])
    for name, (_, first) in places.items():
        assert seqs(follow(readers[name], subs[name], 11)) == list(range(first, 12)), name


def test_the_answer_names_the_topics_and_where_each_begins(wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic)
    wire.append(topic_id, [b"x"] * 3)
    answer = wire.ask(Op.SUBSCRIBE, {"topics": [{"topic": topic, "from_seq": 2}], "credit": 1})
    assert answer == {"topics": [{"topic": topic, "topic_id": topic_id, "from_seq": 2, "head_seq": 3}]}


def test_one_subscription_follows_many_topics(served: Served, topic: str) -> None:
    names = [name for n in range(40) if delivery_shard(name := f"{topic}.{n}", SHARDS) == 0]
    writer, reader = served.shard(0), served.shard(0)
    ids = {writer.open(name): name for name in names}
    subscription = reader.subscribe([{"topic": name} for name in names])
    for topic_id in ids:
        writer.append(topic_id, [b"a", b"b"])
    got: dict[int, list[int]] = {topic_id: [] for topic_id in ids}
    while not all(len(found) == 2 for found in got.values()):
        push = reader.pushed(subscription)
        got[push.topic_id] += push.seqs
    assert all(found == [1, 2] for found in got.values())


def test_several_subscriptions_on_one_connection_do_not_mix(served: Served, wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic)
    whole = wire.subscribe([{"topic": topic}])
    odd = wire.subscribe([{"topic": topic}], match="odd")
    writer = served.wire(topic)
    writer.appended(writer.send_append(topic_id, batch([b"x"] * 10, [b"odd", b"even"] * 5), 10))
    assert seqs(follow(wire, whole, 10)) == list(range(1, 11))
    assert seqs(follow(wire, odd, 9)) == [1, 3, 5, 7, 9]


def test_filters_leave_out_silently(served: Served, wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic)
    subscription = wire.subscribe([{"topic": topic}], nodes=["me"], match=["tag", "Glob", "a*"])
    writer = served.wire(topic)
    frames = batch([b"1", b"2", b"3", b"4"], [b"a", b"b", b"ab", b"a"], [None, None, b"you", b"me"])
    writer.appended(writer.send_append(topic_id, frames, 4))
    writer.appended(writer.send_append(topic_id, batch([b"5"], b"a"), 1))
    assert seqs(follow(wire, subscription, 5)) == [1, 3, 5]


def test_a_subscriber_behind_the_floor_gets_a_tombstone_first(wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic, cap_records=5)
    wire.append(topic_id, [b"x"] * 5)
    wire.append(topic_id, [b"x"] * 5)
    subscription = wire.subscribe([{"topic": topic}])
    push = wire.pushed(subscription)
    assert push.tombstone is not None
    assert (push.tombstone["gap_from"], push.tombstone["gap_to"], push.tombstone["reason"]) == (1, 5, "cap")
    assert push.seqs == [6, 7, 8, 9, 10]


# ---- credit ----


def test_without_credit_nothing_is_pushed_and_with_it_the_rest_comes(served: Served, wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic)
    subscription = wire.subscribe([{"topic": topic}], credit=1)
    writer = served.wire(topic)
    writer.append(topic_id, [b"first"])
    assert wire.pushed(subscription).seqs == [1]  # any credit at all buys one push
    for _ in range(20):
        writer.append(topic_id, [bytes(10_000)])
    assert wire.quiet(0.2)
    wire.credit(subscription, 1 << 20)
    assert seqs(follow(wire, subscription, 21)) == list(range(2, 22))


def test_credit_counts_the_bytes_of_frames(wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic)
    wire.append(topic_id, [bytes(100 * KIB)] * 100)
    size = 1 * MIB
    subscription = wire.subscribe([{"topic": topic}], credit=size)
    got = 0
    while not wire.quiet(0.3):
        got += len(wire.pushed(subscription).frames)
    assert size <= got <= size + 256 * KIB + 110 * KIB  # the push that used it up may exceed it
    wire.credit(subscription, 1 << 30)
    pushes = follow(wire, subscription, 100)
    assert pushes[-1].caught_up


def test_a_lagged_subscriber_costs_nothing_and_catches_up_from_the_log(served: Served, topic: str) -> None:
    """It gets far less than was written meanwhile, and later all of it; whoever reads is not slowed down."""
    writer, slow, quick = served.wire(topic), served.wire(topic), served.wire(topic)
    topic_id = writer.open(topic)
    lagging = slow.subscribe([{"topic": topic}], credit=1 << 30)
    following = quick.subscribe([{"topic": topic}], credit=1 << 30)
    before = _shard(served, topic)
    for _ in range(60):
        writer.append(topic_id, [bytes(100 * KIB)] * 10)
        quick.pushed(following)
    assert seqs(follow(quick, following, 600))[-1] == 600
    after = wait_until(lambda: (s := _shard(served, topic))["stats"]["lagged"] > before["stats"]["lagged"] and s, "lag")
    assert after["pid"] == before["pid"]
    assert after["rss"] - before["rss"] < 45 * MIB  # 60 MiB were written; the tail and its checkpoint are in it
    assert seqs(follow(slow, lagging, 600)) == list(range(1, 601))


def _shard(served: Served, topic: str) -> dict[str, object]:
    name = f"dlv-{delivery_shard(topic, SHARDS):02d}"
    rows: list[dict[str, object]] = served.supervisor().ask(Op.STATUS)["processes"]
    return next(row for row in rows if row["name"] == name)


def test_credit_for_a_subscription_that_is_not_there_is_ignored(wire: Wire) -> None:
    wire.credit(4711, 1000)
    assert wire.ask(Op.PING) == {}


@pytest.mark.parametrize("size", [0, CREDIT.size - 1, CREDIT.size + 1])
def test_credit_of_another_size_is_refused(wire: Wire, size: int) -> None:
    with pytest.raises(InvalidRequest):
        wire.wait(wire.send(Op.CREDIT, bytes(size))).checked(Op.CREDIT)


# ---- patterns ----


def test_a_pattern_follows_topics_that_are_and_that_come(served: Served, topic: str) -> None:
    names = [name for n in range(40) if delivery_shard(name := f"{topic}.{n}", SHARDS) == 0]
    old, new, outside = names[0], names[1], f"other-{topic}"
    writer, reader = served.shard(0), served.shard(0)
    old_id = writer.open(old)
    writer.append(old_id, [b"old"])
    subscription = reader.subscribe([], pattern=f"{topic}.*")
    assert reader.pushed(subscription).topic_id == old_id
    new_id = writer.open(new)
    notice = reader.wait(subscription)
    assert (notice.op, notice.map) == (Op.NOTICE, {"event": "topic", "topic": new, "topic_id": new_id})
    writer.append(new_id, [b"1", b"2"])
    push = reader.pushed(subscription)
    assert (push.topic_id, push.seqs) == (new_id, [1, 2])
    if delivery_shard(outside, SHARDS) == 0:
        writer.append(writer.open(outside), [b"x"])
    assert reader.quiet(0.1)


@pytest.mark.slow
def test_a_pattern_may_match_very_many_topics(tmp_path: Path) -> None:
    """The answer names them all, and is then longer than other answers may be."""
    names = [f"{'x' * 60}-{n}" for n in range(12_000)]
    with Daemon(tmp_path, wal_shards=1, delivery_shards=1) as daemon, Wire(daemon.run.delivery_socket(0)) as wire:
        for first in range(0, len(names), 500):
            fields = [{"topic": name, "config": {"durability": "memory"}} for name in names[first : first + 500]]
            while fields:  # topic ids come in blocks: who asks faster than they come is throttled
                sent = [(body, wire.send(Op.OPEN, body)) for body in fields]
                fields = [body for body, request_id in sent if not _made(wire, request_id)]
        reply = wire.wait(wire.send(Op.SUBSCRIBE, {"pattern": "x*", "credit": 1})).checked(Op.SUBSCRIBE)
        assert len(reply.body) > limits.MAX_CONTROL_MESSAGE
        assert {row["topic"] for row in reply.map["topics"]} == set(names)


def _made(wire: Wire, request_id: int) -> bool:
    try:
        wire.wait(request_id).checked(Op.OPEN)
    except Throttled:
        return False
    return True


@pytest.mark.parametrize("pattern", ["[" * 255, "*a" * 127, "?" * 255, "[!]]" * 60, "*" * 255, "[z-a]", "a.>.b", "..*"])
def test_a_strange_pattern_is_refused(wire: Wire, topic: str, pattern: str) -> None:
    wire.open(topic)
    with pytest.raises(InvalidRequest, match=r"pattern|name"):
        wire.subscribe([], pattern=pattern)


def test_a_pattern_of_many_stars_takes_no_time(wire: Wire, topic: str) -> None:
    wire.open(topic)
    began = time.monotonic()
    wire.subscribe([], pattern=".".join("*" * 128))
    assert time.monotonic() - began < 5.0


def test_a_pattern_longer_than_any_name_is_refused(wire: Wire) -> None:
    for pattern in ("*" * 256, "[" * 10_000):
        with pytest.raises(InvalidRequest):
            wire.subscribe([], pattern=pattern)


# ---- endings ----


def test_a_deleted_topic_is_announced_and_its_recreation_is_another_topic(
    served: Served, wire: Wire, topic: str
) -> None:
    topic_id = wire.open(topic)
    subscription = wire.subscribe([{"topic": topic}])
    other = served.wire(topic)
    other.ask(Op.DELETE_TOPIC, {"topic": topic})
    notice = wire.wait(subscription)
    assert (notice.op, notice.map) == (Op.NOTICE, {"event": "topic_deleted", "topic": topic, "topic_id": topic_id})
    other.append(other.open(topic), [b"x"])
    assert wire.quiet(0.1)


def test_after_unsubscribe_nothing_comes(served: Served, wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic)
    subscription = wire.subscribe([{"topic": topic}])
    assert wire.ask(Op.UNSUBSCRIBE, {"subscription": subscription}) == {}
    served.wire(topic).append(topic_id, [b"x"])
    assert wire.quiet(0.1)
    assert wire.ask(Op.UNSUBSCRIBE, {"subscription": subscription}) == {}


@pytest.mark.parametrize("body", [{}, {"subscription": [1]}, {"subscription": "1"}, {"subscription": -1}])
def test_an_unsubscribe_of_nothing_is_refused(wire: Wire, topic: str, body: dict[str, object]) -> None:
    wire.open(topic)
    wire.subscribe([{"topic": topic}])
    with pytest.raises(InvalidRequest):
        wire.ask(Op.UNSUBSCRIBE, body)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"topics": []},
        {"topics": {}},
        {"topics": ["name"]},
        {"topics": [{"topic": 5}]},
        {"topics": [{"topic": "x", "from_seq": -1}]},
        {"topics": [{"topic": "x", "tail": 1}]},
        {"topics": [{"topic": "x"}], "credit": 0},
        {"topics": [{"topic": "x"}], "credit": 2**31},
        {"topics": [{"topic": "x"}] * 2},
        {"topics": [{"topic": "x"}] * (limits.SUBSCRIPTION_TOPICS_MAX + 1)},
        {"pattern": 5},
        {"pattern": "x", "match": 5},
        {"pattern": "x", "nodes": 5},
    ],
)
def test_a_subscription_that_cannot_be_is_refused(served: Served, body: dict[str, object]) -> None:
    wire = served.wire("x")
    wire.open("x")
    with pytest.raises(InvalidRequest):
        wire.ask(Op.SUBSCRIBE, body)


def test_a_topic_that_is_not_there_cannot_be_followed(wire: Wire, topic: str) -> None:
    with pytest.raises(TopicNotFound):
        wire.subscribe([{"topic": topic}])


def test_a_subscription_id_is_used_once_at_a_time(wire: Wire, topic: str) -> None:
    wire.open(topic)
    subscription = wire.subscribe([{"topic": topic}])
    wire._next = subscription - 1
    with pytest.raises(InvalidRequest, match="exists already"):
        wire.subscribe([{"topic": topic}])


def test_the_subscriptions_of_a_connection_are_bounded(wire: Wire, topic: str) -> None:
    wire.open(topic)
    for _ in range(SETTINGS["max_inflight_per_connection"]):  # type: ignore[call-overload]
        wire.subscribe([{"topic": topic}])
    with pytest.raises(Throttled):
        wire.subscribe([{"topic": topic}])


def test_subscribers_that_leave_are_forgotten(served: Served, wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic)
    for _ in range(30):
        reader = served.wire(topic)
        reader.subscribe([{"topic": topic}], pattern="*")
        reader.close()
    wait_until(lambda: _shard(served, topic)["stats"]["sessions"] == 1, "the sessions to end")  # type: ignore[index]
    wire.append(topic_id, [b"x"])


def test_errors_have_a_code_of_the_contract(wire: Wire) -> None:
    with pytest.raises(TopicdError) as caught:
        wire.ask(Op.SUBSCRIBE, {"topics": [{"topic": "../etc"}]})
    assert (caught.value.code, caught.value.retriable) == ("invalid_request", False)
