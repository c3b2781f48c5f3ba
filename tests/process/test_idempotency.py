"""Nothing is stored twice: retries over reconnects, deaths of a shard and restarts get the first answer."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import pytest

from tests.process.conftest import Served
from tests.process.wire import Appended, Wire, batch
from tests.support.daemon import Daemon, drain_topic
from tests.support.timewarp import ENVIRON, Warp
from topicd.client.blocking.client import Client
from topicd.errors import Conflict, OutOfOrder
from topicd.ipc.protocol.messages import Op

SETTINGS = {"segment_max_records": 50, "snapshot_ms": 100}
__all__ = ["ENVIRON"]  # of the module's daemon
DISTURBANCES = ("reconnect", "shard", "stop", "crash")


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


def disturb(daemon: Daemon, wire: Wire, how: str) -> Wire:
    """Another connection, after whatever happened to the old one."""
    wire.close()
    if how == "shard":
        name = wire.path.name.removesuffix(".sock")
        daemon.wait_replaced(name, daemon.kill(name))
    elif how == "stop":
        daemon.restart()
    elif how == "crash":
        daemon.kill_all()
        daemon.start().wait_ready()
    return Wire(wire.path)


def sent(wire: Wire, topic_id: int, number: int, producer: int = 7) -> Appended:
    return wire.append(topic_id, [b"%d.%d" % (number, n) for n in range(3)], producer=producer, batch_no=number)


@pytest.mark.parametrize("how", DISTURBANCES)
@pytest.mark.parametrize("stored", [False, True], ids=["log", "snapshot"])
def test_a_batch_that_is_sent_again_later_gets_its_first_answer(
    wire: Wire, topic: str, warp: Warp, how: str, stored: bool
) -> None:
    topic_id = wire.open(topic)
    first = [sent(wire, topic_id, number) for number in range(1, 6)]
    other = sent(wire, topic_id, 1, producer=8)
    if stored:
        warp.settle()
    with disturb(warp.daemon, wire, how) as again:
        for number, answer in enumerate(first, 1):
            assert sent(again, topic_id, number) == answer._replace(head_seq=18, deduped=True)
        assert sent(again, topic_id, 1, producer=8) == other._replace(deduped=True)
        with pytest.raises(OutOfOrder) as early:
            sent(again, topic_id, 7)
        assert early.value.detail["expected"] == 6
        assert (sent(again, topic_id, 6).first_seq, again.state(topic)["count"]) == (19, 21)


def test_the_first_answer_stays_though_the_records_are_gone(wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic)
    first = sent(wire, topic_id, 1)
    wire.ask(Op.DELETE_RECORDS, {"topic": topic, "before_seq": 10})
    assert sent(wire, topic_id, 1) == first._replace(deduped=True)
    assert wire.state(topic)["count"] == 0


def test_a_batch_older_than_what_is_remembered_is_a_conflict_and_is_not_stored(wire: Wire, topic: str) -> None:
    topic_id = wire.open(topic, durability="memory")
    requests = [wire.send_append(topic_id, batch([b"x"]), 1, producer=7, batch_no=number) for number in range(1, 1_001)]
    for request in requests:
        wire.appended(request)
    for number in range(1_001, 1_101):
        wire.append(topic_id, [b"x"], producer=7, batch_no=number)
    with pytest.raises(Conflict):
        wire.append(topic_id, [b"x"], producer=7, batch_no=1)
    assert wire.append(topic_id, [b"x"], producer=7, batch_no=1_000).first_seq == 1_000
    assert wire.state(topic)["head_seq"] == 1_100


@pytest.mark.parametrize("by", ["producer", "key"])
def test_retries_at_the_same_time_resolve_to_one(served: Served, topic: str, by: str) -> None:
    wires = [served.wire(topic) for _ in range(8)]
    topic_id = wires[0].open(topic, durability="fsync")
    how = {"producer": 7, "batch_no": 1} if by == "producer" else {"key": b"once"}
    requests = [wire.send_append(topic_id, batch([b"x"] * 5), 5, **how) for wire in wires]  # type: ignore[arg-type]
    answers = [wire.appended(request) for wire, request in zip(wires, requests, strict=True)]
    assert {(answer.first_seq, answer.count) for answer in answers} == {(1, 5)}
    assert [answer.deduped for answer in answers].count(False) == 1
    assert wires[0].state(topic)["head_seq"] == 5


def test_a_free_key_is_remembered_for_its_window_in_its_topic(client: Client, topic: str, warp: Warp) -> None:
    client.configure(topic, idempotency_window_ms=1000)
    assert client.publish(topic, b"a", key="k") == 1
    assert client.publish(topic, b"b", key="k") == 1
    assert client.publish(topic, b"c", key="other") == 2
    assert client.publish(f"{topic}.other", b"a", key="k") == 1
    warp.advance(1001)
    assert client.publish(topic, b"d", key="k") == 3
    client.configure(topic, idempotency_window_ms=0)
    assert [client.publish(topic, b"e", key="never") for _ in range(2)] == [4, 5]


def test_a_client_that_is_disturbed_again_and_again_stores_everything_once(module_daemon: Daemon, topic: str) -> None:
    """Several writers of one topic, while its shard and the daemon die under them."""
    writers, each = 4, 60
    chance = random.Random(4)

    def write(writer: int) -> None:
        with module_daemon.client(timeout=120.0) as client:
            for number in range(each):
                client.publish_many(topic, [b"%d %d %d" % (writer, number, n) for n in range(3)])

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(writers)]
    module_daemon.client().publish(topic, b"first")
    for thread in threads:
        thread.start()
    for how in ("shard", "crash", "shard", "stop"):
        threads[0].join(chance.uniform(0.05, 0.3))
        if how == "shard":
            name = chance.choice(["dlv-00", "dlv-01", "wal-00", "wal-01"])
            module_daemon.wait_replaced(name, module_daemon.kill(name))
        elif how == "crash":
            module_daemon.kill_all(chance)
            module_daemon.start().wait_ready()
        else:
            module_daemon.restart()
    for thread in threads:
        thread.join(120.0)
        assert not thread.is_alive()
    found = [record.data for record in drain_topic(module_daemon.client(), topic)][1:]
    assert len(found) == len(set(found)), "something was stored twice"
    for writer in range(writers):
        mine = [data for data in found if data.startswith(b"%d " % writer)]
        assert mine == [b"%d %d %d" % (writer, number, n) for number in range(each) for n in range(3)]
