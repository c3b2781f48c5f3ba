"""What one client does with a topic, again and again until the time is up. Promise: every loop counts only what was
acknowledged or arrived, and fails when the topic does not hold what was acknowledged.

`tick` is told of the records done so far, for a progress bar; it must be cheap.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from topicd.aio import connect as connect_async
from topicd.bench.load import Figures, Load, Where
from topicd.bench.stats import latency, throughput
from topicd.bench.work import DISTINCT, age_ns, check, clock_ns, concurrent, payloads, stamped, timed, touch
from topicd.bench.worker import READY, Worker
from topicd.client.blocking.client import Client, connect
from topicd.client.core.records import Record
from topicd.errors import Internal
from topicd.limits import FETCH_BYTES_MAX

BATCHES = 16  # under way
READ_LIMIT = 10_000
PACE_S = 0.002
WARM_UP = 10
ARRIVES_S = 30.0
DIFF_LIMIT = 100

Tick = Callable[[int], None]


def no_tick(done: int) -> None:
    """Nobody watches."""


def single(client: Client, topic: str, load: Load, tick: Tick = no_tick) -> Figures:
    """The next append starts when the last one is acknowledged."""
    records = payloads(load.size)
    client.publish(topic, records[0])

    def publish(data: bytes) -> None:
        client.publish(topic, data)
        tick(1)

    return timed(publish, records, load.seconds)


def window(client: Client, topic: str, load: Load, tick: Tick = no_tick) -> Figures:
    """At most `in_flight` appends of one record each are unacknowledged, one thread, no futures."""
    records = payloads(load.size)
    before = client.state(topic).head_seq
    with client.pipeline(topic, max_inflight=load.in_flight) as pipe:
        start = clock_ns()
        end = start + int(load.seconds * 1e9)
        sent = 0
        while clock_ns() < end:
            for _ in range(load.in_flight):
                pipe.append(records[sent % len(records)])
                sent += 1
            tick(load.in_flight)
        pipe.drain()
        seconds = (clock_ns() - start) / 1e9
    check("topicd", client.state(topic).head_seq - before, sent)
    return throughput(sent, seconds, load.size)


def sliding(client: Client, topic: str, load: Load) -> Figures:
    """The same with a future for every record: each is an append of its own, `in_flight` of them are outstanding."""
    records = payloads(load.size)
    before = client.state(topic).head_seq
    samples: list[int] = []
    waiting: deque[tuple[int, Any]] = deque()
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
    check("topicd", client.state(topic).head_seq - before, sent)
    return {**latency(samples), "rate": sent / seconds}


def batched(client: Client, topic: str, load: Load, tick: Tick = no_tick) -> Figures:
    """Lists of bytes, up to 16 batches unacknowledged; the time ends with the last acknowledgement."""
    batch = payloads(load.size, load.batch)
    before = client.state(topic).head_seq
    with client.producer(
        max_inflight=BATCHES, max_batch_records=load.batch, max_batch_bytes=max(2 * load.batch * load.size, 4096)
    ) as sender:
        sender.send_many(topic, batch).result()
        sent = 0
        start = now = clock_ns()
        while now < start + int(load.seconds * 1e9):
            sender.send_many(topic, batch)
            sent += load.batch
            now = clock_ns()
            tick(load.batch)
        sender.flush()
        seconds = (clock_ns() - start) / 1e9
    check("topicd", client.state(topic).head_seq - before, sent)
    return throughput(sent, seconds, load.size)


async def tasks(where: Where, topic: str, load: Load, tick: Tick = no_tick) -> Figures:
    """asyncio tasks that each await their own acknowledgement."""
    async with await connect_async(**where._asdict()) as client:

        async def publish(data: bytes) -> None:
            await client.publish(topic, data)
            tick(1)

        return await concurrent(publish, payloads(load.size), load.in_flight, load.seconds)


async def futures(where: Where, topic: str, load: Load) -> Figures:
    """One coroutine that keeps `in_flight` futures outstanding; every record is an append of its own."""
    records = payloads(load.size)
    samples: list[int] = []
    waiting: deque[tuple[int, asyncio.Future[int]]] = deque()
    async with await connect_async(**where._asdict()) as client:
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


def read(client: Client, topic: str, load: Load, from_seq: int = 0, tick: Tick = no_tick) -> Figures:
    """Reads of 10,000 records until the head, each answer taken as a list of payloads, every payload touched."""
    start = clock_ns()
    seen, at = 0, from_seq
    while True:
        found = client.fetch(topic, at, limit=READ_LIMIT, max_bytes=FETCH_BYTES_MAX)
        seen += touch(found.payloads())
        tick(len(found))
        at = found.next_from_seq
        if found.caught_up:
            break
    return _consumed(seen, start, load)


def descriptors(client: Client, topic: str, load: Load, from_seq: int = 0, tick: Tick = no_tick) -> Figures:
    """Sealed segments as passed descriptors, mapped and decoded by the reader; the daemon idle."""
    start = clock_ns()
    seen = 0
    for batch in client.history(topic, from_seq):
        seen += touch(batch.payloads())
        tick(len(batch))
    return _consumed(seen, start, load)


def diff(client: Client, topic: str, load: Load, begin: int = 0, tick: Tick = no_tick) -> Figures:
    """What a reader that was away asks for: up to 100 records behind its cursor, from anywhere in the topic."""
    last = max(begin, client.state(topic).head_seq - DIFF_LIMIT)
    cursors = [random.randint(begin, last).to_bytes(8, "little") for _ in range(DISTINCT)]
    seen = 0

    def fetch(cursor: bytes) -> None:
        nonlocal seen
        found = client.fetch(topic, int.from_bytes(cursor, "little"), limit=DIFF_LIMIT)
        seen += touch(found.payloads())
        tick(len(found))

    figures = timed(fetch, cursors, load.seconds)
    seconds = figures["records"] / figures["rate"]
    return {**figures, **throughput(seen, seconds, load.size)}


def _consumed(seen: int, start: int, load: Load) -> Figures:
    if load.records and seen < load.records:
        raise Internal(f"topicd delivered {seen} of {load.records} records")
    return throughput(seen, (clock_ns() - start) / 1e9, load.size)


def push(client: Client, where: Where, topic: str, load: Load, tick: Tick = no_tick, *, at: str = "") -> Figures:
    """From publish here to the record in the hands of another process: one record every 2 ms, no queueing. at: the
    topic where it is awaited, if a router brings it there."""
    client.publish(topic, payloads(load.size, 1)[0])
    if at:
        _await_first(client, at)
    with Worker(_subscribe, where, at or topic, load.records + WARM_UP) as worker:
        worker.wait_ready()
        for data in payloads(load.size, load.records + WARM_UP):
            client.publish(topic, stamped(data))
            tick(1)
            time.sleep(PACE_S)
        samples: list[int] = worker.result()
    return latency(samples[WARM_UP:])


def _await_first(client: Client, topic: str) -> None:
    """What is on its way is not counted as the first that the subscriber gets."""
    with client.watch(topic, "earliest") as events:
        if events.poll(ARRIVES_S) is None:
            raise Internal(f"no record came to {topic} within {ARRIVES_S:g} s")


def _subscribe(link: Connection, where: Where, topic: str, count: int) -> list[int]:
    samples: list[int] = []
    with connect(**where._asdict()) as client, client.watch(topic, "latest", on_gap="raise") as events:
        link.send(READY)
        for event in events:
            if isinstance(event, Record):
                samples.append(age_ns(event.data))
                if len(samples) == count:
                    break
    return samples
