"""Bytes cut into messages: whatever arrives, this connection is answered or closed, and nobody else notices."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

import pytest

from tests.unit.delivery.desk import Desk, Line, append_body
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import ANSWER, APPEND, COPIED, CREDIT, FLAG_COPY, map_message, message
from topicd.limits import KIB, MAX_CONTROL_MESSAGE, MAX_MESSAGE, MIB
from topicd.shards.delivery.sessions import session as module
from topicd.shards.delivery.topic.topic import Topic
from topicd.tokens import Rights

APPENDED = Op.APPEND | ANSWER


@pytest.fixture
def topic(desk: Desk) -> Topic:
    return desk.topic(durability="memory")


@pytest.fixture
def line(desk: Desk) -> Line:
    return desk.line()


def pings(count: int, first: int = 100) -> bytes:
    return b"".join(map_message(Op.PING, first + n, {}) for n in range(count))


def codes(line: Line) -> list[str]:
    return [answer.map()["code"] for answer in line.take(Op.ERROR)]


# ---- cutting ----


@pytest.mark.parametrize("seed", range(5))
def test_messages_come_whole_whatever_the_pieces(desk: Desk, topic: Topic, line: Line, seed: int) -> None:
    chance = random.Random(seed)
    stream, number, appends = b"", 0, 0
    for request in range(1, 60):
        if chance.random() < 0.5:
            stream += map_message(Op.PING, request, {})
            continue
        number, appends = number + 1, appends + 1
        size = chance.choice([1, 100, 10_000])
        stream += message(Op.APPEND, request, append_body(topic.id, [bytes(size)], producer=7, number=number))
    while stream:
        size = chance.choice([1, 7, 500, 30_000])
        line.feed(stream[:size])
        stream = stream[size:]
        desk.settle()
    assert sorted(answer.request_id for answer in line.answers) == list(range(1, 60))
    assert all(answer.op & ANSWER and answer.op != Op.ERROR for answer in line.answers)
    assert topic.contents.count == appends


@pytest.mark.parametrize(
    ("length", "op"),
    [(0, Op.PING), (5, Op.PING), (MAX_CONTROL_MESSAGE + 1, Op.PING), (MAX_MESSAGE + 1, Op.APPEND), (2**32 - 1, 0)],
)
def test_a_length_that_cannot_be_closes_the_connection(desk: Desk, line: Line, length: int, op: int) -> None:
    other = desk.line()
    line.feed(length.to_bytes(4, "little") + bytes([op, 0]) + bytes(4))
    assert (line.closing, codes(line)) == (True, ["invalid_request"])
    assert other.ask(Op.PING) == {}


def test_a_length_that_is_only_claimed_costs_nothing(desk: Desk, line: Line) -> None:
    line.feed(MAX_MESSAGE.to_bytes(4, "little") + bytes([Op.APPEND, 0]) + bytes(4))
    assert len(line.session._buffer) <= 2 * MIB
    line.feed(bytes(3 * MIB))
    assert len(line.session._buffer) <= 8 * MIB


@pytest.mark.parametrize("seed", range(20))
def test_noise_gets_answers_or_an_end(desk: Desk, topic: Topic, line: Line, seed: int) -> None:
    chance, other = random.Random(seed), desk.line()
    for _ in range(30):
        op = chance.choice([*Op, chance.randrange(256)])
        body = chance.randbytes(chance.choice([0, 4, 28, 60]))
        line.feed(message(op, chance.randrange(2**32), body, chance.randrange(256)))
        desk.settle()
    line.feed(chance.randbytes(200))
    desk.settle()
    assert other.ask(Op.PING) == {}
    assert topic.contents.count == 0


def test_a_fault_of_our_own_ends_one_connection(
    desk: Desk, line: Line, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    other = desk.line()
    with monkeypatch.context() as patch:
        patch.setattr(module, "dispatch", lambda call, body: 1 / 0)
        line.feed(pings(1))
    assert (line.closing, codes(line)) == (True, ["internal"])
    assert other.ask(Op.PING) == {}
    assert any(record.exc_info for record in caplog.records)


# ---- turns ----


def test_one_connection_does_not_keep_the_loop(desk: Desk, line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TURN_S", 0.0)
    line.feed(pings(5))
    assert len(line.answers) == 1
    assert not line.reading
    desk.settle()
    assert [answer.request_id for answer in line.answers] == [100, 101, 102, 103, 104]
    assert line.reading


def test_one_that_does_not_read_is_not_read_from(desk: Desk, line: Line) -> None:
    line.session.pause_writing()
    assert not line.reading
    line.session.resume_writing()
    desk.settle()
    assert line.reading
    assert line.ask(Op.PING) == {}


def test_writers_wait_while_memory_is_full(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(checkpoint_bytes=64 * KIB)
    topic, line = desk.topic(durability="memory"), desk.line()
    desk.parts.backlog.tail_bytes = 5 * 64 * KIB
    line.send(Op.APPEND, append_body(topic.id, [b"x"]))
    desk.settle()
    assert not line.reading
    desk.parts.backlog.tail_bytes = 0
    desk.parts.pressure.wake_writers()
    desk.settle()
    assert line.reading
    assert len(line.take(APPENDED)) == 1


def test_a_connection_that_is_lost_while_it_waits_is_forgotten(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(checkpoint_bytes=64 * KIB)
    topic, line = desk.topic(durability="memory"), desk.line()
    desk.parts.backlog.tail_bytes = 5 * 64 * KIB
    line.send(Op.APPEND, append_body(topic.id, [b"x"]))
    line.session.connection_lost(None)
    assert desk.parts.pressure._waiting == set()
    assert line.session not in desk.parts.connections.open


# ---- appends ----


def test_what_is_under_way_on_one_connection_is_bounded(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(max_inflight_per_connection=3)
    topic, line = desk.topic(durability="fsync"), desk.line()
    for number in range(1, 6):
        line.send(Op.APPEND, append_body(topic.id, [b"x"], producer=7, number=number))
    assert line.session.in_flight == 3
    assert codes(line) == ["throttled", "throttled"]
    assert len(line.take(APPENDED)) == 3
    assert line.session.in_flight == 0


def test_a_refused_append_leaves_nothing_under_way(desk: Desk, line: Line) -> None:
    line.send(Op.APPEND, append_body(99, [b"x"]))
    assert (codes(line), line.session.in_flight) == (["topic_not_found"], 0)


def test_appends_that_follow_each_other_are_one_run(desk: Desk, topic: Topic, line: Line) -> None:
    sent = [message(Op.APPEND, n, append_body(topic.id, [b"%d" % n], producer=7, number=n)) for n in range(1, 50)]
    line.feed(b"".join(sent))
    desk.settle()
    assert [answer.request_id for answer in line.take(APPENDED)] == list(range(1, 50))
    assert desk.parts.counters.appends < 10


@pytest.mark.parametrize(
    ("scopes", "prefixes", "source", "code"),
    [
        ({"write"}, (), None, None),
        ({"read"}, (), None, "forbidden"),
        ({"write"}, ("other.",), None, "forbidden"),
        ({"write", "read"}, (), "orders", None),
        ({"write"}, (), "orders", "forbidden"),
        ({"write", "read"}, ("orders",), "secret", "forbidden"),
    ],
)
def test_a_token_writes_and_copies_only_what_it_may(
    desk: Desk,
    topic: Topic,
    line: Line,
    scopes: set[str],
    prefixes: tuple[str, ...],
    source: str | None,
    code: str | None,
) -> None:
    topics = {"orders": topic, "secret": desk.topic("secret", durability="memory")}
    for one in topics.values():
        desk.write(one, [b"x"])
    line.session.rights = Rights("token", frozenset(scopes), prefixes)
    if source is None:
        line.send(Op.APPEND, append_body(topic.id, [b"y"], producer=7, number=1))
    else:
        body = APPEND.pack(topic.id, 0, 0, 1) + COPIED.pack(topics[source].id, 0, 1)
        line.send(Op.APPEND, body, FLAG_COPY)
    assert codes(line) == ([code] if code else [])
    assert topic.contents.count == (1 if code else 2)


@pytest.mark.parametrize("op", [Op.OPEN, Op.CONFIGURE])
def test_a_token_sends_dead_jobs_only_to_topics_that_it_reaches(desk: Desk, line: Line, op: Op) -> None:
    line.session.rights = Rights("token", frozenset({"admin"}), ("orders",))
    config = {"type": "queue", "dead_letter": "secret"}
    line.send(op, {"topic": "orders.jobs", "config": config})
    desk.settle()
    assert (codes(line), desk.parts.catalog.find("orders.jobs")) == (["forbidden"], None)


def test_refusals_of_one_token_do_not_fill_the_log(
    desk: Desk, topic: Topic, line: Line, caplog: pytest.LogCaptureFixture
) -> None:
    line.session.rights = Rights("token", frozenset({"read"}))
    with caplog.at_level(logging.WARNING):
        for _ in range(30):
            line.send(Op.APPEND, append_body(topic.id, [b"x"]))
    assert len([record for record in caplog.records if record.message == "request refused"]) == 10
    assert codes(line) == ["forbidden"] * 30


def test_before_a_hello_nothing_is_taken(desk: Desk, topic: Topic) -> None:
    line = desk.line(hello=False)
    line.send(Op.APPEND, append_body(topic.id, [b"x"], producer=7, number=1))
    line.send(Op.CREDIT, CREDIT.pack(1, 1))
    assert codes(line) == ["invalid_request"] * 2
    assert topic.seqs.head == 0


def test_credit_of_another_size_is_refused_and_for_nobody_is_ignored(desk: Desk, line: Line) -> None:
    line.send(Op.CREDIT, b"\x01")
    line.send(Op.CREDIT, CREDIT.pack(99, 1))
    assert codes(line) == ["invalid_request"]
    assert not line.closing


def test_a_connection_that_is_lost_leaves_nothing_behind(desk: Desk, topic: Topic, line: Line) -> None:
    line.send(Op.SUBSCRIBE, {"topics": [{"topic": "orders"}], "pattern": "x*"})
    desk.settle()
    line.session.connection_lost(None)
    assert (topic.followers, line.session.subscriptions) == (set(), {})
    assert desk.parts.connections.open == set()
    assert desk.topic("x1").followers == set()
