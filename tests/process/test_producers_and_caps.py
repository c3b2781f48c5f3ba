"""Producers on topics with a cap: what fits is stored whatever the pace, what does not is handed back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

import topicd
import topicd.aio
from tests.support.daemon import Daemon
from topicd.client.blocking.client import Client
from topicd.errors import ConnectionLost, TopicFull


@pytest.fixture
def client(module_daemon: Daemon) -> Iterator[Client]:
    with module_daemon.client() as made:
        yield made


def datas(count: int) -> list[bytes]:
    return [b"%06d" % n for n in range(count)]


@pytest.mark.parametrize("linger", [0.0, 0.005, 5.0])  # one by one, some at once, all at once
@pytest.mark.parametrize("cap", [{"cap_records": 100}, {"cap_bytes": 600}])
def test_what_fits_is_stored_whatever_the_pace(client: Client, topic: str, linger: float, cap: dict[str, int]) -> None:
    client.configure(topic, discard="reject", **cap)
    producer = client.producer(linger=linger)
    sent = [producer.send(topic, data) for data in datas(1_000)]
    outcomes = [delivery.exception(30) for delivery in sent]
    producer.close()
    assert [record.data for record in client.read(topic)] == datas(100)
    assert [delivery.seq for delivery in sent[:100]] == list(range(1, 101))
    assert outcomes[:100] == [None] * 100
    assert {type(error) for error in outcomes[100:]} == {TopicFull}
    refused = sent[100].record
    assert refused is not None and refused.data == b"000100" and sent[0].record is None


def test_a_topic_that_drops_the_old_takes_everything(client: Client, topic: str) -> None:
    client.configure(topic, cap_records=100)
    with client.producer() as producer:
        for data in datas(1_000):
            producer.send(topic, data)
    assert [record.data for record in client.read(topic)] == datas(1_000)[-100:]


def test_records_of_different_sizes_are_divided_where_they_must(client: Client, topic: str) -> None:
    client.configure(topic, discard="reject", cap_bytes=10_000)
    client.publish(topic, b"x" * 100)
    given = [b"y" * size for size in (10, 2_000, 3_000, 1, 4_000, 5_000, 7)]
    with client.producer(linger=5) as producer:
        sent = producer.send_many(topic, given)
        with pytest.raises(TopicFull):
            sent.result(30)
    stored = [record.data for record in client.read(topic, 1)]
    assert stored == given[:5]


def test_a_producer_that_gives_up_says_how_many_and_hands_them_back(client: Client, topic: str) -> None:
    client.configure(topic, discard="reject", cap_records=3)
    producer = client.producer(linger=5)
    for n in range(10):
        producer.send(topic, {"n": n}, tag=f"t{n}", meta={"m": n})
    with pytest.raises(TopicFull, match=r"7 records were not stored: topic .* holds 3 records of 3") as told:
        producer.close()
    assert told.value.detail["not_stored"] == 7
    back = producer.not_stored()
    assert [(r.topic, r.json(), r.tag, r.meta) for r in back] == [
        (topic, {"n": n}, f"t{n}", {"m": n}) for n in range(3, 10)
    ]
    assert producer.not_stored() == []
    client.delete(topic, before_seq=4)
    client.publish_many(topic, back[:3])  # as they are
    assert [record.meta for record in client.read(topic)] == [{"m": 3}, {"m": 4}, {"m": 5}]


def test_a_daemon_that_is_gone_gives_everything_back(tmp_path: Any) -> None:
    with Daemon(tmp_path, wal_shards=1, delivery_shards=1) as daemon:
        with topicd.connect(daemon.run.socket, timeout=0.5) as client:
            producer = client.producer()
            producer.send("t", b"stored").result()
            daemon.kill_all()
            producer.send_many("t", datas(50))
            with pytest.raises(ConnectionLost, match="50 records were not acknowledged"):
                producer.close()
            assert [record.data for record in producer.not_stored()] == datas(50)


def test_what_nobody_asks_about_is_told_before_it_piles_up(client: Client, topic: str) -> None:
    client.configure(topic, discard="reject", cap_records=1)
    producer = client.producer(linger=0, max_inflight=4)
    with pytest.raises(TopicFull, match="not stored"):
        for _ in range(100):
            producer.send(topic, bytes(1_000_000))
    with contextlib.suppress(TopicFull):  # those that were under way meanwhile
        producer.close()


def test_asyncio_does_the_same(module_daemon: Daemon, topic: str) -> None:
    async def work() -> None:
        async with topicd.aio.connect(module_daemon.run.socket) as client:
            await client.configure(topic, discard="reject", cap_records=100)
            producer = client.producer(linger=5)
            first = await producer.send(topic, b"first")
            sent = [await producer.send(topic, data) for data in datas(150)]
            assert await first == 1
            with pytest.raises(TopicFull, match="51 records were not stored"):
                await producer.close()
            assert [record.data for record in producer.not_stored()] == datas(150)[99:]
            assert (sent[0].seq, sent[98].seq, sent[99].seq) == (2, 100, None)

    asyncio.run(work())
