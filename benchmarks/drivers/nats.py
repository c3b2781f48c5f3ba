"""NATS JetStream at its best from Python: publish_async, push and pull consumers."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from nats.js import JetStreamContext, api

from benchmarks.drivers import consume, mixed, push, server
from benchmarks.peers.base import Driver
from benchmarks.peers.nats import Nats, append_many, stream_of
from topicd.bench.load import Figures, Load
from topicd.bench.stats import throughput
from topicd.bench.work import check, clock_ns, concurrent, payloads, run, timed_async, touch

MIN_BATCHES = 2
# Half a minute of loading for every million; the rate of reading does not depend on it.
MAX_CONSUMED = 200_000


def drivers(test: str, load: Load) -> Mapping[str, Driver]:
    found: dict[str, Driver] = {}
    if test == "A":
        found = {"publish": single}
    elif test == "B":
        found = {"publish_async": in_flight}
    elif test == "C":
        found = {"publish_async": batched}
    elif test == "D":
        found = {"push": partial(fewer, pushed), "pull + ack": partial(fewer, pulled)}
    elif test == "E":
        found = {"push": push.push}
    elif test == "G":
        found = {"": server.recovery}
    elif test == "H":
        found = {"": first_step}
    elif test == "fanout":
        found = push.fan_out(load)
    elif test == "mixed":
        found = {"": mixed.mixed}
    return found


def first_step(peer: Nats, load: Load) -> Figures:
    """H: the first step only; NATS takes minutes to load the second."""
    return server.memory(peer, dataclasses.replace(load, steps=load.steps[:1]))


def _with_stream(peer: Nats, durable: bool, main: Callable[[JetStreamContext], Awaitable[Figures]]) -> Figures:
    async def connected() -> Figures:
        client, stream = await peer.address(durable).connect()
        try:
            return await main(stream)
        finally:
            await client.close()

    return run(connected())


def single(peer: Nats, load: Load) -> Figures:
    with peer.topics(1, load.durable) as [topic]:
        return _with_stream(
            peer,
            load.durable,
            lambda s: timed_async(lambda d: s.publish(topic, d), payloads(load.size), load.seconds),
        )


def in_flight(peer: Nats, load: Load) -> Figures:
    with peer.topics(1, load.durable) as [topic]:

        async def main(stream: JetStreamContext) -> Figures:
            async def send(data: bytes) -> None:
                await (await stream.publish_async(topic, data))

            return await concurrent(send, payloads(load.size), load.in_flight, load.seconds)

        return _with_stream(peer, load.durable, main)


def batched(peer: Nats, load: Load) -> Figures:
    with peer.topics(1, load.durable) as [topic]:

        async def main(stream: JetStreamContext) -> Figures:
            batch = payloads(load.size, load.batch)
            await append_many(stream, topic, batch)
            count = 0
            start = now = clock_ns()
            while now < start + int(load.seconds * 1e9) or count < MIN_BATCHES:
                await append_many(stream, topic, batch)
                now = clock_ns()
                count += 1
            stored = (await stream.stream_info(stream_of(topic))).state.messages
            check(peer.name, stored, count * load.batch)
            return throughput(count * load.batch, (now - start) / 1e9, load.size)

        return _with_stream(peer, load.durable, main)


def fewer(driver: Driver, peer: Nats, load: Load) -> Figures:
    return driver(peer, dataclasses.replace(load, records=min(load.records, MAX_CONSUMED)))


def pushed(peer: Nats, load: Load) -> Figures:
    """D: a push consumer without acknowledgements, its payloads touched in the callback."""
    topic = peer.dataset(load.size, load.records)

    async def main(stream: JetStreamContext) -> Figures:
        seen = 0
        done = asyncio.Event()

        async def receive(message: Any) -> None:
            nonlocal seen
            message.data[0]
            seen += 1
            if seen == load.records:
                done.set()

        start = clock_ns()
        config = api.ConsumerConfig(ack_policy=api.AckPolicy.NONE, deliver_policy=api.DeliverPolicy.ALL)
        # No flow control, which nats-py looks after four times a second, and room for all that is on the way.
        await stream.subscribe(
            topic,
            cb=receive,
            config=config,
            manual_ack=True,
            pending_msgs_limit=load.records,
            pending_bytes_limit=2 * load.records * load.size,
        )
        await asyncio.wait_for(done.wait(), 60)
        return consume.consumed(peer, load, seen, (clock_ns() - start) / 1e9)

    return _with_stream(peer, False, main)


def pulled(peer: Nats, load: Load) -> Figures:
    """D: fetches of a batch, each message acknowledged; ends when the time is up, for it is slow."""
    topic = peer.dataset(load.size, load.records)

    async def main(stream: JetStreamContext) -> Figures:
        # The default of 1,000 unacknowledged messages would make every fetch wait for its own acks.
        config = api.ConsumerConfig(ack_policy=api.AckPolicy.EXPLICIT, max_ack_pending=10 * load.batch)
        pull = await stream.pull_subscribe(topic, stream=stream_of(topic), config=config)
        seen = 0
        start = now = clock_ns()
        while seen < load.records and now < start + int(max(load.seconds, 1.0) * 1e9):
            found = await pull.fetch(load.batch, timeout=5)
            seen += touch(message.data for message in found)
            for message in found:
                await message.ack()
            now = clock_ns()
        await pull.unsubscribe()
        return throughput(seen, (now - start) / 1e9, load.size)

    return _with_stream(peer, False, main)
