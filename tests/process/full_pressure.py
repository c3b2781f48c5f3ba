"""Writers at full pressure while WAL shards are stopped and go on at random: `python -m tests.process.full_pressure`.

Promise: throttling delays, pauses and refuses, and never loses. Every record that was answered is there afterwards,
once and in the order of its writer; the memory of the daemon is back, and so is its pressure.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import topicd
from benchmarks.procs import pss_mib, tree
from tests.support.daemon import Daemon, wait_until
from topicd.bench.worker import READY, Worker
from topicd.errors import TopicdError

CLASSES = ("disk", "fsync", "memory", "disk")
UNDER_WAY = 2_000  # deliveries that a writer has not looked at
GROWTH_MIB_MAX = 64.0
SETTINGS: dict[str, Any] = {
    "wal_shards": 2,
    "delivery_shards": 2,
    "ring_bytes": "1536KiB",
    "wal_file_bytes": "8MiB",
    "max_inflight_bytes": "8MiB",
    "checkpoint_bytes": "4MiB",
    "heartbeat_timeout_s": 60,
}


@dataclass(frozen=True)
class Load:
    seconds: float = 60.0
    size: int = 2_000
    longest_stop_s: float = 2.0
    seed: int = 1


@dataclass
class Outcome:
    written: int = 0
    refused: int = 0
    stops: int = 0
    throttled: int = 0
    steps: dict[str, int] | None = None
    before_mib: float = 0.0
    most_mib: float = 0.0
    after_mib: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.written} records answered and found, {self.refused} refused for good, {self.throttled} throttled; "
            f"{self.stops} stops of WAL shards; steps begun: {self.steps}; memory {self.before_mib:.0f} -> most "
            f"{self.most_mib:.0f} -> {self.after_mib:.0f} MiB"
        )


def _write(link: Connection, run_dir: Path, topic: str, load: Load) -> tuple[list[int], int]:
    """Floods its topic; the numbers of the records that were answered, and how many were refused for good."""
    answered: list[int] = []
    refused, number = 0, 0
    rest = bytes(load.size)
    with topicd.connect(run_dir, timeout=120) as client, client.producer(timeout=120) as producer:
        link.send(READY)
        link.recv()
        ends = time.monotonic() + load.seconds
        waiting: deque[tuple[int, Any]] = deque()
        while time.monotonic() < ends or waiting:
            if time.monotonic() < ends and len(waiting) < UNDER_WAY:
                waiting.append((number, producer.send(topic, number.to_bytes(8, "little") + rest)))
                number += 1
                continue
            which, delivery = waiting.popleft()
            try:
                delivery.result(120)
                answered.append(which)
            except TopicdError:
                refused += 1
    return answered, refused


def _found(client: topicd.Client, topic: str) -> list[int]:
    return [int.from_bytes(record.data[:8], "little") for record in client.read(topic)]


def play(root: Path, load: Load) -> Outcome:
    """AssertionError if a record that was answered is missing, doubled or out of order."""
    chance, outcome = random.Random(load.seed), Outcome()
    with Daemon(root, **SETTINGS) as daemon, ExitStack() as stack:
        client = daemon.client()
        topics = [f"pressed-{n}-{kind}" for n, kind in enumerate(CLASSES)]
        for topic, kind in zip(topics, CLASSES, strict=True):
            client.configure(topic, durability=kind)
        writers = [stack.enter_context(Worker(_write, daemon.run.root, topic, load)) for topic in topics]
        for writer in writers:
            writer.wait_ready()
        pids = tree(daemon.pid)
        outcome.before_mib = pss_mib(pids, "Pss_Anon")
        for writer in writers:
            writer.go()
        _press(daemon, load, chance, outcome)
        results = [writer.receive(240)[1] for writer in writers]
        for topic, (answered, refused) in zip(topics, results, strict=True):
            _check(topic, answered, _found(client, topic))
            outcome.written += len(answered)
            outcome.refused += refused
        wait_until(lambda: not any(step["active"] for step in _steps(daemon)), "the steps to end", 60)
        outcome.steps = {step["name"]: step["times"] for step in _steps(daemon)}
        outcome.throttled = sum(int(daemon.stats(f"dlv-{n:02d}")["throttled"]) for n in range(2))
        wait_until(lambda: pss_mib(pids, "Pss_Anon") < outcome.before_mib + GROWTH_MIB_MAX, "memory to be back", 60)
        outcome.after_mib = pss_mib(pids, "Pss_Anon")
    return outcome


def _steps(daemon: Daemon) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = daemon.status()["pressure"]["steps"]
    return found


def _press(daemon: Daemon, load: Load, chance: random.Random, outcome: Outcome) -> None:
    """Stop one WAL shard or both for a while, again and again."""
    ends = time.monotonic() + load.seconds
    pids = tree(daemon.pid)
    while (left := ends - time.monotonic()) > 0.1:
        stopped = chance.sample(["wal-00", "wal-01"], chance.randint(1, 2))
        try:
            for name in stopped:
                daemon.kill(name, signal.SIGSTOP)
                outcome.stops += 1
            time.sleep(min(left, chance.uniform(0.2, load.longest_stop_s)))
            outcome.most_mib = max(outcome.most_mib, pss_mib(pids, "Pss_Anon"))
        finally:
            for name in stopped:
                daemon.kill(name, signal.SIGCONT)
        time.sleep(chance.uniform(0.05, 0.5))


def _check(topic: str, answered: list[int], found: list[int]) -> None:
    assert found == sorted(set(found)), f"{topic}: doubled or out of order"
    missing = set(answered) - set(found)
    assert not missing, f"{topic}: {len(missing)} records were answered and are not there, {sorted(missing)[:10]}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.process.full_pressure", description=__doc__)
    parser.add_argument("--seconds", type=float, default=Load.seconds)
    parser.add_argument("--seed", type=int, default=Load.seed)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="topicd-pressure-") as scratch:
        outcome = play(Path(scratch), Load(given.seconds, seed=given.seed))
    print(outcome)
    return 0


if __name__ == "__main__":
    sys.exit(main())
