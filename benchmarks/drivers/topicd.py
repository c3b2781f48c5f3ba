"""topicd through its public clients: blocking, pipelined producer, asyncio."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import deque
from collections.abc import Mapping
from typing import Any

from benchmarks.bars import ASYNCIO, DESCRIPTORS, FUTURES, PIPELINE, PRODUCER, READ
from benchmarks.drivers import append, consume, mixed, push, scale, server, spark
from benchmarks.model import Figures, Load
from benchmarks.peers.base import Driver
from benchmarks.peers.topicd import Topicd
from benchmarks.stats import latency, throughput
from benchmarks.work import clock_ns, concurrent, payloads, run
from topicd.aio import connect as connect_async

READ_LIMIT = 10_000
BATCHES = 16


def drivers(test: str, load: Load) -> Mapping[str, Driver]:
    found: dict[str, Driver] = {}
    if test == "A":
        found = {"publish": append.single}
    elif test == "B":
        found = {PIPELINE: window, PRODUCER: sliding, "producer, 64 at once": in_groups}
        found |= {ASYNCIO: asyncio_tasks, FUTURES: futures}
    elif test == "C":
        found = {"publish_many": append.batched, PRODUCER: pipelined}
    elif test == "D":
        found = {READ: read, DESCRIPTORS: descriptors}
    elif test == "E":
        found = {"watch": push.push}
    elif test == "G":
        found = {"": server.recovery}
    elif test == "H":
        found = {"": server.memory}
    elif test == "fanout":
        found = push.fan_out(load)
    elif test == "topics":
        found = scale.many_topics(load)
    elif test == "growth":
        found = scale.growth(load)
    elif test == "mixed":
        found = {"": mixed.mixed}
    elif test == "spark":
        found = {spark.READ: spark.read_topic}
    return found


def sliding(peer: Topicd, load: Load) -> Figures:
    """B: one thread; every record is an append of its own, and `in_flight` of them are outstanding."""
    records = payloads(load.size)
    samples: list[int] = []
    waiting: deque[tuple[int, Any]] = deque()
    with peer.topics(1, load.durable) as [topic], peer.client() as client:
        with client.producer(linger=0.0, max_inflight=load.in_flight) as sender:
            start = now = clock_ns()
            end = start + int(load.seconds * 1e9)
            sent = 0
            while now < end:
                waiting.append((now, sender.send(topic, records[sent % len(records)])))
                sent += 1
                now = clock_ns()
                if len(waiting) >= load.in_flight:
                    began, ack = waiting.popleft()
                    ack.result()
                    now = clock_ns()
                    samples.append(now - began)
            sender.flush()
            seconds = (clock_ns() - start) / 1e9
        append.check(peer.name, client.state(topic).count, sent)
    return {**latency(samples), "rate": sent / seconds}


def window(peer: Topicd, load: Load) -> Figures:
    """B: the same without futures: at most `in_flight` appends of one record each are unacknowledged."""
    records = payloads(load.size)
    with peer.topics(1, load.durable) as [topic], peer.client() as client:
        with client.pipeline(topic, max_inflight=load.in_flight) as pipe:
            start = clock_ns()
            end = start + int(load.seconds * 1e9)
            sent = 0
            while clock_ns() < end:
                for _ in range(load.in_flight):
                    pipe.append(records[sent % len(records)])
                    sent += 1
            pipe.drain()
            seconds = (clock_ns() - start) / 1e9
        append.check(peer.name, client.state(topic).count, sent)
    return throughput(sent, seconds, load.size)


def in_groups(peer: Topicd, load: Load) -> Figures:
    """B: what a pipeline of 64 is elsewhere: 64 records leave together, then all their acknowledgements are awaited."""
    with peer.topics(1, load.durable) as [topic], peer.client() as client:
        with client.producer(linger=1.0, max_batch_records=load.in_flight) as sender:

            def send(batch: list[bytes]) -> None:
                for ack in [sender.send(topic, data) for data in batch]:
                    ack.result()

            sent, seconds = append.repeat(send, dataclasses.replace(load, batch=load.in_flight))
        append.check(peer.name, client.state(topic).count, sent)
    return throughput(sent, seconds, load.size)


def pipelined(peer: Topicd, load: Load) -> Figures:
    """C: lists of bytes, up to 16 batches unacknowledged; the time ends with the last acknowledgement."""
    batch = payloads(load.size, load.batch)
    room = 2 * load.batch * load.size
    with peer.topics(1, load.durable) as [topic], peer.client() as client:
        with client.producer(max_inflight=BATCHES, max_batch_records=load.batch, max_batch_bytes=room) as sender:
            sender.send_many(topic, batch).result()
            sent = 0
            start = now = clock_ns()
            while now < start + int(load.seconds * 1e9):
                sender.send_many(topic, batch)
                sent += load.batch
                now = clock_ns()
            sender.flush()
            seconds = (clock_ns() - start) / 1e9
        append.check(peer.name, client.state(topic).count, sent)
    return throughput(sent, seconds, load.size)


def asyncio_tasks(peer: Topicd, load: Load) -> Figures:
    """B: tasks that each await their own acknowledgement."""
    with peer.topics(1, load.durable) as [topic]:
        return run(_tasks(peer, topic, load))


async def _tasks(peer: Topicd, topic: str, load: Load) -> Figures:
    async with await connect_async(peer.address(load.durable).socket) as client:
        return await concurrent(
            lambda data: client.publish(topic, data), payloads(load.size), load.in_flight, load.seconds
        )


def futures(peer: Topicd, load: Load) -> Figures:
    """B: one coroutine that keeps `in_flight` futures outstanding; every record is an append of its own."""
    with peer.topics(1, load.durable) as [topic]:
        return run(_futures(peer, topic, load))


async def _futures(peer: Topicd, topic: str, load: Load) -> Figures:
    records = payloads(load.size)
    samples: list[int] = []
    waiting: deque[tuple[int, asyncio.Future[int]]] = deque()
    async with await connect_async(peer.address(load.durable).socket) as client:
        start = now = clock_ns()
        end = start + int(load.seconds * 1e9)
        while now < end:
            while len(waiting) < load.in_flight:
                waiting.append((now, client.publish_soon(topic, records[len(samples) % len(records)])))
            await waiting[0][1]
            now = clock_ns()
            while waiting and waiting[0][1].done():
                began, ack = waiting.popleft()
                ack.result()
                samples.append(now - began)
        await asyncio.gather(*(ack for _, ack in waiting))
    return {**latency(samples), "rate": (len(samples) + len(waiting)) / ((clock_ns() - start) / 1e9)}


def read(peer: Topicd, load: Load) -> Figures:
    """D: reads of 10,000 records, each answer taken as a list of payloads."""
    return consume.scan(peer, dataclasses.replace(load, batch=READ_LIMIT))


def descriptors(peer: Topicd, load: Load) -> Figures:
    """D: sealed segments as passed descriptors, mapped and decoded by the reader; the daemon idle."""
    topic = peer.dataset(load.size, load.records)
    with peer.client() as client:
        start = clock_ns()
        return consume.touch_all(peer, load, (batch.payloads() for batch in client.history(topic)), start)
