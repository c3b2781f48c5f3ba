"""The embedded queues: send and receive, one and many at a time, and how soon another process sees a message.

A queue is what a library offers at its best inside one process. What is received is also acknowledged or deleted, so
that it does not come again.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from shutil import rmtree
from typing import Any, ClassVar, Protocol

from benchmarks.peers.base import Driver
from topicd.bench.load import Figures, Load
from topicd.bench.stats import percentile, throughput
from topicd.bench.work import check, clock_ns, payloads

TEST = "filechannel"
WAKE = "futex"
WRITE_LOOP = "write loop"


class Work(IntEnum):
    """What a case does; the first of a load's steps."""

    SEND = 1
    SEND_MANY = 2
    RECEIVE = 3
    RECEIVE_MANY = 4
    WAKE = 5


CHUNK = 50  # single calls between two looks at the clock
WAIT_S = 0.001  # so that the reader sleeps before each message


class Queue(Protocol):
    def put(self, data: bytes) -> object: ...

    def put_many(self, batch: list[bytes]) -> object: ...

    def get(self) -> object: ...

    def get_many(self, limit: int) -> int:
        """How many were there, up to limit; they are gone for good."""
        ...

    def close(self) -> None: ...


class Library(Protocol):
    """A peer that is a library with queues."""

    name: ClassVar[str]
    root: Path
    many: ClassVar[bool]  # it has calls for many messages at a time
    preload: ClassVar[int]  # messages to receive for each that the load names: more, where that takes no time

    def queue(self, directory: Path, durable: bool) -> Queue: ...


def drivers(library: Library, load: Load) -> Mapping[str, Driver]:
    single: dict[int, Driver] = {Work.SEND: send, Work.RECEIVE: receive}
    several: dict[int, Driver] = {Work.SEND_MANY: send_many, Work.RECEIVE_MANY: receive_many}
    known = {**single, **several} if library.many else single
    found = known.get(load.steps[0])
    return {} if found is None else {"": found}


@contextmanager
def opened(library: Library, load: Load) -> Iterator[Queue]:
    directory = library.root / "queue"
    rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    queue = library.queue(directory, load.durable)
    try:
        yield queue
    finally:
        queue.close()
        rmtree(directory, ignore_errors=True)


def repeat(call: Callable[[], object], seconds: float) -> tuple[int, float]:
    """Calls and seconds, without the first, which warms up."""
    call()
    count = 0
    start = now = clock_ns()
    end = start + int(seconds * 1e9)
    while now < end:
        call()
        count += 1
        now = clock_ns()
    return count, (now - start) / 1e9


def send(library: Library, load: Load) -> Figures:
    records = payloads(load.size, CHUNK)
    with opened(library, load) as queue:
        put = queue.put

        def some() -> None:
            for data in records:
                put(data)

        count, seconds = repeat(some, load.seconds)
    return throughput(count * CHUNK, seconds, load.size)


def send_many(library: Library, load: Load) -> Figures:
    batch = payloads(load.size, load.batch)
    with opened(library, load) as queue:
        count, seconds = repeat(lambda: queue.put_many(batch), load.seconds)
    return throughput(count * load.batch, seconds, load.size)


def filled(library: Library, queue: Queue, load: Load) -> int:
    records = load.records * library.preload
    batch = payloads(load.size, load.batch)
    for at in range(0, records, load.batch):
        if library.many:
            queue.put_many(batch[: records - at])
        else:
            for data in batch[: records - at]:
                queue.put(data)
    return records


def receive(library: Library, load: Load) -> Figures:
    with opened(library, load) as queue:
        records, get = filled(library, queue, load), queue.get
        start = clock_ns()
        for _ in range(records):
            get()
        seconds = (clock_ns() - start) / 1e9
    return throughput(records, seconds, load.size)


def receive_many(library: Library, load: Load) -> Figures:
    with opened(library, load) as queue:
        records = filled(library, queue, load)
        got = 0
        start = clock_ns()
        while found := queue.get_many(load.batch):
            got += found
            if got == records:
                break
        seconds = (clock_ns() - start) / 1e9
    check(library.name, got, records)
    return throughput(records, seconds, load.size)


READER = """
import sys, time
from topicd.filechannel import FileChannel
with FileChannel(sys.argv[1], writer=False) as channel:
    receiver = channel.receiver("reader", auto_ack=True)
    seen = []
    print("ready", flush=True)
    for _ in range(int(sys.argv[2])):
        receiver.recv()
        seen.append(time.clock_gettime_ns(time.CLOCK_MONOTONIC))
print(*seen)
"""


def wake(peer: Any, load: Load) -> Figures:
    """From the return of send() in one process to the return of recv() in another."""
    from topicd.filechannel import FileChannel

    directory = peer.root / "wake"
    rmtree(directory, ignore_errors=True)
    with FileChannel(directory) as channel:
        command = [sys.executable, "-c", READER, str(directory), str(load.records)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
            if reader.stdout is None or reader.stdout.readline() != "ready\n":
                raise RuntimeError("the reader did not start")
            sender, sent, data = channel.sender(), [], payloads(load.size, 1)[0]
            for _ in range(load.records):
                time.sleep(WAIT_S)
                sender.send(data)
                sent.append(time.clock_gettime_ns(time.CLOCK_MONOTONIC))
            seen = list(map(int, reader.stdout.readline().split()))
    check(peer.name, len(seen), load.records)
    delays = sorted(max(there - here, 0) / 1000 for here, there in zip(sent, seen, strict=True))
    rmtree(directory, ignore_errors=True)
    return {"p50": percentile(delays, 50), "p99": percentile(delays, 99)}


def write_loop(peer: Any, load: Load) -> Figures:
    """The page cache's limit: the bytes of a batch, or of a message, without heads and checksums, one write after the
    other, like dd."""
    single = load.steps[0] == Work.SEND
    data = b"".join(payloads(load.size, 1 if single else load.batch))
    directory = peer.root / "written"
    rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    fd = os.open(directory / "0", os.O_RDWR | os.O_CREAT)
    at = files = 0

    def write() -> None:
        nonlocal at
        # As often a new file as a channel cuts a segment.
        if at > 64 << 20:
            restart()
        at += os.pwrite(fd, data, at)

    def restart() -> None:
        nonlocal at, fd, files
        at = 0
        if not single:
            os.ftruncate(fd, 0)
            return
        # What is sent one at a time is kept by everybody: so here, in new memory.
        os.close(fd)
        files += 1
        fd = os.open(directory / str(files), os.O_RDWR | os.O_CREAT)

    def some() -> None:
        for _ in range(CHUNK):
            write()

    try:
        count, seconds = repeat(some if single else write, load.seconds)
    finally:
        os.close(fd)
        rmtree(directory)
    return throughput(count * (CHUNK if single else load.batch), seconds, load.size)
