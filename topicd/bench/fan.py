"""One record to many subscribers, and when each of them has it."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable, Coroutine
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Protocol

from topicd.aio import AsyncWatch
from topicd.aio import connect as connect_async
from topicd.bench.load import Figures, Load, Where
from topicd.bench.loops import Tick, no_tick
from topicd.bench.stats import latency
from topicd.bench.work import age_ns, clock_ns, payloads, run, stamped
from topicd.bench.worker import READY, Worker
from topicd.client.core.records import Record
from topicd.errors import Internal

SPARE_DESCRIPTORS = 100
DELIVERIES = 20  # of each message asked for, so many: the more subscribers, the fewer messages
MESSAGES_MIN = 5

Handler = Callable[[bytes], bool]


class Fan(Protocol):
    """Subscribes so often in one process; each subscription ends when its handler call says False. It crosses
    processes."""

    def __call__(
        self, topic: str, subscribers: int, ready: Callable[[], None], handler: Handler
    ) -> Coroutine[Any, Any, None]: ...


def fan_out(
    publish: Callable[[bytes], object], fan: Fan, topic: str, subscribers: int, load: Load, tick: Tick = no_tick
) -> Figures:
    """A record goes out when every subscriber has the one before: its age at each of them and at the last, and what
    the call of publish took. The topic holds a record already: an empty one is a special case for some subscribers."""
    messages = max(MESSAGES_MIN, min(load.records, load.records * DELIVERIES // subscribers))
    with Worker(_subscribe_many, fan, topic, subscribers, messages) as worker:
        worker.wait_ready()
        published: list[int] = []
        for data in payloads(load.size, messages):
            begun = clock_ns()
            publish(stamped(data))
            published.append(clock_ns() - begun)
            worker.receive()
            tick(subscribers)
        everyone, last = worker.result()
    until_last = latency(last)
    return {
        **latency(everyone),
        "last_p50": until_last["p50"],
        "last_p99": until_last["p99"],
        "publish_p50": latency(published)["p50"],
    }


def _subscribe_many(
    link: Connection, fan: Fan, topic: str, subscribers: int, messages: int
) -> tuple[list[int], list[int]]:
    _allow_descriptors(subscribers + SPARE_DESCRIPTORS)
    everyone: list[int] = []
    last: list[int] = []
    final = (messages - 1) * subscribers

    def receive(payload: bytes) -> bool:
        age = age_ns(payload)
        everyone.append(age)
        if len(everyone) % subscribers == 0:
            last.append(age)
            link.send(len(everyone))
        # Everybody has all but the last record before the first one gets it.
        return len(everyone) <= final

    run(fan(topic, subscribers, lambda: link.send(READY), receive))
    return everyone, last


def _allow_descriptors(wanted: int) -> None:
    """A shell's usual limit of 1,024 is less than a thousand connections need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise Internal(f"{wanted} descriptors are needed and {hard} allowed (ulimit -Hn)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def watches(where: Where) -> Fan:
    """Of a topicd daemon; each watch has a connection of its own."""
    return partial(_watches, where)


async def _watches(where: Where, topic: str, subscribers: int, ready: Callable[[], None], handler: Handler) -> None:
    async def follow(events: AsyncWatch[Record]) -> None:
        async for record in events:
            if not isinstance(record, Record) or not handler(record.data):
                return

    async with await connect_async(**where._asdict()) as client:
        opened = [await client.watch(topic, "latest", on_gap="raise") for _ in range(subscribers)]
        tasks = [asyncio.create_task(follow(events)) for events in opened]
        ready()
        await asyncio.gather(*tasks)
        for events in opened:
            await events.close()
