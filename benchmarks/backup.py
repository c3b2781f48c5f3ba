"""`make bench-backup SIZE=10GiB`: how long a backup takes beside a writer, its room, and how long appends wait.

So much is written to one topic, in segments of 64 MiB; then a backup on the same filesystem, a second one, and one that
copies (on DIR=… of another filesystem, if given).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import topicd
from benchmarks import procs
from benchmarks.peers.base import socket_dir, until_up
from topicd import values

RECORD = 64 << 10
TOPICCTL = [sys.executable, "-m", "topicd.cli.main"]


def size_of(text: str) -> int:
    return int(values.parse(text, {"kind": "size"}))


class Appends(threading.Thread):
    """One durable append after the other; how long each took."""

    def __init__(self, run_dir: Path) -> None:
        super().__init__()
        self.took: list[float] = []
        self.stopping = threading.Event()
        self._client = topicd.connect(run_dir, timeout=60)
        self._client.configure("beside", durability="fsync")

    def run(self) -> None:
        while not self.stopping.is_set():
            began = time.monotonic()
            self._client.publish("beside", b"x" * 100)
            self.took.append(time.monotonic() - began)

    def finish(self) -> str:
        self.stopping.set()
        self.join()
        ranked = sorted(self.took)
        p99 = ranked[len(ranked) * 99 // 100]
        return f"appends beside it: {len(ranked)}, p99 {p99 * 1000:.1f} ms, longest {ranked[-1] * 1000:.1f} ms"


def used_bytes(path: Path) -> int:
    stat = os.statvfs(path)
    return (stat.f_blocks - stat.f_bfree) * stat.f_frsize


def create(shelf: Path, run_dir: Path) -> dict[str, Any]:
    done = subprocess.run(
        [*TOPICCTL, "backup", "create", str(shelf), "--json", "--socket", str(run_dir), "--timeout", "120"],
        check=True,
        capture_output=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def fill(run_dir: Path, size: int) -> None:
    with topicd.connect(run_dir, timeout=120) as client, client.producer() as producer:
        for _ in range(max(1, size // RECORD)):
            producer.send("bulk", os.urandom(64) * (RECORD // 64))


STEPS = ("fill", "backups")


def main(work_dir: Path, size: int, other: Path | None, steps: Sequence[str]) -> int:
    run_dir = socket_dir()
    argv = [sys.executable, "-m", "topicd", f"--data-dir={work_dir / 'data'}", f"--run-dir={run_dir}"]
    process = procs.start_server(argv, work_dir / "topicd.log")
    try:
        until_up(lambda: topicd.connect(run_dir, timeout=60).close(), "topicd", lambda: process.poll() is None)
        if "fill" in steps:
            fill(run_dir, size)
        if "backups" not in steps:
            return 0
        shelves = [("first, linked", work_dir / "shelf"), ("second, linked", work_dir / "shelf")]
        shelves += [("copied", other), ("copied, second", other)] if other is not None else []
        for name, shelf in shelves:
            appends = Appends(run_dir)
            appends.start()
            before = used_bytes(work_dir)
            made = create(shelf, run_dir)
            grown = used_bytes(work_dir) - before
            print(
                f"{name}: {made['bytes'] >> 20} MiB in {made['seconds']:.2f} s, "
                f"{made['copied_bytes'] >> 20} MiB copied, "
                f"the disk grew by {grown >> 20} MiB; {appends.finish()}",
                flush=True,
            )
    finally:
        procs.stop(process)
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=size_of, default=size_of("1GiB"))
    parser.add_argument("--dir", type=Path, default=None)
    parser.add_argument("--work", type=Path, default=None, help="stays, so that steps can be done one by one")
    parser.add_argument("--steps", default=",".join(STEPS))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as place:
        if given.work is not None:
            given.work.mkdir(parents=True, exist_ok=True)
        sys.exit(main(given.work or Path(place), given.size, given.dir, given.steps.split(",")))
