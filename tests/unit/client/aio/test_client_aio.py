from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest

import topicd
import topicd.aio
from tests.support.fakeserver import CUT, HALF, MUTE, FakeServer, Request
from topicd.errors import (
    ConnectionLost,
    FormatError,
    InvalidRequest,
    NotReady,
    RecordTooLarge,
    Throttled,
    TopicdError,
    TopicFull,
    TopicNotFound,
)
from topicd.ipc.protocol.messages import Op

T = TypeVar("T")
Run = Callable[[Callable[[topicd.aio.AsyncClient], Awaitable[T]]], T]


def numbers(*span: int) -> list[bytes]:
    return [b"%d" % n for n in range(*span)]


def nth(op: int, n: int, fault: TopicdError | str | bytes) -> Callable[[Request], TopicdError | str | bytes | None]:
    seen: list[int] = []

    def strike(request: Request) -> TopicdError | str | bytes | None:
        if request.op != op:
            return None
        seen.append(request.request_id)
        return fault if len(seen) == n else None

    return strike


async def take(events: AsyncIterator[Any], count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        event = await anext(events)
        if isinstance(event, topicd.Record):
            found.append(event.data)
    return found


def test_publish_and_read(run: Run[Any], server: FakeServer) -> None:
    async def work(client: topicd.aio.AsyncClient) -> None:
        assert await client.publish("t", b"a") == 1
        assert await client.publish("t", {"n": 1}, tag="x", node="n", meta={"m": 1}) == 2
        assert [await client.publish("t", "k", key="once") for _ in range(3)] == [3, 3, 3]
        assert await client.publish_soon("t", b"soon") == 4
        found = await client.fetch("t", 1)
        assert found.payloads() == [b'{"n":1}', b"k", b"soon"]
        assert (found[0].tag, found[0].meta) == ("x", {"m": 1})
        stored = await client.publish_many("t", numbers(20_005))
        assert (stored.first_seq, stored.last_seq, stored.count) == (5, 20_009, 20_005)

    run(work)
    assert server.payloads("t")[4:] == numbers(20_005)


def test_concurrent_publishes_are_stored_in_the_order_they_were_made(run: Run[Any], server: FakeServer) -> None:
    async def work(client: topicd.aio.AsyncClient) -> None:
        seqs = await asyncio.gather(*(client.publish("t", data) for data in numbers(1000)))
        assert seqs == list(range(1, 1001))

    run(work)
    assert server.payloads("t") == numbers(1000)


def test_the_rest_of_the_operations(run: Run[Any]) -> None:
    async def work(client: topicd.aio.AsyncClient) -> None:
        assert (await client.configure("t0", cap_records=10)).cap_records == 10
        for n in range(9):
            await client.publish(f"t{n}", b"x", tag="y")
        assert [t.topic async for t in client.topics("t")] == [f"t{n}" for n in range(9)]
        assert (await client.state("t0")).count == 1
        assert (await client.delete("t0", match="y")).deleted == 1
        await client.delete_topic("t0")
        with pytest.raises(TopicNotFound):
            await client.state("t0")
        with pytest.raises(TopicNotFound):
            await client.fetch("t0")
        assert await client.publish("t0", b"anew") == 1
        assert await client.ping() >= 0
        assert await client.status() == {}
        with pytest.raises(RecordTooLarge):
            await client.publish("t0", b"x" * (1 << 21))
        with pytest.raises(InvalidRequest):
            await client.publish("no good", b"x")

    run(work)


@pytest.mark.parametrize("fault", [CUT, MUTE, HALF])
@pytest.mark.parametrize("at", [1, 2, 3, 7, 20])
def test_a_cut_at_any_point_neither_loses_nor_doubles(run: Run[Any], server: FakeServer, at: int, fault: str) -> None:
    async def work(client: topicd.aio.AsyncClient) -> None:
        server.fault = nth(Op.APPEND, at, fault)
        seqs = await asyncio.gather(*(client.publish("t", data) for data in numbers(30)))
        assert seqs == list(range(1, 31))

    run(work)
    assert server.payloads("t") == numbers(30)


def test_a_keyed_publish_is_stored_once_by_a_daemon_that_forgets_keys(run: Run[Any], server: FakeServer) -> None:
    struck = nth(Op.APPEND, 1, MUTE)

    def forgets(request: Request) -> TopicdError | str | bytes | None:
        if request.op == Op.APPEND and "t" in server.topics:
            server.topics["t"].keys.clear()
        return struck(request)

    async def work(client: topicd.aio.AsyncClient) -> None:
        server.fault = forgets
        assert await client.publish("t", b"x", key="k") == 1

    run(work)
    assert server.payloads("t") == [b"x"]


def test_refusals(run: Run[Any], server: FakeServer) -> None:
    async def work(client: topicd.aio.AsyncClient) -> None:
        server.fault = nth(Op.APPEND, 3, Throttled("full", retry_after_ms=1))
        await asyncio.gather(*(client.publish("t", data) for data in numbers(10)))
        server.fault = nth(Op.APPEND, 3, TopicFull("full"))
        outcome = await asyncio.gather(*(client.publish("t", data) for data in numbers(10, 20)), return_exceptions=True)
        assert [type(o) for o in outcome].count(TopicFull) == 1
        server.fault = nth(Op.STATE, 1, NotReady("recovering"))
        assert (await client.state("t")).count == 19

    run(work)
    assert server.payloads("t") == [data for data in numbers(20) if data != b"12"]


def test_restarts_with_other_shards_are_followed(run: Run[Any], server: FakeServer) -> None:
    async def work(client: topicd.aio.AsyncClient) -> None:
        loop = asyncio.get_running_loop()
        for round_, shards in enumerate((5, 1, 3)):
            sends = [client.publish(f"t{n % 7}", b"%d.%d" % (round_, n)) for n in range(70)]
            pending = asyncio.gather(*sends)
            await asyncio.sleep(0)
            await loop.run_in_executor(None, server.restart, shards)
            await pending
            assert len((await client.fetch("t0")).payloads()) == 10 * (round_ + 1)

    run(work)
    for topic in range(7):
        expected = [b"%d.%d" % (r, n) for r in range(3) for n in range(70) if n % 7 == topic]
        assert server.payloads(f"t{topic}") == expected


@pytest.mark.parametrize("op", [Op.APPEND, Op.FETCH, Op.STATE])
def test_hostile_bytes_are_a_clear_error(run: Run[Any], server: FakeServer, op: int) -> None:
    async def work(client: topicd.aio.AsyncClient) -> None:
        await client.publish("t", b"x")
        server.fault = lambda r: b"\xff" * 60 if r.op == op else None
        with pytest.raises((FormatError, ConnectionLost)):
            if op == Op.APPEND:
                await client.publish("t", b"y")
            elif op == Op.FETCH:
                await client.fetch("t")
            else:
                await client.state("t")
        server.fault = lambda r: None
        assert (await client.fetch("t")).payloads() == [b"x"]

    run(work)


def test_a_daemon_that_stays_away_is_an_error(run: Run[Any], server: FakeServer) -> None:
    async def work(client: topicd.aio.AsyncClient) -> None:
        await client.publish("t", b"x")
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, server.silence)
        client._caller.timeout = 0.1
        with pytest.raises(ConnectionLost):
            await client.publish("t", b"y")
        with pytest.raises(ConnectionLost):
            await client.state("t")
        client._caller.timeout = 5
        await loop.run_in_executor(None, server.listen)
        assert await client.publish("t", b"z") == 2

    run(work)


def test_a_cancelled_publish_harms_nobody(run: Run[Any], server: FakeServer) -> None:
    async def work(client: topicd.aio.AsyncClient) -> None:
        tasks = [asyncio.create_task(client.publish("t", data)) for data in numbers(10)]
        await asyncio.sleep(0)
        tasks[4].cancel()
        outcome = await asyncio.gather(*tasks, return_exceptions=True)
        assert [isinstance(o, asyncio.CancelledError) for o in outcome].count(True) == 1
        assert await client.publish("t", b"after") == 11

    run(work)


def test_close_fails_what_is_under_way(run: Run[Any], server: FakeServer) -> None:
    async def work(client: topicd.aio.AsyncClient) -> None:
        await client.publish("t", b"x")
        pending = asyncio.gather(client.publish("t", b"y"), client.state("t"), return_exceptions=True)
        await asyncio.sleep(0)
        await client.close()
        assert all(isinstance(o, TopicdError) for o in await pending)
        with pytest.raises(TopicdError):
            await client.publish("t", b"z")

    run(work)


# ---- watching ----


def test_watch_sees_everything_across_restarts(run: Run[Any], server: FakeServer) -> None:
    async def work(client: topicd.aio.AsyncClient) -> None:
        loop = asyncio.get_running_loop()
        found: list[bytes] = []
        async with await client.watch(["t", "u"], start="earliest") as watch:
            for round_ in range(5):
                await client.publish_many("t", [b"t%d.%d" % (round_, n) for n in range(40)])
                await client.publish_many("u", [b"u%d.%d" % (round_, n) for n in range(40)])
                found += await take(watch, 30)
                if round_ % 2:
                    await loop.run_in_executor(None, server.restart, 1 + round_ % 3)
                else:
                    await loop.run_in_executor(None, server.run, server.drop_connections)
            found += await take(watch, 400 - len(found))
        for letter in (b"t", b"u"):
            mine = [data for data in found if data.startswith(letter)]
            assert mine == [letter + b"%d.%d" % (r, n) for r in range(5) for n in range(40)]

    run(work)


def test_watch_batches_credit_and_patterns(run: Run[Any], server: FakeServer) -> None:
    async def work(client: topicd.aio.AsyncClient) -> None:
        datas = [b"%05d" % n + b"x" * 2000 for n in range(300)]
        await client.publish_many("log.a", datas)
        found: list[bytes] = []
        async with await client.watch("log.*", start="earliest", batch_bytes=20_000) as watch:
            async for batch in watch.batches():
                found += batch.payloads()
                if len(found) == 300:
                    break
            assert found == datas
            await client.publish("log.new", b"new")
            assert await take(watch, 1) == [b"new"]

    run(work)


def test_watch_gaps(run: Run[Any]) -> None:
    async def work(client: topicd.aio.AsyncClient) -> None:
        await client.configure("t", cap_records=3)
        await client.publish_many("t", numbers(10))
        async with await client.watch("t", start=2, gaps=True) as watch:
            gap = await anext(watch)
            assert isinstance(gap, topicd.Gap)
            assert (gap.first_seq, gap.last_seq) == (3, 7)
            assert await take(watch, 3) == numbers(7, 10)
        async with await client.watch("t", start=2, on_gap="raise") as watch:
            with pytest.raises(topicd.RecordsMissed):
                await anext(watch)
            assert await take(watch, 3) == numbers(7, 10)
        async with await client.watch("t", start="earliest", on_gap="raise") as watch:
            assert await take(watch, 3) == numbers(7, 10)

    run(work)


def test_watch_ends(run: Run[Any], server: FakeServer) -> None:
    async def work(client: topicd.aio.AsyncClient) -> None:
        async with await client.watch("t") as watch:
            await client.publish("t", b"last")
            await client.delete_topic("t")
            assert await take(watch, 1) == [b"last"]
            with pytest.raises(TopicNotFound):
                await anext(watch)
            assert [event async for event in watch] == []
        watch = await client.watch("u")
        asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(watch.close()))
        assert [event async for event in watch] == []
        watch = await client.watch("v")
        server.run(lambda: [s.transport.write(b"\xff" * 64) for s in server.connections if s.subscriptions])
        with pytest.raises(FormatError):
            await anext(watch)
        await watch.close()

    run(work)


@asynccontextmanager
async def consuming(client: topicd.aio.AsyncClient, **options: Any) -> AsyncIterator[topicd.aio.AsyncConsumer]:
    async with await client.consumer("t", "c", **options) as consumer:
        yield consumer


def test_consumers(run: Run[Any], server: FakeServer) -> None:
    async def work(client: topicd.aio.AsyncClient) -> None:
        await client.publish_many("t", numbers(10))
        async with consuming(client, auto_ack=False) as consumer:
            assert await take(consumer, 6) == numbers(6)
            assert await consumer.ack(4) == 4
            assert (consumer.unacked, consumer.acked_seq, await consumer.lag()) == (2, 4, 6)
            with pytest.raises(InvalidRequest):
                await consumer.ack(3)
        async with consuming(client) as consumer:
            assert await take(consumer, 6) == numbers(4, 10)
        assert [(c.name, c.acked_seq) for c in await client.consumers("t")] == [("c", 10)]
        assert await client.reset_consumer("t", "c", 7) == 7
        async with consuming(client) as consumer:
            assert await take(consumer, 1) == [b"7"]
        await client.remove_consumer("t", "c")
        assert await client.consumers("t") == []

    run(work)
