"""Redis at its best from Python: pipelines, MULTI, a Lua batch, asyncio, several processes, groups."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.drivers import append, consume, mixed, push, queue, scale, server
from benchmarks.peers.base import Driver, Peer
from benchmarks.peers.redis import FIELD, START, Redis, RedisAddress, entries_of
from topicd.bench.load import Figures, Load
from topicd.bench.stats import throughput
from topicd.bench.work import check, clock_ns, concurrent, payloads, run
from topicd.bench.worker import READY, Worker

PROCESSES = 4
# Ten million records take Redis a minute to load and more than a gigabyte.
MAX_STORED = 1_000_000


def drivers(test: str, load: Load) -> Mapping[str, Driver]:
    found: dict[str, Driver] = {}
    if test == "A":
        found = {"XADD": append.single}
    elif test == "B":
        found = {"asyncio": asyncio_tasks, "pipeline": pipeline, f"{PROCESSES} processes": processes}
    elif test == "C":
        found = {"pipeline": partial(piped, False), "MULTI": partial(piped, True), "Lua": append.batched}
    elif test == "D":
        found = {"XREAD": xread, "XREAD, no parsing": consume.scan, "group + XACK": group}
    elif test == "E":
        found = {"XREAD BLOCK": push.push}
    elif test == "F":
        both = "XACK and XREADGROUP in one"
        found = queue.drivers(load, "XREADGROUP, XACK", "XREADGROUP, XACK 100", "XREADGROUP BLOCK", both, f"{both} 100")
    elif test == "G":
        found = {"AOF": server.recovery, "after rewrite": rewritten}
    elif test == "H":
        found = {"": server.memory}
    elif test == "fanout":
        found = push.fan_out(load)
    elif test == "topics":
        found = scale.many_topics(load)
    elif test == "growth":
        found = scale.growth(dataclasses.replace(load, steps=tuple(n for n in load.steps if n <= MAX_STORED)))
    elif test == "mixed":
        found = {"": mixed.mixed}
    return found


def pipeline(peer: Redis, load: Load) -> Figures:
    """B: one connection, `in_flight` commands on the way at a time."""
    return piped(False, peer, dataclasses.replace(load, batch=load.in_flight))


def piped(transaction: bool, peer: Redis, load: Load) -> Figures:
    """C: one XADD per record, sent together; inside MULTI and EXEC when asked."""
    with peer.topics(1, load.durable) as [topic]:
        with contextlib.closing(peer.address(load.durable).client()) as client:

            def send(batch: list[bytes]) -> None:
                pipe = client.pipeline(transaction=transaction)
                for data in batch:
                    pipe.xadd(topic, {FIELD: data})
                pipe.execute()

            sent, seconds = append.repeat(send, load)
            check(peer.name, client.xlen(topic), sent)
    return throughput(sent, seconds, load.size)


def asyncio_tasks(peer: Redis, load: Load) -> Figures:
    """B: tasks that await their own acknowledgement, a connection for each."""
    with peer.topics(1, load.durable) as [topic]:
        return run(_tasks(peer.address(load.durable), topic, load))


async def _tasks(address: RedisAddress, topic: str, load: Load) -> Figures:
    client = address.pool(load.in_flight)
    try:
        return await concurrent(
            lambda data: client.xadd(topic, {FIELD: data}), payloads(load.size), load.in_flight, load.seconds
        )
    finally:
        await client.aclose()


def processes(peer: Redis, load: Load) -> Figures:
    """B: the same from four processes that share the tasks among them."""
    share = dataclasses.replace(load, in_flight=max(1, load.in_flight // PROCESSES))
    with peer.topics(1, load.durable) as [topic], contextlib.ExitStack() as stack:
        address = peer.address(load.durable)
        workers = [stack.enter_context(Worker(_process, address, topic, share)) for _ in range(PROCESSES)]
        for worker in workers:
            worker.wait_ready()
        for worker in workers:
            worker.go()
        results: list[Figures] = [worker.result() for worker in workers]
    return {
        "rate": sum(r["rate"] for r in results),
        "p50": max(r["p50"] for r in results),
        "p99": max(r["p99"] for r in results),
    }


def _process(link: Connection, address: RedisAddress, topic: str, load: Load) -> Figures:
    link.send(READY)
    link.recv()
    return run(_tasks(address, topic, load))


def xread(peer: Redis, load: Load) -> Figures:
    """D: redis-py as it comes, with the dictionaries it makes of entries."""
    topic = peer.dataset(load.size, load.records)
    with contextlib.closing(peer.address(False).plain()) as client:
        return consume.touch_all(peer, load, _read(client, topic, load.batch), clock_ns())


def _read(client: Any, topic: str, batch: int) -> Iterator[list[bytes]]:
    cursor: Any = START
    while found := entries_of(client.xread({topic: cursor}, count=batch)):
        yield [fields[FIELD] for _, fields in found]
        cursor = found[-1][0]


def group(peer: Redis, load: Load) -> Figures:
    """D: a consumer group that acknowledges what it read."""
    topic = peer.dataset(load.size, load.records)
    with contextlib.closing(peer.address(False).client()) as client:
        client.xgroup_create(topic, "bench", id="0")
        try:
            return consume.touch_all(peer, load, _read_group(client, topic, load.batch), clock_ns())
        finally:
            client.xgroup_destroy(topic, "bench")


def _read_group(client: Any, topic: str, batch: int) -> Iterator[list[bytes]]:
    while found := entries_of(client.xreadgroup("bench", "one", {topic: ">"}, count=batch)):
        yield [fields[1] for _, fields in found]
        client.xack(topic, "bench", *(entry for entry, _ in found))


def rewritten(peer: Redis, load: Load) -> Figures:
    """G: the append-only file was compacted before the crash."""
    return server.recover(peer, load, "rewritten", _rewrite)


def _rewrite(peer: Peer) -> None:
    assert isinstance(peer, Redis)
    with contextlib.closing(peer.address(False).client()) as client:
        client.bgrewriteaof()
        _wait(lambda: not client.info("persistence")["aof_rewrite_in_progress"])


def _wait(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError("the rewrite of the append-only file does not end")
        time.sleep(0.05)
