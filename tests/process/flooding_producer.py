"""A producer that floods beside one that waits for each answer: `python -m tests.process.flooding_producer`.

Promise: both write to the same shard, and the flood does not make the interactive one's p99 longer than RATIO_MAX times
what it is alone. The interactive load runs alone, with the flood, and alone again, `--rounds` times.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import topicd
from tests.support.daemon import Daemon
from topicd._native import core
from topicd.bench.stats import latency
from topicd.bench.worker import READY, Worker
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import APPEND, PROTOCOL_VERSION, map_message, message
from topicd.paths import RunDir

RATIO_MAX = 3.0


@dataclass(frozen=True)
class Load:
    seconds: float = 5.0
    durability: str = "disk"
    batch: int = 100  # records of one message of the flood
    size: int = 100
    floods: int = 1
    pause_s: float = 0.002  # between an answer and the next record


@dataclass(frozen=True)
class Outcome:
    p50: float  # us
    p99: float
    flood_mb_s: float = 0.0
    paused: float = 0.0  # so much of the time, as the daemon says

    def __str__(self) -> str:
        flood = f", beside {self.flood_mb_s:.0f} MB/s (pauses {self.paused:.0%})" if self.flood_mb_s else ""
        return f"p50 {self.p50:.0f} us, p99 {self.p99:.0f} us{flood}"


def _interact(link: Connection, run_dir: Path, load: Load) -> list[int]:
    """One record, its answer, a moment, the next; how long each took, in ns."""
    took: list[int] = []
    with topicd.connect(run_dir) as client:
        client.publish("interactive", b"x" * load.size)
        link.send(READY)
        link.recv()
        ends = time.monotonic() + load.seconds
        while time.monotonic() < ends:
            began = time.perf_counter_ns()
            client.publish("interactive", b"x" * load.size)
            took.append(time.perf_counter_ns() - began)
            time.sleep(load.pause_s)
    return took


def _flood(link: Connection, run_dir: Path, topic_id: int, load: Load) -> float:
    """As fast as the socket takes it, whatever the answers are, until it is told to stop; MB/s that were sent."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.connect(str(RunDir(run_dir).delivery_socket(0)))
    sock.sendall(map_message(Op.HELLO, 1, {"version": PROTOCOL_VERSION, "client": "flood"}))
    frames = bytes(core.encode_batch([b"y" * load.size] * load.batch, None, None, None))
    piece = message(Op.APPEND, 7, APPEND.pack(topic_id, 0, 0, load.batch) + frames)
    piece *= max(1, 65_536 // len(piece))
    threading.Thread(target=_drain, args=(sock,), daemon=True).start()
    stopped = threading.Event()
    threading.Thread(target=lambda: (link.recv(), stopped.set()), daemon=True).start()
    link.send(READY)
    sent, began = 0, time.monotonic()
    while not stopped.is_set():
        sock.sendall(piece)
        sent += len(piece)
    return sent / (time.monotonic() - began) / 1e6


def _drain(sock: socket.socket) -> None:
    while sock.recv(1 << 20):
        pass


def play(root: Path, load: Load, *, flood: bool, **settings: Any) -> Outcome:
    with Daemon(root, **{"wal_shards": 1, "delivery_shards": 1, **settings}) as daemon, ExitStack() as stack:
        client = daemon.client()
        client.configure("interactive", durability=load.durability)
        client.configure("flood", durability=load.durability, cap_bytes=64 << 20)
        run_dir, topic_id = daemon.run.root, client.state("flood").topic_id
        writer = stack.enter_context(Worker(_interact, run_dir, load))
        writer.wait_ready()
        flooders = [stack.enter_context(Worker(_flood, run_dir, topic_id, load)) for _ in range(load.floods * flood)]
        for flooder in flooders:
            flooder.wait_ready()
        if flooders:
            time.sleep(0.5)  # until they are in full swing
        writer.go()
        time.sleep(0.7 * load.seconds)
        paused = daemon.status()["pressure"]["shards"][0]["paused"]
        found = latency(writer.result())
        for flooder in flooders:
            flooder.go()
        return Outcome(found["p50"], found["p99"], sum(flooder.result() for flooder in flooders), paused)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.process.flooding_producer", description=__doc__)
    parser.add_argument("--seconds", type=float, default=Load.seconds)
    parser.add_argument("--durability", default=Load.durability)
    parser.add_argument("--batch", type=int, default=Load.batch, help="records of one message of the flood")
    parser.add_argument("--floods", type=int, default=Load.floods, help="producers that flood")
    parser.add_argument(
        "--pause", type=float, default=Load.pause_s, help="seconds between an answer and the next record"
    )
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    load = Load(given.seconds, given.durability, given.batch, floods=given.floods, pause_s=given.pause)
    ratios = []
    for _ in range(given.rounds):
        with tempfile.TemporaryDirectory(prefix="topicd-flood-") as scratch:
            alone = play(Path(scratch) / "alone", load, flood=False)
            beside = play(Path(scratch) / "beside", load, flood=True)
        ratios.append(beside.p99 / alone.p99)
        print(f"alone {alone}; with a flood {beside}: p99 {ratios[-1]:.2f} x", flush=True)
    ratio = statistics.median(ratios)
    print(f"{load.durability}, batches of {load.batch}: p99 {ratio:.2f} x in the median, wanted at most {RATIO_MAX:g}")
    return 0 if ratio <= RATIO_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
