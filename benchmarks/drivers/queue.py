"""F: a work queue and four worker processes; every job is claimed, looked at and finished, none twice.

The jobs are there before the workers start, so that a figure is what the queue can hand out and take back.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Protocol

from benchmarks.peers.base import Driver
from topicd.bench.load import Figures, Load
from topicd.bench.stats import latency
from topicd.bench.work import age_ns, batches, clock_ns, payloads, stamped, touch
from topicd.bench.worker import READY, Worker
from topicd.errors import Internal

WORKERS = 4
LOAD_BATCH = 1_000
PACE_S = 0.002
WARM_UP = 10


class QueueSession(Protocol):
    """One worker's way to a queue, or a producer's."""

    def put(self, data: bytes) -> object: ...

    def put_many(self, batch: list[bytes]) -> object: ...

    def one(self) -> bytes | None:
        """Claims a job and finishes it; None: there is none now."""

    def some(self, limit: int) -> list[bytes]:
        """Claims up to so many jobs and finishes them all; empty: there are none now."""

    def wait(self) -> bytes:
        """The next job, as soon as it is there; it is finished by the next call."""

    def close(self) -> None: ...


class QueueAddress(Protocol):
    """Where a queue is; picklable."""

    def open(self) -> QueueSession: ...


Step = Callable[[QueueSession, int], int]


def _one(session: QueueSession, _: int) -> int:
    found = session.one()
    return 0 if found is None else touch((found,))


def chained(session: Any, _: int) -> int:
    """Of a peer that finishes a job and claims the next one in one round trip: the one that is finished."""
    found = session.chained()
    return 0 if found is None else touch((found,))


def chained_some(session: Any, limit: int) -> int:
    """The same of many: those that are finished."""
    return touch(session.chained_some(limit))


def _some(session: QueueSession, limit: int) -> int:
    return touch(session.some(limit))


def pushed(session: Any, _: int) -> int:
    """Of a peer that pushes: a job that came by itself; its end goes out with others."""
    found = session.pushed()
    return 0 if found is None else touch((found,))


# A peer with queues has a method queue(durable): a context with the QueueAddress of a new queue, gone afterwards.


def drivers(
    load: Load, one: str, some: str = "", wait: str = "", both: str = "", both_some: str = ""
) -> dict[str, Driver]:
    """The variants of a peer for this load, by the names it gives them."""
    if load.records and load.batch == 1:
        return {one: partial(drain, _one), **({both: partial(drain, chained)} if both else {})}
    if load.records and some:
        return {some: partial(drain, _some), **({both_some: partial(drain, chained_some)} if both_some else {})}
    return {wait: start} if not load.records and wait else {}


def drain(step: Step, peer: Any, load: Load) -> Figures:
    """Jobs per second of all workers together, until the time is up or the queue is empty."""
    with peer.queue(load.durable) as address, contextlib.ExitStack() as stack:
        fill(address, load)
        workers = [stack.enter_context(Worker(_work, address, step, load)) for _ in range(WORKERS)]
        return together(workers, load)


def together(workers: list[Worker], load: Load) -> Figures:
    """Starts them at once; what they have done between the first start and the last end."""
    for worker in workers:
        worker.wait_ready()
    for worker in workers:
        worker.go()
    results: list[tuple[int, int, int]] = [worker.result() for worker in workers]
    done = sum(count for count, _, _ in results)
    if done > load.records:
        raise Internal(f"{done} jobs were done of {load.records} that were put")
    began, ended = min(start for _, start, _ in results), max(end for _, _, end in results)
    return {"rate": done / ((ended - began) / 1e9)}


def fill(address: QueueAddress, load: Load) -> None:
    with closing(address) as session:
        for batch in batches(payloads(load.size), LOAD_BATCH, load.records):
            session.put_many(batch)


@contextlib.contextmanager
def closing(address: QueueAddress) -> Iterator[QueueSession]:
    session = address.open()
    try:
        yield session
    finally:
        session.close()


def _work(link: Connection, address: QueueAddress, step: Step, load: Load) -> tuple[int, int, int]:
    """How many jobs, from when to when."""
    with closing(address) as session:
        link.send(READY)
        link.recv()
        done, began = 0, clock_ns()
        now, end = began, began + int(load.seconds * 1e9)
        while now < end:
            count = step(session, load.batch)
            if not count:
                break
            now = clock_ns()
            done += count
        return done, began, now


def start(peer: Any, load: Load) -> Figures:
    """From the call of put in one process to the job in the hands of an idle worker in another; one job every 2 ms."""
    count = load.in_flight + WARM_UP
    with peer.queue(load.durable) as address, closing(address) as session:
        with Worker(_wait, address, count) as worker:
            worker.wait_ready()
            for data in payloads(load.size, count):
                session.put(stamped(data))
                time.sleep(PACE_S)
            samples: list[int] = worker.result()
    return latency(samples[WARM_UP:])


def _wait(link: Connection, address: QueueAddress, count: int) -> list[int]:
    with closing(address) as session:
        link.send(READY)
        return [age_ns(session.wait()) for _ in range(count)]
