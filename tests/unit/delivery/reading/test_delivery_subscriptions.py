"""Records pushed as they come: every one once and in order, as far as the credit reaches."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.delivery.desk import Desk, Line
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import CREDIT, FETCHED
from topicd.limits import MIB
from topicd.shards.delivery.reading import subscriptions
from topicd.shards.delivery.topic.contents import Damaged
from topicd.shards.delivery.topic.topic import Topic


@pytest.fixture
def topic(desk: Desk) -> Topic:
    return desk.topic(durability="memory")


@pytest.fixture
def line(desk: Desk) -> Line:
    return desk.line()


def subscribe(line: Line, topic: Topic, **more: Any) -> int:
    return line.send(Op.SUBSCRIBE, {"topics": [{"topic": topic.name}], **more})


def grant(line: Line, sub_id: int, credit: int) -> None:
    line.send(Op.CREDIT, CREDIT.pack(sub_id, credit))


def pushed(line: Line) -> list[bytes]:
    return [data for push in line.take(Op.PUSH) for data in push.datas()]


@pytest.mark.parametrize("seed", range(5))
def test_every_record_once_and_in_order_whatever_the_credit(desk: Desk, line: Line, topic: Topic, seed: int) -> None:
    chance = random.Random(seed)
    sent, got = [], []
    sub_id = subscribe(line, topic, credit=200)
    for number in range(60):
        batch = [b"%d-%d" % (number, n) for n in range(chance.randint(1, 4))]
        desk.write(topic, batch)
        sent += batch
        if chance.random() < 0.4:
            grant(line, sub_id, chance.choice([1, 100, 400]))
        got += pushed(line)
    for _ in range(100):  # what was overdrawn comes first
        grant(line, sub_id, 300)
        got += pushed(line)
    assert got == sent


def test_without_credit_nothing_is_pushed_and_nothing_is_held(desk: Desk, line: Line, topic: Topic) -> None:
    sub_id = subscribe(line, topic, credit=1)
    desk.write(topic, [bytes(1000)])
    assert len(pushed(line)) == 1  # the credit may be overdrawn by one push
    for _ in range(5):
        desk.write(topic, [bytes(1000)])
    assert pushed(line) == []
    assert line.session._out_bytes == 0
    assert desk.parts.counters.lagged == 1  # once, however much comes
    grant(line, sub_id, 10_000)
    assert len(pushed(line)) == 5
    [feed] = line.session.subscriptions[sub_id].feeds.values()
    assert not feed.behind


def test_one_that_does_not_read_costs_a_cursor_and_nobody_else(desk: Desk, line: Line, topic: Topic) -> None:
    other = desk.line()
    subscribe(line, topic)
    subscribe(other, topic)
    line.session.pause_writing()
    for n in range(3):
        desk.write(topic, [b"%d" % n])
    assert (pushed(line), pushed(other)) == ([], [b"0", b"1", b"2"])
    line.session.resume_writing()
    assert pushed(line) == [b"0", b"1", b"2"]


def test_lagging_again_is_counted_again(desk: Desk, line: Line, topic: Topic) -> None:
    sub_id = subscribe(line, topic, credit=1)
    for _ in range(2):
        desk.write(topic, [bytes(100)])
        desk.write(topic, [bytes(100)])
        grant(line, sub_id, 1000)
        pushed(line)
        line.session.subscriptions[sub_id].credit = 1
    assert desk.parts.counters.lagged == 2


def test_what_a_cap_took_is_told_by_a_tombstone(desk: Desk, line: Line) -> None:
    topic = desk.topic("capped", durability="memory", cap_records=2)
    sub_id = subscribe(line, topic, credit=1)
    for n in range(6):
        desk.write(topic, [b"%d" % n])
    grant(line, sub_id, 1000)
    pushes = line.take(Op.PUSH)
    assert [data for push in pushes for data in push.datas()] == [b"0", b"4", b"5"]
    assert desk.parts.counters.tombstones == 1


def test_a_long_catch_up_leaves_the_loop_to_others(
    desk: Desk, line: Line, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "PUSH_BYTES", 100)
    for _ in range(30):
        desk.write(topic, [bytes(90)])
    soon: list[Callable[[], None]] = []
    monkeypatch.setattr(desk.parts.pushing, "call_soon", soon.append)
    subscribe(line, topic)
    turns = []
    while soon:
        soon.pop(0)()
        assert len(soon) <= 1
        turns.append(sum(answer.op == Op.PUSH for answer in line.answers))
        line.answers = [answer for answer in line.answers if answer.op != Op.PUSH]
    assert turns == [8, 8, 8, 6]


def test_the_end_of_a_topic_is_told_and_the_others_go_on(desk: Desk, line: Line, topic: Topic) -> None:
    other = desk.topic("other", durability="memory")
    sub_id = line.send(Op.SUBSCRIBE, {"topics": [{"topic": "orders"}, {"topic": "other"}]})
    desk.parts.catalog.delete(topic, if_empty=False, done=lambda topic, error: None)
    [notice] = line.take(Op.NOTICE)
    assert notice.map() == {"event": "topic_deleted", "topic": "orders", "topic_id": topic.id}
    desk.write(other, [b"x"])
    assert pushed(line) == [b"x"]
    assert list(line.session.subscriptions[sub_id].feeds) == [other.id]


def test_damage_ends_one_topic_of_it_with_a_notice(desk: Desk, line: Line, topic: Topic) -> None:
    other = desk.topic("other", durability="memory")
    desk.write(topic, [b"a"])
    topic.contents.damaged = [Damaged(1, 1, "file")]
    line.send(Op.SUBSCRIBE, {"topics": [{"topic": "orders"}, {"topic": "other"}]})
    desk.write(other, [b"x"])
    [notice] = line.take(Op.NOTICE)
    assert (notice.map()["event"], notice.map()["code"]) == ("error", "storage_corrupt")
    assert pushed(line) == [b"x"]
    assert topic.followers == set()


def test_records_that_a_filter_leaves_out_cost_no_push(desk: Desk, line: Line, topic: Topic) -> None:
    sub_id = subscribe(line, topic, match="yes")
    desk.write(topic, [b"a"], tags=b"no")
    desk.write(topic, [b"b"], tags=b"yes")
    [push] = line.take(Op.PUSH)
    assert (push.datas(), FETCHED.unpack_from(push.body)[1]) == ([b"b"], 2)
    desk.write(topic, [b"c"], tags=b"no")
    [feed] = line.session.subscriptions[sub_id].feeds.values()
    assert (line.take(Op.PUSH), feed.cursor) == ([], 3)


def test_closing_leaves_no_follower(desk: Desk, line: Line, topic: Topic) -> None:
    sub_id = subscribe(line, topic)
    assert len(topic.followers) == 1
    line.session.subscriptions[sub_id].close()
    assert topic.followers == set()


def test_who_is_pushed_counts_as_a_reader(desk: Desk, line: Line, topic: Topic) -> None:
    subscribe(line, topic)
    assert topic.last_read_ms == 0
    desk.write(topic, [b"x"])
    assert topic.last_read_ms == desk.clock.now_ms()


def test_topics_of_one_subscription_take_turns(
    desk: Desk, line: Line, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long catch-up of one does not keep the other waiting until it is over."""
    monkeypatch.setattr(subscriptions, "PUSH_BYTES", 100)
    other = desk.topic("other", durability="memory")
    for _ in range(40):
        desk.write(topic, [bytes(90)])
    desk.write(other, [b"x"])
    line.send(Op.SUBSCRIBE, {"topics": [{"topic": topic.name}, {"topic": "other"}]})
    order = [push.datas()[0] for push in line.take(Op.PUSH)]
    assert len(order) == 41
    assert order.index(b"x") == 2


def lag(desk: Desk, seconds: int) -> None:
    for _ in range(seconds):
        desk.clock.advance(1_000)
        desk.parts.pushing.tell_lagging(desk.clock.monotonic())


def test_one_that_lags_for_five_seconds_is_told_once(desk: Desk, line: Line, topic: Topic) -> None:
    sub_id = subscribe(line, topic, credit=1)
    for _ in range(3):
        desk.write(topic, [bytes(100)])
    lag(desk, 5)
    assert line.take(Op.NOTICE) == []
    lag(desk, 10)
    [notice] = line.take(Op.NOTICE)
    expected = {"event": "lagged", "topic": "orders", "topic_id": topic.id, "from_seq": 1, "head_seq": 3}
    assert notice.map() == expected
    assert desk.parts.figures.page()["lagging"] == 1
    grant(line, sub_id, 10_000)
    assert len(pushed(line)) == 3
    assert desk.parts.pushing.lagging == {}


def test_one_that_leaves_while_it_lags_is_forgotten(desk: Desk, line: Line, topic: Topic) -> None:
    sub_id = subscribe(line, topic, credit=1)
    for _ in range(3):
        desk.write(topic, [bytes(100)])
    line.send(Op.UNSUBSCRIBE, {"subscription": sub_id})
    assert desk.parts.pushing.lagging == {}


def test_subscriptions_of_one_connection_take_turns(
    open_desk: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = open_desk(ring_bytes=2 * MIB)
    topics = [desk.topic(name, durability="memory") for name in ("hot", "quiet", "third")]
    for topic in topics:
        for _ in range(20):
            desk.write(topic, [bytes(250_000)])
    line = desk.line()
    subs = [subscribe(line, topic, credit=1 << 30) for topic in topics]
    line.session.pause_writing()
    take, got = line.write, Counter[int]()

    def write(data: Any) -> None:
        take(data)
        line.session.pause_writing()  # what was pushed fills the buffer of the transport

    monkeypatch.setattr(line, "write", write)
    for _ in range(30):
        line.session.resume_writing()
        got.update(push.request_id for push in line.take(Op.PUSH))
    assert [got[sub] for sub in subs] == [pytest.approx(10, abs=1)] * 3
