"""`make bench ONLY=tier`: what packing saves, and what history costs when it is packed in the cold directory.

A topic of JSON log lines (10,000,000; 40,000 with QUICK=1). Ratios from its segments, and of small records of other
kinds; rate of reading all of it through the daemon, plain on the fast disk and packed in the cold directory; single
records of packed segments; append and push while the cold directory answers and while it does not for 30 s (10 with
QUICK=1): a filesystem in user space that answers nobody, with somebody who asks for history, both in a process of their
own.

Bars: history 0.5 of plain; single record p50 300 µs, warm; median p99 of append and push 1.1 of the same run.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import topicd
from benchmarks import procs
from benchmarks.peers.base import socket_dir, until_up
from tests.support.badsector import SilentDirectory
from topicd.disk.fs import RealFs
from topicd.errors import TopicdError
from topicd.paths import DataDir
from topicd.shards.storage.segment.index import offset_at
from topicd.shards.storage.segment.info import SegmentInfo
from topicd.shards.storage.segment.load import load_segments
from topicd.shards.storage.segment.packed import pack
from topicd.shards.storage.segment.places import resolve
from topicd.shards.storage.segment.words import DICT_BYTES, Words, train

TOPIC = "logs"
_SERVICES = ("gateway", "orders", "billing", "search", "auth")
_PATHS = ("/v1/orders", "/v1/orders/{}", "/v1/users/{}/cart", "/v1/search", "/healthz", "/v1/payments/{}")
_AGENTS = ("Mozilla/5.0 (X11; Linux x86_64)", "okhttp/4.12", "python-httpx/0.27", "curl/8.5")
LEVEL = 3
READS = 3  # the best of them counts; one is long enough of
MANY = 1_000_000  # records
HISTORY = 40_000  # records
TURN_S = 0.5
BEGIN = 20  # appends of a turn that do not count: the daemon was idle


def lines(count: int) -> Iterator[bytes]:
    chance, now = random.Random(17), 1_760_000_000_000
    for number in range(count):
        now += chance.randrange(5)
        yield json.dumps(
            {
                "ts": now,
                "level": chance.choices(("info", "warn", "error"), (95, 4, 1))[0],
                "service": chance.choice(_SERVICES),
                "trace": f"{chance.getrandbits(64):016x}",
                "method": chance.choice(("GET", "GET", "GET", "POST")),
                "path": chance.choice(_PATHS).format(chance.randrange(1_000_000)),
                "status": chance.choices((200, 201, 304, 404, 500), (80, 8, 6, 5, 1))[0],
                "ms": round(chance.expovariate(0.05), 3),
                "ip": f"10.{chance.randrange(256)}.{chance.randrange(256)}.{chance.randrange(256)}",
                "agent": chance.choice(_AGENTS),
                "n": number,
            },
            separators=(",", ":"),
        ).encode()


def readings(count: int) -> Iterator[bytes]:
    """Of a hundred devices; each says every time who it is."""
    chance = random.Random(18)
    known = [
        {"device": f"{chance.getrandbits(48):012x}", "site": n % 7, "certificate": f"{chance.getrandbits(256):064x}"}
        for n in range(100)
    ]
    for number in range(count):
        what = {"at": 1_760_000_000_000 + number * 17, "celsius": round(chance.gauss(20, 3), 2)}
        yield json.dumps({**chance.choice(known), **what}, separators=(",", ":")).encode()


def traces(count: int) -> Iterator[bytes]:
    """Errors of a program that fails in sixty places."""
    chance = random.Random(19)

    def frame() -> str:
        return f'  File "/srv/{chance.choice(_SERVICES)}/{chance.getrandbits(32):x}.py", line {chance.randrange(900)}'

    known = ["\n".join(frame() for _ in range(chance.randint(5, 9))) for _ in range(60)]
    for line in lines(count):
        what = {"ts": json.loads(line)["ts"], "trace": f"{chance.getrandbits(64):016x}", "stack": chance.choice(known)}
        yield json.dumps(what, separators=(",", ":")).encode()


def dictionaries() -> None:
    """What a dictionary saves depends on what is said again and again, and how far apart."""
    for name, records in (("readings of devices", readings(60_000)), ("stack traces", traces(20_000))):
        frames, ends = bytearray(), list[int]()
        for record in records:
            frames += record
            ends.append(len(frames))
        info = SegmentInfo(1, len(ends), len(frames), 0, 0, 0, True)
        without = pack(frames, ends, 1, LEVEL).size
        made = Words().pack(memoryview(frames), ends, info, LEVEL, pack)
        print(
            f"{name} of {len(frames) // len(ends)} bytes: zstd 1:{len(frames) / without:.2f}, "
            f"with a dictionary of {made.dict_bytes >> 10} KiB 1:{len(frames) / made.size:.2f}",
            flush=True,
        )


def ratios(data: DataDir, topic_id: int) -> str:
    """Of the sealed segments, as many as a minute allows."""
    fs, directory, words = RealFs(), data.topic(topic_id), Words()
    plain = packed = with_words = always = 0
    until = time.monotonic() + 60
    for info in load_segments(fs, directory).segments:
        if not info.sealed or time.monotonic() > until:
            continue
        place = resolve(directory, info.first_seq)
        view, index = place.load(fs, "data").view, place.read_index(fs)
        ends = [offset_at(index, n) for n in range(1, info.count + 1)]
        plain += len(view)
        packed += pack(view, ends, info.first_seq, LEVEL).size
        with_words += words.pack(view, ends, info, LEVEL, pack).size
        always += pack(view, ends, info.first_seq, LEVEL, train(view, ends, DICT_BYTES[0])).size
    return (
        f"bytes: plain {plain}, zstd {packed} (1:{plain / packed:.2f}), "
        f"zstd with a dictionary where it pays {with_words} (1:{plain / with_words:.2f}), "
        f"in every segment {always} (1:{plain / always:.2f})"
    )


def read_rate(client: topicd.Client) -> float:
    at, found, began = 0, 0, time.monotonic()
    while True:
        batch = client.fetch(TOPIC, at, limit=10_000, max_bytes=8 << 20)
        found += len(batch.records)
        at = batch.next_from_seq
        if batch.caught_up:
            return found / (time.monotonic() - began)


def quantile(took: Sequence[float], share: float) -> float:
    return sorted(took)[min(int(len(took) * share), len(took) - 1)] * 1e6


def single(client: topicd.Client, seqs: Sequence[int]) -> list[float]:
    took = []
    for seq in seqs:
        began = time.monotonic()
        client.fetch(TOPIC, seq - 1, limit=1)
        took.append(time.monotonic() - began)
    return took


class Tail:
    """One append after the other, and its push."""

    def __init__(self, client: topicd.Client) -> None:
        client.configure("live", hot_retain_segments=0)
        self._client = client
        self._watch = client.watch("live")
        self._turn(1.0)

    def _turn(self, seconds: float) -> tuple[list[float], list[float]]:
        appended, pushed = list[float](), list[float]()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            began = time.monotonic()
            self._client.publish("live", b"x" * 100)
            appended.append(time.monotonic() - began)
            next(self._watch)
            pushed.append(time.monotonic() - began)
        return appended[BEGIN:], pushed[BEGIN:]

    def turn(self) -> tuple[float, float]:
        """p99 of an append and of its push, µs."""
        appended, pushed = self._turn(TURN_S)
        return quantile(appended, 0.99), quantile(pushed, 0.99)


def settle(client: topicd.Client) -> None:
    client.tier_now(TOPIC)
    while (row := client.tier_state(TOPIC))["waiting"]:
        if row["trouble"]:
            raise SystemExit(row["trouble"])
        time.sleep(0.2)


@contextmanager
def silence(cold: Path, run_dir: Path) -> Iterator[None]:
    """The cold directory does not answer, and somebody waits for what is there."""
    processes = multiprocessing.get_context("spawn")
    begun, over = processes.Event(), processes.Event()
    silent = processes.Process(target=be_silent, args=(cold, run_dir, begun, over))
    silent.start()
    try:
        if not begun.wait(30):
            raise SystemExit("the cold directory could not be made silent: may a filesystem be mounted here?")
        yield
    finally:
        over.set()
        silent.join(30)


def be_silent(cold: Path, run_dir: Path, begun: Any, over: Any) -> None:
    """In a process of its own: what it does takes nothing from those who measure but the machine."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with SilentDirectory(cold) as silent:
        threading.Thread(target=ask, args=(run_dir,), daemon=True).start()
        begun.set()
        benchmark = os.getppid()
        while not over.wait(1) and os.getppid() == benchmark:
            continue  # whatever becomes of it, nothing stays mounted
        silent.answers.set()


def ask(run_dir: Path) -> None:
    """For what is in the cold directory, again and again."""
    with topicd.connect(run_dir, timeout=60) as client:
        while True:
            with suppress(TopicdError):
                client.fetch(TOPIC, 0, limit=1)
                return
            time.sleep(1)


class Bench:
    """A daemon in a directory that may have been filled before."""

    def __init__(self, work_dir: Path) -> None:
        self.data = DataDir(work_dir / "data")
        self.cold = work_dir / "cold"
        self.cold.mkdir(parents=True, exist_ok=True)
        self.run_dir = socket_dir()
        self._log = work_dir / "topicd.log"
        self._argv = [sys.executable, "-m", "topicd", f"--data-dir={work_dir / 'data'}", f"--run-dir={self.run_dir}"]
        self._argv += ["--delivery-shards=1", f"--cold-dir={self.cold}", "--compress=zstd", "--cold-rate-bytes=0"]
        self._process = procs.start_server(self._argv, self._log)

    def client(self) -> topicd.Client:
        def alive() -> bool:
            return self._process.poll() is None

        until_up(lambda: topicd.connect(self.run_dir, timeout=60).close(), "topicd", alive)
        return topicd.connect(self.run_dir, timeout=120)

    def restart(self) -> None:
        self.stop()
        self._process = procs.start_server(self._argv, self._log)

    def stop(self) -> None:
        procs.stop(self._process)


def fill(client: topicd.Client, records: int) -> None:
    client.configure(TOPIC, hot_retain_segments=0, hot_retain_bytes=0)
    with client.producer() as producer:
        for line in lines(records):
            producer.send(TOPIC, line)
    time.sleep(3)  # a checkpoint


def history(client: topicd.Client) -> None:
    client.configure(TOPIC, hot_retain_segments=0)
    settle(client)
    reads = 1 if client.state(TOPIC).count >= MANY else READS
    plain = max(read_rate(client) for _ in range(reads))
    client.configure(TOPIC, hot_retain_segments=1)
    began = time.monotonic()
    settle(client)
    row = client.tier_state(TOPIC)
    print(f"moved {row['segments']['cold_packed']} segments in {time.monotonic() - began:.1f} s", flush=True)
    packed = max(read_rate(client) for _ in range(reads))
    print(f"history: plain {plain:,.0f} records/s, cold and packed {packed:,.0f} ({packed / plain:.2f}, bar 0.5)")


def latencies(client: topicd.Client) -> None:
    through = client.tier_state(TOPIC)["cold_through_seq"]
    chance = random.Random(3)
    few = [chance.randrange(1, through + 1) for _ in range(200)]
    single(client, few)
    warm = single(client, few * 5)
    any_of_all = single(client, [chance.randrange(1, through + 1) for _ in range(1_000)])
    p50, everywhere = quantile(warm, 0.5), quantile(any_of_all, 0.5)
    print(f"single record p50: {p50:.0f} µs warm (bar 300), {everywhere:.0f} µs anywhere", flush=True)


def beside_silence(work_dir: Path, seconds: float) -> None:
    """Two daemons in turns of half a second; the cold directory of the first is silent all the time, then that of the
    other. So both kinds of turns have the same share of what else goes on."""
    twins = [Bench(work_dir / name) for name in ("first", "second")]
    try:
        tails = [opened(twin) for twin in twins]
        found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
        for silent, twin in enumerate(twins):
            with silence(twin.cold, twin.run_dir):
                until = time.monotonic() + seconds
                while time.monotonic() < until:
                    for number, tail in enumerate(tails):
                        found[number == silent].append(tail.turn())
    finally:
        for twin in twins:
            twin.stop()
    for at, name in enumerate(("append", "push")):
        was, now = (median(turn[at] for turn in found[silent]) for silent in (False, True))
        low, high = quantiles([turn[at] for turn in found[False]], n=4)[::2]
        print(
            f"{name} p99, median of {len(found[True])} turns: {was:.0f} µs (half of them {low:.0f} to {high:.0f}), "
            f"{now:.0f} µs beside a cold directory that is silent for {seconds:g} s ({now / was:.2f}, bar 1.1)",
            flush=True,
        )


def opened(bench: Bench) -> Tail:
    """Some history in the cold directory, and a daemon that has read none of it yet."""
    with bench.client() as client:
        fill(client, HISTORY)
        client.configure(TOPIC, hot_retain_segments=1)
        settle(client)
    bench.restart()
    return Tail(bench.client())


def main(work_dir: Path, steps: Sequence[str], records: int, seconds: float) -> int:
    bench = Bench(work_dir)
    try:
        with bench.client() as client:
            if "fill" in steps:
                fill(client, records)
            if "ratios" in steps:
                print(ratios(bench.data, client.state(TOPIC).topic_id), flush=True)
                dictionaries()
            if "history" in steps:
                history(client)
            if "latencies" in steps:
                latencies(client)
    finally:
        bench.stop()
    if "silence" in steps:
        beside_silence(work_dir, seconds)
    return 0


STEPS = ("fill", "ratios", "history", "latencies", "silence")

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--records", type=int, default=None)
    parser.add_argument("--dir", type=Path, default=None, help="stays, so that steps can be done one by one")
    parser.add_argument("--steps", default=",".join(STEPS), help="in this order; the first fills the directory")
    given = parser.parse_args()
    count = given.records or (40_000 if given.quick else 10_000_000)
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as place:
        if given.dir is not None:
            given.dir.mkdir(parents=True, exist_ok=True)
        directory = given.dir or Path(place)
        sys.exit(main(directory, given.steps.split(","), count, 10.0 if given.quick else 30.0))
