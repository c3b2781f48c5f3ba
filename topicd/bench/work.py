"""Payloads, clocks and loops that every driver shares, so that all peers do the same work."""

from __future__ import annotations

import asyncio
import os
import struct
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from typing import Any, TypeVar

import uvloop

from topicd.bench.stats import latency
from topicd.errors import Internal

T = TypeVar("T")

# Monotonic nanoseconds at the head of a payload: the same clock in every process of the machine.
STAMP = struct.Struct("<Q")
DISTINCT = 1000
MIN_SAMPLES = 20

clock_ns = time.monotonic_ns


def payloads(size: int, count: int = DISTINCT) -> list[bytes]:
    """Random bytes, so that nothing on the way can compress or share them."""
    return [os.urandom(size) for _ in range(count)]


def stamped(rest: bytes) -> bytes:
    return STAMP.pack(clock_ns()) + rest[STAMP.size :]


def age_ns(payload: bytes) -> int:
    return clock_ns() - int(STAMP.unpack_from(payload)[0])


def check(name: str, stored: int, sent: int) -> None:
    """A figure counts only if nothing of it is missing."""
    if stored < sent:
        raise Internal(f"{name} acknowledged {sent} records and holds {stored}")


def touch(records: Iterable[bytes]) -> int:
    """Look into every payload: a figure counts only what arrived as bytes. Returns how many."""
    count = 0
    for record in records:
        record[0]
        count += 1
    return count


def batches(records: list[bytes], size: int, count: int) -> Iterator[list[bytes]]:
    """`count` records in lists of `size`, cycling over the given ones."""
    source = (records * -(-size // len(records)))[:size]
    for start in range(0, count, size):
        yield source[: min(size, count - start)]


def timed(action: Callable[[bytes], object], records: list[bytes], seconds: float) -> dict[str, float]:
    """Call an action one at a time until the time is up; latency and rate."""
    samples: list[int] = []
    start = now = clock_ns()
    end = start + int(seconds * 1e9)
    while now < end or len(samples) < MIN_SAMPLES:
        before = now
        action(records[len(samples) % len(records)])
        now = clock_ns()
        samples.append(now - before)
    return {**latency(samples), "rate": len(samples) / ((now - start) / 1e9)}


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run on uvloop: every peer's asyncio client gets the faster loop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


async def timed_async(
    action: Callable[[bytes], Awaitable[object]], records: list[bytes], seconds: float
) -> dict[str, float]:
    samples: list[int] = []
    start = now = clock_ns()
    end = start + int(seconds * 1e9)
    while now < end or len(samples) < MIN_SAMPLES:
        before = now
        await action(records[len(samples) % len(records)])
        now = clock_ns()
        samples.append(now - before)
    return {**latency(samples), "rate": len(samples) / ((now - start) / 1e9)}


async def concurrent(
    action: Callable[[bytes], Awaitable[object]], records: list[bytes], in_flight: int, seconds: float
) -> dict[str, float]:
    """`in_flight` tasks that each await one acknowledgement at a time."""
    samples: list[int] = []
    start = clock_ns()
    end = start + int(seconds * 1e9)

    async def task(data: bytes) -> None:
        now = clock_ns()
        while now < end:
            before = now
            await action(data)
            now = clock_ns()
            samples.append(now - before)

    await asyncio.gather(*(task(records[i % len(records)]) for i in range(in_flight)))
    return {**latency(samples), "rate": len(samples) / ((clock_ns() - start) / 1e9)}
