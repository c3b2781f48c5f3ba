"""A thousand watchers of one topic of which ten stop reading: `python -m tests.process.many_watchers`.

Promise: the others get their records as fast as without the ten (p99 within RATIO_MAX), and each of them gets every
record once and in order. The same load runs without and with the stopped ones, `--rounds` times.
"""

from __future__ import annotations

import argparse
import selectors
import socket
import statistics
import struct
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import topicd
from tests.support.daemon import Daemon, wait_until
from topicd.bench.stats import latency
from topicd.bench.worker import READY, Worker
from topicd.frames import core
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import FETCHED, PROTOCOL_VERSION, MessageReader, map_message
from topicd.paths import RunDir

TOPIC = "watched"
HEAD = struct.Struct("<QQ")  # number, moment of its publish call
CREDIT = 1 << 30  # more than any load here: it is the socket that stands still
RATIO_MAX = 1.2


@dataclass(frozen=True)
class Load:
    watchers: int = 1_000
    stopped: int = 10
    records: int = 100
    per_second: float = 5.0
    size: int = 16 * 1024


@dataclass(frozen=True)
class Outcome:
    p50: float  # us
    p99: float
    lagging: int

    def __str__(self) -> str:
        return f"p50 {self.p50 / 1000:.1f} ms, p99 {self.p99 / 1000:.1f} ms, {self.lagging} lagging"


def _subscribed(run_dir: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.connect(str(RunDir(run_dir).delivery_socket(0)))
    sock.sendall(map_message(Op.HELLO, 1, {"version": PROTOCOL_VERSION, "client": "watcher"}))
    sock.sendall(map_message(Op.SUBSCRIBE, 2, {"topics": [{"topic": TOPIC, "tail": True}], "credit": CREDIT}))
    reader, answered = MessageReader(), 0
    while answered < 2:
        answered += len(list(reader.feed(sock.recv(1 << 16))))
    return sock


def _watch(link: Connection, run_dir: Path, load: Load, watchers: int) -> list[int]:
    """Reads all the time; the age of every record at its arrival, in ns."""
    selector, ages, expected = selectors.DefaultSelector(), [], dict.fromkeys(range(watchers), 0)
    for watcher in range(watchers):
        sock = _subscribed(run_dir)
        sock.setblocking(False)
        selector.register(sock, selectors.EVENT_READ, (watcher, MessageReader()))
    link.send(READY)
    left = watchers
    while left:
        for key, _ in selector.select(60):
            watcher, reader = key.data
            arrived = key.fileobj.recv(1 << 20)  # type: ignore[union-attr]
            now = time.monotonic_ns()
            for message in reader.feed(arrived):
                if message.op != Op.PUSH:
                    continue
                frames = bytes(message.body[FETCHED.size + FETCHED.unpack_from(message.body)[5] :])
                for row in core.decode_frames(frames, 0, len(frames)):
                    number, sent = HEAD.unpack_from(row[5])
                    assert number == expected[watcher], f"{number}, not {expected[watcher]}"
                    expected[watcher] += 1
                    ages.append(now - sent)
                    left -= expected[watcher] == load.records
    return ages


def _stand_still(link: Connection, run_dir: Path, watchers: int) -> None:
    socks = [_subscribed(run_dir) for _ in range(watchers)]
    link.send(READY)
    link.recv()
    for sock in socks:
        sock.close()


def play(root: Path, load: Load, *, stopped: bool, **settings: Any) -> Outcome:
    given = {"wal_shards": 1, "delivery_shards": 1, "outbox_bytes": "256KiB", **settings}
    with Daemon(root, **given) as daemon, ExitStack() as stack:
        client = daemon.client()
        client.configure(TOPIC, durability="disk")
        reading = load.watchers - load.stopped
        readers = [stack.enter_context(Worker(_watch, daemon.run.root, load, reading // 2)) for _ in range(2)]
        still = stack.enter_context(Worker(_stand_still, daemon.run.root, load.stopped)) if stopped else None
        for worker in [*readers, *([still] if still else [])]:
            worker.wait_ready()
        _publish(client, load)
        ages = [age for reader in readers for age in reader.result()]

        def lagging() -> int:
            return int(daemon.stats("dlv-00")["lagging"])

        if still is not None:  # the page is written once a second
            wait_until(lambda: lagging() == load.stopped, "those that stand still to lag")
        found = lagging()
        if still is not None:
            still.go()
        figures = latency(ages)
        return Outcome(figures["p50"], figures["p99"], found)


def _publish(client: topicd.Client, load: Load) -> None:
    begun = time.monotonic()
    for number in range(load.records):
        if (ahead := begun + number / load.per_second - time.monotonic()) > 0:
            time.sleep(ahead)
        client.publish(TOPIC, HEAD.pack(number, time.monotonic_ns()) + bytes(load.size - HEAD.size))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.process.many_watchers", description=__doc__)
    parser.add_argument("--watchers", type=int, default=Load.watchers)
    parser.add_argument("--stopped", type=int, default=Load.stopped)
    parser.add_argument("--records", type=int, default=Load.records)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    load = Load(given.watchers, given.stopped, given.records)
    ratios = []
    for _ in range(given.rounds):
        with tempfile.TemporaryDirectory(prefix="topicd-watchers-") as scratch:
            without = play(Path(scratch) / "without", load, stopped=False)
            beside = play(Path(scratch) / "with", load, stopped=True)
        ratios.append(beside.p99 / without.p99)
        print(f"without: {without}; with {load.stopped} stopped: {beside}: p99 {ratios[-1]:.2f} x", flush=True)
    ratio = statistics.median(ratios)
    print(f"{load.watchers} watchers: p99 {ratio:.2f} x in the median, wanted at most {RATIO_MAX:g}")
    return 0 if ratio <= RATIO_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
