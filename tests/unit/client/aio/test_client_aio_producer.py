"""Producers and pipelines of the asyncio face: the same trouble as the blocking ones, the same outcomes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

import topicd
import topicd.aio
from tests.support.fakeserver import CUT, HALF, MUTE, FakeServer, Request
from topicd.errors import (
    ConnectionLost,
    FormatError,
    InvalidRequest,
    RecordTooLarge,
    Throttled,
    TopicdError,
    TopicFull,
)
from topicd.ipc.protocol.messages import Op
from topicd.placement import delivery_shard

T = TypeVar("T")
Client = topicd.aio.AsyncClient
Run = Callable[[Callable[[Client], Awaitable[T]]], T]


def nth(op: int, n: int, fault: TopicdError | str | bytes) -> Callable[[Request], TopicdError | str | bytes | None]:
    """A fault that strikes the n-th request of that kind."""
    seen: list[int] = []

    def strike(request: Request) -> TopicdError | str | bytes | None:
        if request.op != op:
            return None
        seen.append(request.request_id)
        return fault if len(seen) == n else None

    return strike


def numbers(count: int) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


async def elsewhere(function: Callable[..., Any], *args: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, function, *args)


def test_deliveries_know_their_seqs(run: Run[Any], server: FakeServer) -> None:
    async def work(client: Client) -> None:
        async with client.producer() as producer:
            sent = [await producer.send("t", data) for data in numbers(2500)]
            await producer.flush()
            assert [d.seq for d in sent] == list(range(1, 2501))
            assert (await sent[7], await sent[7].result(), sent[7].done()) == (8, 8, True)
            assert await sent[7].exception() is None

    run(work)
    assert server.payloads("t") == numbers(2500)


def test_a_lone_record_is_sent_after_the_linger(run: Run[Any]) -> None:
    async def work(client: Client) -> None:
        for n, linger in enumerate((0.001, 0), 1):
            async with client.producer(linger=linger) as producer:
                assert await (await producer.send("t", b"x")).result(5) == n

    run(work)


def test_records_of_a_linger_share_a_batch_and_batches_end_at_their_limits(run: Run[Any], server: FakeServer) -> None:
    async def work(client: Client) -> None:
        async with client.producer(linger=60) as producer:
            for n in range(100):
                await producer.send("a" if n % 2 else "b", b"%d" % n)
            await producer.flush()
        assert len([r for r in server.requests if r.op == Op.APPEND]) == 2
        async with client.producer(linger=60, max_batch_records=10, max_batch_bytes=1000) as producer:
            for size in [1] * 10 + [500] * 4:
                await producer.send("t", b"x" * size)
            await producer.flush()

    run(work)
    assert len([r for r in server.requests if r.op == Op.APPEND]) == 5


def test_labels_serialisers_and_lists_keep_their_place(run: Run[Any], server: FakeServer) -> None:
    async def work(client: Client) -> None:
        async with client.producer(serializer="msgpack", linger=60) as producer:
            await producer.send("t", b"plain")
            await producer.send("t", {"a": 1}, tag="x", node="n", meta={"m": 1})
            sent = await producer.send_many("t", [b"1", ({"b": 2}, "y")], node="many")
            last = await producer.send("t", b"last")
            assert (await sent).count == len(sent) == 2
            assert await sent.seqs() == [3, 4]
            await producer.flush()
            assert last.seq == 5
        found = (await client.fetch("t")).records
        assert [(r.tag, r.node, r.meta) for r in found] == [
            (None, None, {}),
            ("x", "n", {"m": 1}),
            (None, "many", {}),
            ("y", "many", {}),
            (None, None, {}),
        ]

    run(work)


def test_delivery_reports(run: Run[Any]) -> None:
    async def work(client: Client) -> None:
        reports: list[topicd.aio.AsyncDelivery] = []
        called: list[int | None] = []
        async with client.producer(on_delivery=reports.append) as producer:
            sent = [await producer.send("t", data) for data in numbers(50)]
            sent[3].add_done_callback(lambda d: called.append(d.seq))
            await producer.flush()
            sent[4].add_done_callback(lambda d: called.append(d.seq))
        assert [report.seq for report in reports] == list(range(1, 51))
        assert sorted(called) == [4, 5]  # type: ignore[type-var]

    run(work)


def test_a_record_that_is_wrong_is_refused_alone(run: Run[Any], server: FakeServer) -> None:
    async def work(client: Client) -> None:
        async with client.producer() as producer:
            await producer.send("t", b"ok")
            with pytest.raises(RecordTooLarge):
                await producer.send("t", b"x" * (1 << 21))
            with pytest.raises(InvalidRequest):
                await producer.send("t", object())
            await producer.send("t", b"ok too")

    run(work)
    assert server.payloads("t") == [b"ok", b"ok too"]


@pytest.mark.parametrize("fault", [CUT, MUTE, HALF])
@pytest.mark.parametrize("at", [1, 2, 3, 5, 8, 12])
def test_a_cut_at_every_point_neither_loses_nor_doubles(run: Run[Any], server: FakeServer, at: int, fault: str) -> None:
    async def work(client: Client) -> None:
        async with client.producer(max_batch_records=5, linger=60) as producer:
            sent = [await producer.send("t", data) for data in numbers(5)]
            server.fault = nth(Op.APPEND, at, fault)
            sent += [await producer.send("t", data) for data in numbers(60)[5:]]
            await producer.flush()
            assert [await d for d in sent] == list(range(1, 61))

    run(work)
    assert server.payloads("t") == numbers(60)


@pytest.mark.parametrize("error", [Throttled("full", retry_after_ms=1), TopicFull("full")])
@pytest.mark.parametrize("at", [1, 2, 4, 8])
def test_a_refusal_at_every_point_keeps_the_order(
    run: Run[Any], server: FakeServer, at: int, error: TopicdError
) -> None:
    async def work(client: Client) -> list[bytes]:
        async with client.producer(max_batch_records=5, linger=60) as producer:
            server.fault = nth(Op.APPEND, at, error)
            sent = [await producer.send("t", data) for data in numbers(60)]
            failed = {n for n, d in enumerate(sent) if await d.exception(5) is not None}
            await producer.flush()
        assert len(failed) == (0 if error.retriable else 5)
        return [data for n, data in enumerate(numbers(60)) if n not in failed]

    kept = run(work)
    assert server.payloads("t") == kept


def test_a_refusal_nobody_looked_at_comes_out_of_flush_and_close(run: Run[Any], server: FakeServer) -> None:
    async def work(client: Client) -> None:
        server.fault = lambda r: TopicFull("no room") if r.op == Op.APPEND else None
        producer = client.producer()
        await producer.send("t", b"x")
        with pytest.raises(TopicFull, match="no room"):
            await producer.flush()
        seen = await producer.send("t", b"y")
        assert isinstance(await seen.exception(5), TopicFull)
        await producer.flush()
        await producer.send("t", b"z")
        with pytest.raises(TopicFull):
            await producer.close()

    run(work)


def test_many_topics_and_restarts_with_other_shards(run: Run[Any], server: FakeServer) -> None:
    async def work(client: Client) -> None:
        async with client.producer(max_batch_records=3, linger=0.001) as producer:
            for round_ in range(4):
                for n in range(120):
                    await producer.send(f"t{n % 7}", b"%d.%d" % (round_, n))
                await elsewhere(server.restart, 1 + round_ % 4)
            await producer.flush()

    run(work)
    for topic in range(7):
        expected = [b"%d.%d" % (r, n) for r in range(4) for n in range(120) if n % 7 == topic]
        assert server.payloads(f"t{topic}") == expected


def test_full_waits_in_line_or_raises(run: Run[Any], server: FakeServer) -> None:
    async def work(client: Client) -> None:
        async with client.producer(max_batch_records=1, max_inflight=2) as producer:
            await asyncio.gather(*(producer.send("t", data) for data in numbers(50)))
            assert producer._collector.unsettled <= 2
        producer = client.producer(max_batch_records=1, max_inflight=2, on_full="raise")
        await elsewhere(server.silence)
        with pytest.raises(Throttled, match="unacknowledged"):
            for data in numbers(5):
                await producer.send("u", data)
        await elsewhere(server.listen)
        await producer.close()

    run(work)
    assert server.payloads("t") == numbers(50)
    assert server.payloads("u") == numbers(2)


def test_a_daemon_that_stays_away_and_one_that_lies_fail_the_deliveries(run: Run[Any], server: FakeServer) -> None:
    async def work(client: Client) -> None:
        producer = client.producer(timeout=0.1, linger=0)
        await elsewhere(server.silence)
        delivery = await producer.send("t", b"x")
        with pytest.raises(TimeoutError):
            await delivery.result(0.001)
        assert isinstance(await delivery.exception(5), ConnectionLost)
        await elsewhere(server.listen)
        producer._collector.timeout = 5
        assert await (await producer.send("t", b"y")).result(5) == 1
        server.fault = lambda r: b"\xff" * 50 if r.op == Op.APPEND else None
        assert isinstance(await (await producer.send("t", b"z")).exception(5), FormatError)
        server.fault = lambda r: None
        assert await (await producer.send("t", b"z")).result(5) == 2
        await producer.close()
        await producer.close()
        with pytest.raises(InvalidRequest, match="closed"):
            await producer.send("t", b"x")

    run(work)


def test_a_shard_that_never_greets_holds_up_nobody_else(run: Run[Any], server: FakeServer) -> None:
    by_shard = {delivery_shard(f"t{n}", 2): f"t{n}" for n in range(20)}

    async def work(client: Client) -> None:
        server.fault = lambda r: b"" if r.op == Op.HELLO and r.shard == 0 else None
        producer = client.producer(linger=0, timeout=60)
        began = time.monotonic()
        waiting = await producer.send(by_shard[0], b"held up")
        assert [await (await producer.send(by_shard[1], data)) for data in numbers(20)] == list(range(1, 21))
        assert time.monotonic() - began < 1.0
        assert not waiting.done()
        server.fault = lambda r: None
        await elsewhere(server.run, server.drop_connections)
        assert await waiting.result(30) == 1
        await producer.close()

    run(work)


def test_nothing_is_left_of_a_producer_that_is_closed(run: Run[Any], server: FakeServer) -> None:
    async def work(client: Client) -> None:
        await client.publish("t", b"x")
        before = server.run(lambda: len(server.connections))
        async with client.producer(linger=0) as producer:
            await (await producer.send("t", b"y"))
            assert server.run(lambda: len(server.connections)) == before + 1
        async with client.pipeline("t") as pipe:
            await pipe.append(b"z")
        deadline = time.monotonic() + 10
        while server.run(lambda: len(server.connections)) > before:
            assert time.monotonic() < deadline
            await asyncio.sleep(0)

    run(work)


# ---- pipelines ----


def test_a_pipeline_returns_seqs_in_order(run: Run[Any], server: FakeServer) -> None:
    async def work(client: Client) -> None:
        async with client.pipeline("t", max_inflight=16) as pipe:
            for data in numbers(200):
                await pipe.append(data)
                assert pipe.unacknowledged <= 16
            await pipe.flush()
            assert await pipe.drain() == list(range(1, 201))
            await pipe.append({"n": 1}, tag="x")
            assert await pipe.drain() == [201]
            assert await pipe.drain() == []
        with pytest.raises(InvalidRequest, match="closed"):
            await pipe.append(b"x")
        with pytest.raises(InvalidRequest, match="max_inflight"):
            client.pipeline("t", max_inflight=0)

    run(work)
    assert server.payloads("t")[:200] == numbers(200)


@pytest.mark.parametrize("fault", [CUT, MUTE, HALF])
@pytest.mark.parametrize("at", [1, 2, 5, 17, 40])
def test_a_pipeline_survives_cuts(run: Run[Any], server: FakeServer, at: int, fault: str) -> None:
    async def work(client: Client) -> None:
        server.fault = nth(Op.APPEND, at, fault)
        async with client.pipeline("t", max_inflight=8) as pipe:
            for data in numbers(60):
                await pipe.append(data)
            assert await pipe.drain() == list(range(1, 61))

    run(work)
    assert server.payloads("t") == numbers(60)


def test_a_pipeline_follows_topics_to_other_shards(run: Run[Any], server: FakeServer) -> None:
    async def work(client: Client) -> None:
        async with client.pipeline("t", max_inflight=8) as pipe:
            for shards in (5, 1, 3):
                for data in numbers(40):
                    await pipe.append(data)
                await elsewhere(server.restart, shards)
            assert await pipe.drain() == list(range(1, 121))

    run(work)


def test_a_refused_record_comes_out_of_drain_and_the_others_are_stored(run: Run[Any], server: FakeServer) -> None:
    async def work(client: Client) -> None:
        server.fault = nth(Op.APPEND, 4, TopicFull("no room"))
        pipe = client.pipeline("t", max_inflight=8)
        for data in numbers(20):
            await pipe.append(data)
        with pytest.raises(TopicFull) as refused:
            await pipe.drain()
        assert refused.value.detail["positions"] == [3]
        assert await pipe.drain() == []
        await pipe.close()

    run(work)
    assert server.payloads("t") == [data for data in numbers(20) if data != b"3"]


def test_a_pipeline_gives_up_after_the_timeout(run: Run[Any], server: FakeServer) -> None:
    async def work(client: Client) -> None:
        client._caller.timeout = 0.1
        pipe = client.pipeline("t")
        await elsewhere(server.silence)
        await pipe.append(b"x")
        with pytest.raises(ConnectionLost):
            await pipe.drain()
        await pipe.close()

    run(work)
