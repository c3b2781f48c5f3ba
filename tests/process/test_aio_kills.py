"""The asyncio client against a real daemon: everything that it shares with the blocking one, and shards that die."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import uvloop

import topicd
import topicd.aio
from tests.support.daemon import LIVELY, Daemon, drain_topic, wait_until
from topicd.errors import Conflict, TopicNotFound

SETTINGS = LIVELY
T = TypeVar("T")
Client = topicd.aio.AsyncClient
Run = Callable[[Callable[[Client], Awaitable[T]]], T]


@pytest.fixture(params=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return uvloop.run if request.param == "uvloop" else asyncio.run


def runner(daemon: Daemon, loop: Callable[..., Any]) -> Run[Any]:
    def start(work: Callable[[Client], Awaitable[T]]) -> Any:
        async def main() -> T:
            async with await topicd.aio.connect(daemon.run.socket, timeout=60) as client:
                return await work(client)

        return loop(main())

    return start


@pytest.fixture
def run(loop: Callable[..., Any], module_daemon: Daemon) -> Run[Any]:
    return runner(module_daemon, loop)


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon whose shards are killed: one per test, since a supervisor gives up on shards that die too often."""
    with Daemon(tmp_path, wal_shards=2, delivery_shards=2, **LIVELY) as running:
        yield running


async def kill(daemon: Daemon, victim: str) -> None:
    pid = await elsewhere(daemon.kill, victim)
    await elsewhere(daemon.wait_replaced, victim, pid)


def numbers(count: int) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


def stored(daemon: Daemon, topic: str) -> list[bytes]:
    return [record.data for record in drain_topic(daemon.client(), topic)]


async def elsewhere(function: Callable[..., Any], *args: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, function, *args)


def test_every_operation_once(run: Run[Any], topic: str) -> None:
    async def work(client: Client) -> None:
        assert (await client.configure(topic, cap_records=1000)).cap_records == 1000
        assert await client.publish(topic, {"n": 1}, tag="x", key="k") == 1
        assert await client.publish(topic, {"n": 1}, tag="x", key="k") == 1
        assert (await client.publish_many(topic, numbers(9), performance=True)).performance is not None
        assert (await client.state(topic)).head_seq == 10
        assert [info.topic async for info in client.topics(topic)] == [topic]
        assert len(await client.fetch(topic, 5, wait=0.1)) == 5
        assert (await client.delete(topic, match="x")).deleted == 1
        assert (await client.status())["state"] == "serving"
        assert await client.ping() > 0
        with pytest.raises(Conflict):
            await client.delete_topic(topic, if_empty=True)
        await client.delete_topic(topic)
        with pytest.raises(TopicNotFound):
            await client.state(topic)

    run(work)


def test_a_producer_survives_the_death_of_its_shards(loop: Callable[..., Any], topic: str, mortal: Daemon) -> None:
    names = [f"{topic}.{n}" for n in range(4)]

    async def work(client: Client) -> None:
        async with client.producer(linger=0.001, max_batch_records=50) as producer:
            sent = []
            for round_ in range(3):
                for n in range(400):
                    sent += [await producer.send(name, b"%d.%d" % (round_, n)) for name in names]
                await kill(mortal, f"dlv-{round_ % 2:02}")
            await producer.flush()
            assert all([await delivery.exception() is None for delivery in sent])

    runner(mortal, loop)(work)
    for name in names:
        assert stored(mortal, name) == [b"%d.%d" % (r, n) for r in range(3) for n in range(400)]


def test_a_pipeline_and_a_long_list(run: Run[Any], topic: str, module_daemon: Daemon) -> None:
    async def work(client: Client) -> None:
        async with client.pipeline(topic, max_inflight=32) as pipe:
            for data in numbers(500):
                await pipe.append(data)
            assert await pipe.drain() == list(range(1, 501))
        assert (await client.publish_many(topic, numbers(25_000))).count == 25_000

    run(work)
    assert stored(module_daemon, topic) == numbers(500) + numbers(25_000)


@pytest.mark.parametrize("source", ["descriptors", "reads"])
def test_history_is_what_was_published(run: Run[Any], topic: str, module_daemon: Daemon, source: str) -> None:
    async def work(client: Client) -> None:
        for at in range(0, 3200, 100):
            await client.publish_many(topic, numbers(3200)[at : at + 100])
        folder = module_daemon.data.topic((await client.state(topic)).topic_id)
        await elsewhere(wait_until, lambda: len(list(folder.glob("seg-*.tags"))) >= 4, "sealed segments")
        if source == "reads":
            client.caller.shard_map.history_socket = lambda topic: None  # type: ignore[method-assign]
        batches = [batch async for batch in client.history(topic, 10, to_seq=3000)]
        assert [data for batch in batches for data in batch.payloads()] == numbers(3000)[10:]
        # Whoever stops in the middle leaves nothing open, and the next one reads all the same.
        async for _batch in client.history(topic):
            break
        assert sum([len(batch) async for batch in client.history(topic)]) == 3200

    run(work)


def test_a_consumer_goes_on_where_it_was_acknowledged(loop: Callable[..., Any], topic: str, mortal: Daemon) -> None:
    async def work(client: Client) -> None:
        await client.publish_many(topic, numbers(100))
        async with await client.consumer(topic, "c", auto_ack=False) as consumer:
            for _ in range(40):
                await anext(consumer)
            assert await consumer.ack(30) == 30
        await kill(mortal, "dlv-00")
        async with await client.consumer(topic, "c") as consumer:
            event = await anext(consumer)
            assert isinstance(event, topicd.Record)
            assert event.seq == 31
        assert await client.ack_consumer(topic, "c", 50) == 50
        assert await client.open_consumer(topic, "c") == 50
        assert [(row.name, row.lag) for row in await client.consumers(topic)] == [("c", 50)]

    runner(mortal, loop)(work)


def test_stages_are_seen_together(run: Run[Any], topic: str, module_daemon: Daemon) -> None:
    async def work(client: Client) -> None:
        stages = client.stages(topic)
        parts = await asyncio.gather(*(stages.write_records(0, n, topic, numbers(800)) for n in range(3)))
        with pytest.raises(TopicNotFound):
            await client.state(topic)
        assert await stages.commit(0, parts) == 2400
        assert await stages.commit(0, parts) == 2400  # said again, not stored again
        assert await stages.finish() == []

    run(work)
    assert stored(module_daemon, topic) == numbers(800) * 3


def test_a_watch_sees_everything_although_its_shards_die(loop: Callable[..., Any], topic: str, mortal: Daemon) -> None:
    async def work(client: Client) -> None:
        found: list[bytes] = []
        async with await client.watch(f"{topic}*", start="earliest") as watch:
            for round_ in range(2):
                await client.publish_many(topic, [b"%d.%d" % (round_, n) for n in range(300)])
                await kill(mortal, f"dlv-{round_:02}")
            while len(found) < 600:
                event = await anext(watch)
                if isinstance(event, topicd.Record):
                    found.append(event.data)
        assert found == [b"%d.%d" % (r, n) for r in range(2) for n in range(300)]

    runner(mortal, loop)(work)
