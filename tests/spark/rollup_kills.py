"""Streaming rollups that are killed again and again. After each kill one more run succeeds, and every window that is
over was written once, with the right number of records.

python -m tests.spark.rollup_kills [--rounds 100] [--seed N]      real Spark, killed with its JVM
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.spark.rollup_victim import POINTS, WINDOW_MS, options
from tests.support.daemon import Daemon, drain_topic, wait_until
from topicd.client.blocking.client import Client
from topicd.errors import TopicNotFound
from topicd.spark.pipelines import rollup
from topicd.spark.pipelines.session import LazySpark

ROOT = Path(__file__).parents[2]
VICTIM_S = 120.0
SPARK_MS = 2500  # about what Spark works on a step

Windows = Counter[tuple[str, int, int]]  # topic, start, records


class Storm:
    """One rollup with its topics; each round adds records, kills a run, lets one pass, and looks."""

    def __init__(self, client: Client, socket: str, root: Path, name: str, kind: str) -> None:
        self.kind = kind
        self.topics = [f"{name}.{part}" for part in "ab"]
        self._client = client
        self._socket = socket
        self._stats = f"{name}.stats"
        self._root = root / name
        self._target = str(self._root) if kind == "directory" else f"{self._stats}@{self._root}"

    def fill(self) -> None:
        for topic in self.topics:
            for _ in range(3):
                self._client.publish_many(topic, [b"x"] * 20)
                pass_window(self._client, topic)

    def kill(self, point: str, passing: int, *how: str) -> bool:
        """False: it ended before it came to that point."""
        command = ["tests.spark.rollup_victim", self._socket, self._target, ",".join(self.topics), point, str(passing)]
        done = subprocess.run(
            [sys.executable, "-m", *command, *how],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=VICTIM_S,
            start_new_session=True,
        )
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        return done.returncode != 0

    def options(self) -> rollup.Options:
        return options(self._socket, self._target, self.topics)

    def run(self, spark: Any) -> None:
        rollup.run(spark, self.options())

    def check(self) -> None:
        written, wanted = self.written(), self.wanted()
        assert written == wanted, f"missing {wanted - written}, too many {written - wanted}"

    def wanted(self) -> Windows:
        found: Windows = Counter()
        for topic in self.topics:
            windows = Counter(record.ts // WINDOW_MS * WINDOW_MS for record in drain_topic(self._client, topic))
            del windows[max(windows)]  # not over
            found.update((topic, start, count) for start, count in windows.items())
        return found

    def written(self) -> Windows:
        if self.kind == "topic":
            return self._in_topic()
        import pyarrow as pa
        import pyarrow.parquet as pq

        found: Windows = Counter()
        for path in self._root.glob("topic=*/part-*.parquet"):
            table = pq.read_table(path, columns=["start", "records"], partitioning=None)
            starts = table.column("start").cast(pa.timestamp("ms", "UTC")).cast(pa.int64()).to_pylist()
            topic = path.parent.name.removeprefix("topic=")
            found.update(
                (topic, start, n) for start, n in zip(starts, table.column("records").to_pylist(), strict=True)
            )
        return found

    def _in_topic(self) -> Windows:
        from datetime import datetime

        found: Windows = Counter()
        try:
            rows = [record.json() for record in drain_topic(self._client, self._stats)]
        except TopicNotFound:
            rows = []
        for row in rows:
            start = row["start"]
            ms = start if isinstance(start, int) else round(datetime.fromisoformat(start).timestamp() * 1000)
            found[row["topic"], ms, row["records"]] += 1
        return found


def pass_window(client: Client, topic: str) -> None:
    """Until a record is stored in a later window than the newest is in now."""

    def window() -> int:
        return client.fetch(topic, client.state(topic).head_seq - 1).records[-1].ts // WINDOW_MS

    now = window()
    wait_until(lambda: client.publish(topic, b"tick") and window() > now, "the next window")


def aim(kind: str, rng: random.Random) -> tuple[str, int]:
    """A point, and the how manyth passing of it."""
    if rng.random() < 0.4:
        return f"ms-{rng.randrange(SPARK_MS)}", 1
    name = rng.choice(sorted(POINTS[kind]))
    passings = {"renamed": 2, "manifest": 2} if kind == "topic" else {"renamed": 3}
    return f"{rng.choice(('before', 'after'))}-{name}", rng.randint(1, passings.get(name, 1))


def storm(client: Client, socket: str, root: Path, spark: Any, rounds: int, seed: int) -> int:
    """How many of the rounds ended with a kill."""
    rng = random.Random(seed)
    storms = [Storm(client, socket, root, f"storm-{seed}-{kind}", kind) for kind in ("directory", "topic")]
    kills = 0
    for number in range(rounds):
        one = storms[number % 2]
        point, passing = aim(one.kind, rng)
        one.fill()
        began = time.monotonic()
        killed = one.kill(point, passing)
        if rng.random() < 0.5:
            one.fill()
        one.run(spark)
        one.check()
        kills += killed
        took = time.monotonic() - began
        print(f"{number + 1:4d} {one.kind:9s} {point:18s} {passing} {'killed' if killed else 'ended':6s} {took:.1f} s")
    return kills


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    given = parser.parse_args()
    print(f"seed {given.seed}")
    with tempfile.TemporaryDirectory(prefix="topicd-kills-") as name, LazySpark("local[2]") as spark:
        root = Path(name)
        with Daemon(root / "d", wal_shards=1, delivery_shards=2) as daemon:
            kills = storm(daemon.client(), str(daemon.run.socket), root, spark, given.rounds, given.seed)
    print(f"{given.rounds} rounds, {kills} kills: every rerun ended well with the right result")


if __name__ == "__main__":
    main()
