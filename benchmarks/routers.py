"""`make bench ONLY=routers`: one source at full speed, with and without ten routers that leave it into two shards. The
same writer fills a topic without routers and one with ten; then the lag is watched until it is gone. Who is first takes
turns: whatever is filled later finds older pages and more to write back.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import topicd
from benchmarks import procs
from benchmarks.peers.base import socket_dir, until_up
from topicd.placement import delivery_shard

DESTS = 10
SHARDS = 2
BATCH = 500
SIZE = 100
BAR = 0.9


class Round(NamedTuple):
    alone: float  # records a second, without routers
    fed: float  # with ten
    lag_max: int  # of the router furthest behind, in records
    drained_s: float  # from the last append until nobody lags
    wal_alone: float  # bytes of the log for each record of the source
    wal_fed: float


def main(work_dir: Path, *, quick: bool) -> int:
    rounds, seconds = (4, 3.0) if quick else (6, 6.0)
    run_dir = socket_dir()
    argv = [sys.executable, "-m", "topicd", f"--data-dir={work_dir / 'data'}", f"--run-dir={run_dir}"]
    argv += [f"--delivery-shards={SHARDS}", "--wal-shards=1"]
    process = procs.start_server(argv, work_dir / "topicd.log")
    try:
        until_up(lambda: _connected(run_dir).close(), "topicd", lambda: process.poll() is None)
        with _connected(run_dir) as client:
            sources = _topology(client)
            found = [_round(client, run_dir, *sources, seconds, fed_first=n % 2 == 1) for n in range(rounds)]
    finally:
        procs.stop(process)
    print(render(found))
    return 0


def _connected(run_dir: Path) -> topicd.Client:
    return topicd.connect(run_dir, timeout=120)


def _topology(client: topicd.Client) -> tuple[str, str]:
    """Two sources in one shard; ten destinations, half of them in the other."""
    names = (f"bench.{n}" for n in range(1_000))
    homes: dict[int, list[str]] = {shard: [] for shard in range(SHARDS)}
    for name in names:
        homes[delivery_shard(name, SHARDS)].append(name)
    alone, fed, *rest = homes[0]
    for dest in [*rest[: DESTS // 2], *homes[1][: DESTS - DESTS // 2]]:
        client.routers.create(f"to-{dest}", fed, dest)
    client.configure(alone)
    return alone, fed


def _round(client: topicd.Client, run_dir: Path, alone: str, fed: str, seconds: float, *, fed_first: bool) -> Round:
    without: Filled | None = None
    if not fed_first:
        without = _fill(client, run_dir, alone, seconds)
    with_ten = _fill(client, run_dir, fed, seconds)
    lag_max = with_ten.lag_max
    while lag := max(one.lag or 0 for one in client.routers.list()):
        lag_max = max(lag_max, lag)
        time.sleep(0.05)
    drained = time.monotonic() - with_ten.ended
    if without is None:
        without = _fill(client, run_dir, alone, seconds)
    return Round(without.rate, with_ten.rate, lag_max, drained, without.wal, with_ten.wal)


class Filled(NamedTuple):
    rate: float  # records a second
    lag_max: int
    wal: float  # bytes of the log for each record
    ended: float  # the last append


def _fill(client: topicd.Client, run_dir: Path, topic: str, seconds: float) -> Filled:
    time.sleep(1.5)  # the pages that the counters come from
    before = _log_bytes(client)
    writer = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.routers", str(run_dir), topic, str(seconds)],
        stdout=subprocess.PIPE,
        text=True,
    )
    lag = 0
    while writer.poll() is None:
        lag = max([lag, *(one.lag or 0 for one in client.routers.list())])
        time.sleep(0.25)
    ended = time.monotonic()
    assert writer.stdout is not None
    count, took = writer.stdout.read().split()
    time.sleep(1.5)
    return Filled(int(count) / float(took), lag, (_log_bytes(client) - before) / int(count), ended)


def _log_bytes(client: topicd.Client) -> int:
    stats: list[dict[str, Any]] = [row.get("stats") or {} for row in client.status()["processes"]]
    return sum(int(page.get("bytes", 0)) for page in stats if "groups" in page)


def write(run_dir: Path, topic: str, seconds: float) -> None:
    """The writer, in a process of its own: batches one behind the other, as many under way as a producer keeps."""
    payload = bytes(SIZE)
    with topicd.connect(run_dir, timeout=120) as client, client.producer(max_batch_records=BATCH) as producer:
        began, count = time.monotonic(), 0
        while time.monotonic() - began < seconds:
            for _ in range(BATCH):
                producer.send(topic, payload)
            count += BATCH
        producer.flush()
        print(count, time.monotonic() - began)


def render(rounds: list[Round]) -> str:
    def median(field: str) -> float:
        return float(statistics.median(getattr(one, field) for one in rounds))

    ratio = statistics.median(one.fed / one.alone for one in rounds)
    lines = [
        f"Routers: one source at full speed, {DESTS} destinations in {SHARDS} shards, records of {SIZE} bytes, "
        f"medians of {len(rounds)} rounds",
        "",
        "| | without routers | with 10 |",
        "|---|---|---|",
        f"| source, records/s | {median('alone'):,.0f} | {median('fed'):,.0f} ({ratio:.2f} of it, bar {BAR}) |",
        f"| log, bytes for each source record | {median('wal_alone'):.0f} | {median('wal_fed'):.0f} |",
        f"| largest lag, records | | {median('lag_max'):,.0f} |",
        f"| until nobody lags, s after the last append | | {median('drained_s'):.1f} |",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("topic")
    parser.add_argument("seconds", type=float)
    given = parser.parse_args()
    write(given.run_dir, given.topic, given.seconds)
