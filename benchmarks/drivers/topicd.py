"""topicd through its public clients: blocking, pipelined producer, asyncio."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial

from benchmarks.bars import (
    ASYNCIO,
    CHAINED,
    CHECKPOINTED,
    CLAIMED,
    DESCRIPTORS,
    FUTURES,
    IN_MEMORY,
    LOG_ALONE,
    PIPELINE,
    PRODUCER,
    PUSHED,
    READ,
    WATCH,
)
from benchmarks.drivers import append, mixed, push, queue, scale, server, spark
from benchmarks.peers.base import Driver
from benchmarks.peers.topicd import LogOnly, Topicd
from topicd.bench import loops
from topicd.bench.load import Figures, Load, Where
from topicd.bench.stats import throughput
from topicd.bench.work import check, run


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
        found = {WATCH: push.push}
        if not load.durable:
            found[IN_MEMORY] = in_memory
    elif test == "F":
        found = queue.drivers(load, CLAIMED, CLAIMED, PUSHED, CHAINED, CHAINED)
        if load.records and load.batch == 1:
            found[PUSHED] = partial(queue.drain, queue.pushed)
    elif test == "G":
        found = {CHECKPOINTED: server.recovery, LOG_ALONE: log_alone}
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
        found = {spark.READ: spark.read_topic, spark.WRITE: spark.write_topic}
    return found


def in_memory(peer: Topicd, load: Load) -> Figures:
    """E: acknowledged and pushed when the bytes are in shared memory, which survives every process of the daemon."""
    with peer.using("memory"):
        return push.push(peer, load)


def log_alone(peer: Topicd, load: Load) -> Figures:
    """G: nothing was checkpointed before the crash. Afterwards something is, so each round has a server of its own."""
    name = "log"
    peer.sibling(name, LogOnly)
    try:
        return server.recover(peer, load, name, lambda _: None)
    finally:
        peer.close_sibling(name)


def window(peer: Topicd, load: Load) -> Figures:
    """B: one thread; at most `in_flight` appends of one record each are unacknowledged."""
    with peer.topics(1, load.durable) as [topic], peer.client() as client:
        return loops.window(client, topic, load)


def sliding(peer: Topicd, load: Load) -> Figures:
    """B: the same with futures."""
    with peer.topics(1, load.durable) as [topic], peer.client() as client:
        return loops.sliding(client, topic, load)


def in_groups(peer: Topicd, load: Load) -> Figures:
    """B: what a pipeline of 64 is elsewhere: 64 records leave together, then all their acknowledgements are awaited."""
    with peer.topics(1, load.durable) as [topic], peer.client() as client:
        with client.producer(linger=1.0, max_batch_records=load.in_flight) as sender:

            def send(batch: list[bytes]) -> None:
                for ack in [sender.send(topic, data) for data in batch]:
                    ack.result()

            sent, seconds = append.repeat(send, dataclasses.replace(load, batch=load.in_flight))
        check(peer.name, client.state(topic).count, sent)
    return throughput(sent, seconds, load.size)


def pipelined(peer: Topicd, load: Load) -> Figures:
    """C: lists of bytes, up to 16 batches unacknowledged; the time ends with the last acknowledgement."""
    with peer.topics(1, load.durable) as [topic], peer.client() as client:
        return loops.batched(client, topic, load)


def asyncio_tasks(peer: Topicd, load: Load) -> Figures:
    """B: tasks that each await their own acknowledgement."""
    with peer.topics(1, load.durable) as [topic]:
        return run(loops.tasks(Where(peer.address(load.durable).socket), topic, load))


def futures(peer: Topicd, load: Load) -> Figures:
    """B: one coroutine that keeps `in_flight` futures outstanding; every record is an append of its own."""
    with peer.topics(1, load.durable) as [topic]:
        return run(loops.futures(Where(peer.address(load.durable).socket), topic, load))


def read(peer: Topicd, load: Load) -> Figures:
    """D: reads of 10,000 records, each answer taken as a list of payloads."""
    topic = peer.dataset(load.size, load.records)
    with peer.client() as client:
        return loops.read(client, topic, load)


def descriptors(peer: Topicd, load: Load) -> Figures:
    """D: sealed segments as passed descriptors, mapped and decoded by the reader; the daemon idle."""
    topic = peer.dataset(load.size, load.records)
    with peer.client() as client:
        return loops.descriptors(client, topic, load)
