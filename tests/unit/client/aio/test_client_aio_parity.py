"""Operations that the asyncio face shares with the blocking one: they do what their twins do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

import topicd
import topicd.aio
from tests.support.fakeserver import CUT, MUTE, FakeServer, Request
from topicd.errors import ConnectionLost, InvalidRequest, TopicFull, Unauthorized
from topicd.ipc.protocol.messages import Op
from topicd.limits import MAX_BATCH_RECORDS

T = TypeVar("T")
Client = topicd.aio.AsyncClient
Run = Callable[[Callable[[Client], Awaitable[T]]], T]


def numbers(count: int) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


@pytest.mark.parametrize("fault", [None, CUT, MUTE])
def test_a_long_list_is_stored_in_order_and_once(run: Run[Any], server: FakeServer, fault: str | None) -> None:
    struck: list[Request] = []

    def once(request: Request) -> str | None:
        if request.op != Op.APPEND:
            return None
        struck.append(request)
        return fault if len(struck) == 3 else None

    async def work(client: Client) -> None:
        server.fault = once
        stored = await client.publish_many("t", numbers(5 * MAX_BATCH_RECORDS + 7))
        assert (stored.first_seq, stored.last_seq, stored.count) == (1, 50_007, 50_007)

    run(work)
    assert server.payloads("t") == numbers(5 * MAX_BATCH_RECORDS + 7)


def test_a_long_list_stops_at_the_batch_that_is_refused(run: Run[Any], server: FakeServer) -> None:
    seen: list[Request] = []

    def third(request: Request) -> TopicFull | None:
        if request.op == Op.APPEND:
            seen.append(request)
        return TopicFull("no room") if request.op == Op.APPEND and len(seen) >= 3 else None

    async def work(client: Client) -> None:
        server.fault = third
        with pytest.raises(TopicFull) as refused:
            await client.publish_many("t", numbers(12 * MAX_BATCH_RECORDS))
        assert refused.value.detail["stored"] == 2 * MAX_BATCH_RECORDS
        server.fault = lambda r: None
        assert await client.publish("t", b"after") == 2 * MAX_BATCH_RECORDS + 1

    run(work)
    assert server.payloads("t")[: 2 * MAX_BATCH_RECORDS] == numbers(2 * MAX_BATCH_RECORDS)


def test_performance_of_one_batch(run: Run[Any]) -> None:
    async def work(client: Client) -> None:
        stored = await client.publish_many("t", numbers(3), performance=True)
        assert (stored.first_seq, stored.last_seq, stored.count) == (1, 3, 3)
        assert stored.performance is not None
        assert stored.performance["server_total_ms"] == 1.5
        assert (await client.publish_many("t", numbers(3))).performance is None
        with pytest.raises(InvalidRequest, match="at least one record"):
            await client.publish_many("t", [])

    run(work)


def test_history_by_reads(run: Run[Any]) -> None:
    async def work(client: Client) -> None:
        await client.publish_many("t", [topicd.Record(data, tag="ab"[n % 2]) for n, data in enumerate(numbers(3000))])

        async def found(*args: Any, **options: Any) -> list[bytes]:
            return [data async for batch in client.history("t", *args, **options) for data in batch.payloads()]

        assert await found() == numbers(3000)
        assert await found(10, to_seq=2000) == numbers(2000)[10:]
        assert await found(0, to_seq=500, match="a") == numbers(500)[::2]
        assert await found(3000) == []
        with pytest.raises(InvalidRequest):
            client.history("t", -1)

    run(work)


def test_consumers_that_deliver_by_other_means(run: Run[Any]) -> None:
    async def work(client: Client) -> None:
        await client.publish_many("t", numbers(10))
        assert await client.open_consumer("t", "c", 4) == 4
        assert await client.open_consumer("t", "c", 9) == 4
        assert await client.ack_consumer("t", "c", 7) == 7
        assert await client.ack_consumer("t", "c", 5) == 7
        assert [(row.name, row.acked_seq) for row in await client.consumers("t")] == [("c", 7)]

    run(work)


def test_a_watch_knows_its_cursors(run: Run[Any]) -> None:
    async def work(client: Client) -> None:
        await client.publish_many("t", numbers(10))
        async with await client.watch(["t", "u"], start="earliest") as watch:
            await anext(watch)
            assert watch.cursors() == {"t": 10, "u": 0}

    run(work)


def test_stages_become_visible_together_and_once(run: Run[Any], server: FakeServer) -> None:
    async def work(client: Client) -> None:
        stages = client.stages("load", ends=True)
        parts = [await stages.write_records(0, part, "ledger", [f"{part}.{n}" for n in range(50)]) for part in range(3)]
        assert server.payloads("ledger") == []
        assert await stages.commit(0, parts) == 150
        unwanted = client.stages("another")
        await unwanted.write_records(4, 0, "ledger", [b"x"])
        assert (await unwanted.drop(4), await unwanted.finish(), unwanted.query) == (1, [], "another")
        assert [topic.topic async for topic in client.topics("topicd.stage")] == []

    run(work)
    assert server.payloads("ledger") == [b"%d.%d" % (part, n) for part in range(3) for n in range(50)]


def test_a_closed_client_makes_nothing(run: Run[Any]) -> None:
    async def work(client: Client) -> None:
        await client.close()
        for make in (
            lambda: client.stages("q"),
            lambda: client.pipeline("t"),
        ):
            with pytest.raises(InvalidRequest, match="closed"):
                make()
        producer = client.producer()
        with pytest.raises(InvalidRequest, match="closed"):
            await producer.send("t", b"x")
        with pytest.raises(InvalidRequest, match="closed"):
            await client.watch("t")

    run(work)


def test_the_timeout_counts_from_the_beginning(run: Run[Any], server: FakeServer) -> None:
    """A daemon that is silent is not waited for twice."""

    async def work(client: Client) -> None:
        await client.publish("t", b"x")
        server.fault = lambda r: b"" if r.op == Op.STATE else None
        client._caller.timeout = 0.5
        began = time.monotonic()
        with pytest.raises(ConnectionLost, match="did not answer"):
            await client.state("t")
        assert 0.4 < time.monotonic() - began < 0.9

    run(work)


def test_a_connection_that_is_refused_is_closed(run: Run[Any], server: FakeServer) -> None:
    async def work(client: Client) -> None:
        server.fault = lambda r: Unauthorized("who are you") if r.op == Op.HELLO and r.shard >= 0 else None
        with pytest.raises(Unauthorized):
            await client.state("t")
        deadline = time.monotonic() + 10
        while server.run(lambda: [s for s in server.connections if s.shard >= 0]):
            assert time.monotonic() < deadline
            await asyncio.sleep(0)

    run(work)
