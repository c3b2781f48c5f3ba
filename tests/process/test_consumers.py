"""Named durable consumers: they go on where they acknowledged, whatever happened to them or to the daemon; what all of
them acknowledged may be freed."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.process.conftest import Served
from tests.process.wire import Wire
from tests.support.daemon import Daemon
from tests.support.timewarp import ENVIRON, Warp, segment_files
from topicd.client.blocking.client import Client
from topicd.client.core.records import Record
from topicd.errors import Conflict, ConsumerNotFound, InvalidRequest, Throttled, TopicNotFound, WrongShard
from topicd.ipc.protocol.messages import Op
from topicd.shards.delivery.topic.consumers import CONSUMERS_MAX

SETTINGS = {"segment_max_records": 7, "snapshot_ms": 100, "checkpoint_ms": 86_400_000}
__all__ = ["ENVIRON"]  # of the module's daemon


@pytest.fixture
def warp(module_daemon: Daemon) -> Warp:
    return Warp(module_daemon)


@pytest.fixture
def client(module_daemon: Daemon) -> Iterator[Client]:
    with module_daemon.client() as made:
        yield made


@pytest.fixture
def wire(served: Served, topic: str) -> Wire:
    return served.wire(topic)


@pytest.fixture(autouse=True)
def nothing_was_damaged(module_daemon: Daemon) -> Iterator[None]:
    yield
    assert Warp(module_daemon).damage() == 0, module_daemon.log_tail()


def take(consumer: Any, count: int) -> list[int]:
    found = [next(consumer) for _ in range(count)]
    assert all(isinstance(record, Record) for record in found)
    return [record.seq for record in found]


def restart(daemon: Daemon, how: str) -> None:
    if how == "stop":
        daemon.restart()
    else:
        daemon.kill_all()
        daemon.start().wait_ready()


def ask(wire: Wire, topic: str, action: str, name: str = "c", **fields: Any) -> dict[str, Any]:
    return wire.ask(Op[f"CONSUMER_{action.upper()}"], {"topic": topic, "name": name, **fields})


# ---- reading ahead and acknowledging ----


@pytest.mark.parametrize("how", ["stop", "crash"])
def test_a_consumer_goes_on_behind_what_it_acknowledged(client: Client, topic: str, warp: Warp, how: str) -> None:
    client.publish_many(topic, [b"%d" % n for n in range(20)])
    with client.consumer(topic, "c", auto_ack=False) as consumer:
        assert take(consumer, 10) == list(range(1, 11))
        assert consumer.unacked == 10
        assert (consumer.ack(4), consumer.unacked, consumer.lag()) == (4, 6, 16)
        with pytest.raises(InvalidRequest):
            consumer.ack(7)
    restart(warp.daemon, how)
    with client.consumer(topic, "c", auto_ack=False) as consumer:
        assert take(consumer, 2) == [5, 6]
        assert consumer.ack_to(6) == 6
        assert consumer.ack_to(3) == 6, "an acknowledgement goes forward only"


def test_consumers_are_independent(client: Client, topic: str) -> None:
    client.publish_many(topic, [b"x"] * 10)
    with (
        client.consumer(topic, "one", auto_ack=False) as one,
        client.consumer(topic, "two", "latest", auto_ack=False) as two,
        client.consumer(topic, "three", 7, auto_ack=False) as three,
    ):
        assert (take(one, 3), take(three, 2)) == ([1, 2, 3], [8, 9])
        one.ack(2)
        client.publish(topic, b"y")
        assert take(two, 1) == [11]
        two.ack()
    rows = {row.name: (row.acked_seq, row.lag) for row in client.consumers(topic)}
    assert rows == {"one": (2, 9), "two": (11, 0), "three": (7, 4)}


def test_auto_ack_acknowledges_what_was_looked_at(client: Client, topic: str) -> None:
    client.publish_many(topic, [b"x"] * 5)
    with client.consumer(topic, "c") as consumer:
        take(consumer, 3)
    assert client.consumers(topic)[0].acked_seq == 3


def test_reset_moves_a_consumer_to_a_seq_a_time_or_an_end(client: Client, topic: str, warp: Warp) -> None:
    client.publish_many(topic, [b"x"] * 3)
    warp.advance(5000)
    later = warp.now_ms()
    client.publish_many(topic, [b"y"] * 3)
    client.consumer(topic, "c", "latest").close()
    assert client.reset_consumer(topic, "c", 2) == 2
    assert client.reset_consumer(topic, "c", datetime.fromtimestamp(later / 1000, UTC)) == 3
    assert client.reset_consumer(topic, "c", "earliest") == 0
    assert client.reset_consumer(topic, "c", "latest") == 6
    with pytest.raises(Conflict):
        client.reset_consumer(topic, "c", 7)


def test_a_removed_consumer_is_new_when_it_returns(client: Client, topic: str) -> None:
    client.publish_many(topic, [b"x"] * 3)
    client.consumer(topic, "c", "latest").close()
    client.remove_consumer(topic, "c")
    assert client.consumers(topic) == []
    with pytest.raises(ConsumerNotFound):
        client.remove_consumer(topic, "c")
    with pytest.raises(ConsumerNotFound):
        client.reset_consumer(topic, "c", 0)
    with client.consumer(topic, "c", auto_ack=False) as consumer:
        assert take(consumer, 1) == [1]


def test_only_what_exists_can_be_acknowledged(wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic)
    wire.append(topic_id, [b"x"] * 3)
    with pytest.raises(ConsumerNotFound):
        ask(wire, topic, "ack", seq=1)
    assert ask(wire, topic, "open", start={"at": "earliest"})["created"]
    assert not ask(wire, topic, "open", start={"at": "latest"})["created"]
    with pytest.raises(Conflict):
        ask(wire, topic, "ack", seq=4)
    for seq in (-1, "2", None, True, 2.0):
        with pytest.raises(InvalidRequest):
            ask(wire, topic, "ack", seq=seq)
    assert ask(wire, topic, "state")["acked_seq"] == 0


@pytest.mark.parametrize(
    ("action", "fields", "error"),
    [
        ("open", {"name": ".c"}, InvalidRequest),
        ("open", {"name": ""}, InvalidRequest),
        ("open", {"name": "c" * 256}, InvalidRequest),
        ("open", {"start": {"at": "middle"}}, InvalidRequest),
        ("open", {"start": {"seq": -1}}, InvalidRequest),
        ("open", {"start": "earliest"}, InvalidRequest),
        ("open", {"start": {"seq": 1}}, Conflict),
        ("open", {"rewind": True}, InvalidRequest),
        ("ack", {"seq": "1"}, InvalidRequest),
        ("state", {"topic": "there.is.none"}, (TopicNotFound, WrongShard)),
    ],
)
def test_a_request_that_cannot_be_meant_is_refused(
    wire: Wire, topic: str, action: str, fields: dict[str, Any], error: Any
) -> None:
    wire.open(topic)
    with pytest.raises(error):
        wire.ask(Op[f"CONSUMER_{action.upper()}"], {"topic": topic, "name": "c", **fields})
    assert wire.ask(Op.CONSUMER_LIST, {"topic": topic})["consumers"] == []


def test_acknowledgements_under_way_together_only_go_forward(wire: Wire, topic: str, warp: Warp) -> None:
    topic_id = wire.open(topic)
    wire.append(topic_id, [b"x"] * 20)
    ask(wire, topic, "open")

    def send(action: str, **fields: Any) -> int:
        return wire.send(Op[f"CONSUMER_{action.upper()}"], {"topic": topic, "name": "c", **fields})

    for request in [send("ack", seq=seq) for seq in (5, 15, 10, 1)]:
        wire.wait(request).checked(Op.CONSUMER_ACK)
    assert ask(wire, topic, "state")["acked_seq"] == 15
    # Removed while an acknowledgement was under way: it does not bring the consumer back.
    removal, late = send("remove"), send("ack", seq=18)
    wire.wait(removal).checked(Op.CONSUMER_REMOVE)
    with pytest.raises(ConsumerNotFound):
        wire.wait(late).checked(Op.CONSUMER_ACK)
    # Opened twice at the same time: the first one says where it begins.
    opens = [send("open", start={"seq": seq}) for seq in (3, 9)]
    assert [wire.wait(request).checked(Op.CONSUMER_OPEN).map["acked_seq"] for request in opens] == [3, 3]
    restart(warp.daemon, "crash")
    with Wire(wire.path) as again:
        assert ask(again, topic, "state")["acked_seq"] == 3


def test_the_consumers_of_a_topic_are_bounded(wire: Wire, topic: str) -> None:
    wire.open(topic, durability="memory")
    requests = [wire.send(Op.CONSUMER_OPEN, {"topic": topic, "name": f"c{number}"}) for number in range(CONSUMERS_MAX)]
    for request in requests:
        wire.wait(request).checked(Op.CONSUMER_OPEN)
    with pytest.raises(Throttled) as refused:
        ask(wire, topic, "open", "one-more")
    assert refused.value.detail["limit"] == "consumers"
    assert not ask(wire, topic, "open", "c0")["created"]
    ask(wire, topic, "remove", "c0")
    assert ask(wire, topic, "open", "one-more")["created"]


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_an_acknowledgement_is_as_durable_as_the_topic(wire: Wire, topic: str, warp: Warp, durability: str) -> None:
    topic_id = wire.open(topic, durability=durability)
    wire.append(topic_id, [b"x"] * 9)
    ask(wire, topic, "open")
    ask(wire, topic, "ack", seq=6)
    restart(warp.daemon, "crash")
    with Wire(wire.path) as again:
        assert ask(again, topic, "state")["acked_seq"] == 6


# ---- retain: acked ----


def test_what_every_consumer_acknowledged_is_freed_and_nothing_else(client: Client, topic: str, warp: Warp) -> None:
    client.configure(topic, retain="acked")
    client.publish_many(topic, [b"x"] * 70)
    warp.checkpoint()
    topic_id = client.state(topic).topic_id
    assert client.state(topic).count == 70, "a topic nobody consumes by name keeps everything"
    fast = client.consumer(topic, "fast", auto_ack=False)
    slow = client.consumer(topic, "slow", auto_ack=False)
    fast.ack_to(60)
    assert client.state(topic).count == 70
    slow.ack_to(30)
    state = client.state(topic)
    assert (state.count, state.earliest_seq, state.evict_floor) == (40, 31, 1)
    assert client.fetch(topic).tombstone is None, "a voluntary delete is silent"
    warp.settle()
    assert len(segment_files(warp.daemon, topic_id)) == 6, "whole segments are given back"
    # Without the slow one the fast one decides.
    slow.close()
    client.remove_consumer(topic, "slow")
    assert client.state(topic).count == 10
    fast.close()


@pytest.mark.parametrize("how", ["stop", "crash"])
@pytest.mark.parametrize("change", ["reset", "remove"])
def test_what_was_freed_stays_freed_when_the_consumer_is_set_back_or_goes(
    client: Client, topic: str, warp: Warp, how: str, change: str
) -> None:
    client.configure(topic, retain="acked")
    client.publish_many(topic, [b"x"] * 20)
    consumer = client.consumer(topic, "c", auto_ack=False)
    consumer.ack_to(12)
    consumer.close()
    if change == "reset":
        assert client.reset_consumer(topic, "c", 0) == 0
    else:
        client.remove_consumer(topic, "c")
    before = client.state(topic, touch=False)
    assert (before.count, before.earliest_seq) == (8, 13)
    restart(warp.daemon, how)
    after = client.state(topic, touch=False)
    assert (after.count, after.earliest_seq, after.evict_floor) == (8, 13, 1)


def test_a_topic_that_begins_to_free_does_so_at_once(client: Client, topic: str) -> None:
    client.publish_many(topic, [b"x"] * 10)
    consumer = client.consumer(topic, "c", auto_ack=False)
    consumer.ack_to(4)
    consumer.close()
    assert client.state(topic).count == 10
    client.configure(topic, retain="acked")
    assert client.state(topic).count == 6


def test_a_new_consumer_of_a_topic_that_frees_begins_with_what_is_left(client: Client, topic: str) -> None:
    client.configure(topic, retain="acked")
    client.publish_many(topic, [b"x"] * 10)
    with client.consumer(topic, "first", auto_ack=False) as first:
        first.ack_to(7)
        with client.consumer(topic, "second", auto_ack=False) as second:
            assert take(second, 3) == [8, 9, 10]
            first.ack_to(10)
            assert client.state(topic).count == 3
            second.ack(3)
            assert client.state(topic).count == 0


def test_a_consumer_behind_the_cap_is_told_and_goes_on(client: Client, topic: str) -> None:
    client.configure(topic, cap_records=3)
    client.publish_many(topic, [b"x"] * 3)
    with client.consumer(topic, "c", auto_ack=False) as consumer:
        take(consumer, 1)
        consumer.ack()
    for _ in range(5):
        client.publish(topic, b"y")
    with client.consumer(topic, "c", auto_ack=False, gaps=True) as consumer:
        gap = next(consumer)
        assert (gap.first_seq, gap.last_seq) == (2, 5)  # type: ignore[union-attr]
        assert take(consumer, 3) == [6, 7, 8]
