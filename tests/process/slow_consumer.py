"""One subscriber that stops reading: `python -m tests.process.slow_consumer`.

Promise: while it stands still the daemon's memory stays flat and the others get their records as fast as without it;
when it reads again it has every record once and in order. The same load runs first without it, then with it.
"""

from __future__ import annotations

import argparse
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import topicd
from benchmarks.procs import pss_mib, tree
from tests.support.daemon import Daemon
from topicd.bench.stats import latency
from topicd.bench.worker import READY, Worker

TOPIC = "slow-consumer"
# Every payload begins with its number and the moment of its publish call.
HEAD = struct.Struct("<QQ")
READ_FIRST = 100  # records the stopped one takes before it stops
# Credit that no load here uses up: it is the outbox that must stay bounded.
HUGE_BATCH = 256 << 20
SAMPLES = 60  # of memory in one run
WARM_UP = 0.1  # share of the load before which memory and latency are not looked at
RATIO_MAX = 1.5
GROWTH_MIB_MAX = 8.0


@dataclass(frozen=True)
class Load:
    records: int = 500_000
    seconds: float = 60.0
    batch: int = 100
    size: int = 100
    readers: int = 2


@dataclass
class Outcome:
    """One run: what the readers measured, and the daemon's memory meanwhile."""

    p50: float = 0.0  # us
    p99: float = 0.0
    memory: list[float] = field(default_factory=list)  # MiB, PSS of all processes
    anonymous: list[float] = field(default_factory=list)
    lagged: int = 0
    held: int = 0  # records the stopped one had when it was told to go on
    caught_up_s: float = 0.0

    @property
    def first(self) -> float:
        return self.memory[int(len(self.memory) * WARM_UP)]

    @property
    def last(self) -> float:
        return self.memory[-1]

    def __str__(self) -> str:
        anonymous = self.anonymous[int(len(self.anonymous) * WARM_UP)], self.anonymous[-1]
        return (
            f"push p50 {self.p50:.0f} us, p99 {self.p99:.0f} us; memory of all processes "
            f"{self.first:.1f} -> {self.last:.1f} MiB (most {max(self.memory):.1f}; "
            f"anonymous {anonymous[0]:.1f} -> {anonymous[1]:.1f})"
        )


# ---- the processes around the daemon ----


def _produce(link: Connection, run_dir: Path, load: Load) -> float:
    """The whole load at an even pace; by how many seconds it ended late."""
    rest = bytes(load.size - HEAD.size)
    pace = load.seconds / (load.records / load.batch)
    with topicd.connect(run_dir) as client:
        link.send(READY)
        link.recv()
        begun = time.monotonic()
        for at in range(0, load.records, load.batch):
            due = begun + at // load.batch * pace
            if (ahead := due - time.monotonic()) > 0:
                time.sleep(ahead)
            now = time.monotonic_ns()
            numbers = range(at, min(at + load.batch, load.records))
            client.publish_many(TOPIC, [HEAD.pack(number, now) + rest for number in numbers])
    return time.monotonic() - begun - load.seconds


def _follow(link: Connection, run_dir: Path, load: Load) -> list[int]:
    """Reads all the time; the age of every record behind the warm-up, in ns."""
    ages: list[int] = []
    with topicd.connect(run_dir) as client, client.watch(TOPIC, "earliest") as watch:
        link.send(READY)
        for payload in _numbered(watch, load):
            number, sent = HEAD.unpack_from(payload)
            if number >= load.records * WARM_UP:
                ages.append(time.monotonic_ns() - sent)
    return ages


def _stand_still(link: Connection, run_dir: Path, load: Load) -> int:
    """Reads a little, stops until it is told to go on, reads the rest; how many it had read before."""
    read, stopped_at = 0, 0
    with topicd.connect(run_dir) as client, client.watch(TOPIC, "earliest", batch_bytes=HUGE_BATCH) as watch:
        link.send(READY)
        for _ in _numbered(watch, load):
            read += 1
            if read == READ_FIRST:
                stopped_at = watch.cursors()[TOPIC]
                link.recv()
    return stopped_at


def _numbered(watch: topicd.Watch, load: Load) -> Iterator[bytes]:
    """Every payload of the load. AssertionError where one is missing, doubled, out of order or replaced by a gap."""
    expected = 0
    for batch in watch.batches():
        assert batch.gap is None, f"a gap at {expected}: {batch.gap}"
        for record in batch:
            number = HEAD.unpack_from(record.data)[0]
            assert (number, record.seq) == (expected, expected + 1), f"{record.seq} is {number}, not {expected}"
            expected += 1
            yield record.data
        if expected == load.records:
            return


# ---- one run ----


def play(root: Path, load: Load, *, with_stopped: bool, **settings: Any) -> Outcome:
    """The load on a fresh daemon. AssertionError if any subscriber does not get every record once and in order."""
    found = Outcome()
    with Daemon(root, **settings) as daemon, ExitStack() as stack:
        daemon.client().configure(TOPIC)
        run_dir = daemon.run.root
        readers = [stack.enter_context(Worker(_follow, run_dir, load)) for _ in range(load.readers)]
        stopped = stack.enter_context(Worker(_stand_still, run_dir, load)) if with_stopped else None
        producer = stack.enter_context(Worker(_produce, run_dir, load))
        for worker in [*readers, producer, *([stopped] if stopped else [])]:
            worker.wait_ready()
        producer.go()
        _measure(daemon, producer, load.seconds / SAMPLES, found)
        if (late := producer.result()) > load.seconds * WARM_UP:
            print(f"the producer could not keep its pace: {late:.1f} s late", flush=True)
        ages = [age for reader in readers for age in reader.result()]
        figures = latency(ages)
        found.p50, found.p99 = figures["p50"], figures["p99"]
        if stopped is not None:
            found.lagged = sum(row["stats"].get("lagged", 0) for row in daemon.status()["processes"] if row["stats"])
            began = time.monotonic()
            stopped.go()
            found.held = stopped.result()
            found.caught_up_s = time.monotonic() - began
    return found


def _measure(daemon: Daemon, producer: Worker, pause: float, found: Outcome) -> None:
    """Memory from time to time until the producer has sent everything."""
    pids = tree(daemon.pid)
    while True:
        found.memory.append(pss_mib(pids))
        found.anonymous.append(pss_mib(pids, "Pss_Anon"))
        if producer.link.poll(pause):
            return


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.process.slow_consumer", description=__doc__)
    parser.add_argument("--records", type=int, default=Load.records)
    parser.add_argument("--seconds", type=float, default=Load.seconds, help="how long the load takes")
    parser.add_argument("--readers", type=int, default=Load.readers, help="subscribers that read")
    given = parser.parse_args()
    load = Load(given.records, given.seconds, readers=given.readers)
    print(f"{load.records} records of {load.size} B in {load.seconds:g} s, {load.readers} readers", flush=True)
    with tempfile.TemporaryDirectory(prefix="topicd-slow-") as scratch:
        without = play(Path(scratch) / "without", load, with_stopped=False)
        print(f"without a stopped subscriber: {without}", flush=True)
        beside = play(Path(scratch) / "with", load, with_stopped=True)
        print(f"with one:                     {beside}", flush=True)
    ratio, growth = beside.p99 / without.p99, beside.last - beside.first
    print(f"it had {beside.held} records when it read again, and all {load.records} {beside.caught_up_s:.1f} s later")
    print(f"p99 {ratio:.2f} x, wanted at most {RATIO_MAX}; memory {growth:+.1f} MiB, wanted at most {GROWTH_MIB_MAX:g}")
    return 0 if ratio <= RATIO_MAX and growth <= GROWTH_MIB_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
