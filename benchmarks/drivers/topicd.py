"""topicd through its public clients: blocking, pipelined producer, asyncio."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping
from typing import Any

from benchmarks.bars import ASYNCIO
from benchmarks.drivers import append, consume, mixed, push, scale, server
from benchmarks.model import Figures, Load
from benchmarks.peers.base import Driver
from benchmarks.peers.topicd import Topicd, library
from benchmarks.stats import latency
from benchmarks.work import clock_ns, concurrent, payloads, run

READ_LIMIT = 10_000


def drivers(test: str, load: Load) -> Mapping[str, Driver]:
    found: dict[str, Driver] = {}
    if test == "A":
        found = {"publish": append.single}
    elif test == "B":
        found = {"producer": producer, ASYNCIO: asyncio_tasks}
    elif test == "C":
        found = {"publish_many": append.batched}
    elif test == "D":
        found = {"read": read}
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
    return found


def producer(peer: Topicd, load: Load) -> Figures:
    """B: one thread that sends and keeps `in_flight` acknowledgements outstanding."""
    records = payloads(load.size)
    samples: list[int] = []
    waiting: deque[tuple[int, Any]] = deque()
    with (
        peer.topics(1, load.durable) as [topic],
        library().connect(peer.address(load.durable).socket) as client,
    ):
        with client.producer() as sender:
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
            for _, ack in waiting:
                ack.result()
            seconds = (clock_ns() - start) / 1e9
        append.check(peer.name, client.state(topic).count, sent)
    return {**latency(samples), "rate": sent / seconds}


def asyncio_tasks(peer: Topicd, load: Load) -> Figures:
    """B: tasks that each await their own acknowledgement."""
    with peer.topics(1, load.durable) as [topic]:
        return run(_tasks(peer, topic, load))


async def _tasks(peer: Topicd, topic: str, load: Load) -> Figures:
    client = await peer.address(load.durable).connect()
    try:
        return await concurrent(
            lambda data: client.publish(topic, data), payloads(load.size), load.in_flight, load.seconds
        )
    finally:
        await client.close()


def read(peer: Topicd, load: Load) -> Figures:
    """D: reads of 10,000 records, each answer taken as a list of payloads."""
    return consume.scan(peer, dataclasses.replace(load, batch=READ_LIMIT))
