"""Backups in the middle of a storm: shards and whole daemons are killed, writers go on, and a restore to a time has
what was acknowledged by then, in order, and nothing that was sent later.

    python -m tests.crash.backups --rounds N [--seed S]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from tests.support.daemon import LIVELY, Daemon, drain_topic
from topicd.errors import TopicdError

TOPICCTL = [sys.executable, "-m", "topicd.cli.main"]
WRITERS = 3
ROUND_S = 0.6


class Sent(NamedTuple):
    number: int
    asked_ms: int
    acked_ms: int  # 0: never


class Writer(threading.Thread):
    """One topic, numbers in order; each is sent until it is acknowledged."""

    def __init__(self, daemon: Daemon, topic: str, durability: str) -> None:
        super().__init__()
        self.topic = topic
        self.sent: list[Sent] = []
        self.error: TopicdError | None = None
        self.stopping = threading.Event()
        self._client = daemon.client(timeout=120)
        self._client.configure(topic, durability=durability)

    def run(self) -> None:
        number = 0
        while not self.stopping.is_set():
            asked = now_ms()
            try:
                self._client.publish(self.topic, b"%d" % number)
            except TopicdError as exc:
                self.sent.append(Sent(number, asked, 0))
                self.error = exc
                return
            self.sent.append(Sent(number, asked, now_ms()))
            number += 1

    def problems(self, found: list[int], until_ms: int) -> list[str]:
        """acked by then ⊆ found ⊆ asked for by then; in order, without holes."""
        due = [one.number for one in self.sent if one.acked_ms and one.acked_ms <= until_ms]
        may = [one.number for one in self.sent if one.asked_ms <= until_ms]
        if found != list(range(len(found))):
            return [f"{self.topic}: out of order or with holes: {found[:20]}…"]
        if not len(due) <= len(found) <= len(may):
            return [f"{self.topic}: {len(found)} records, {len(due)} acknowledged and {len(may)} sent by then"]
        return []


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def ctl(*args: str) -> dict[str, Any]:
    done = subprocess.run([*TOPICCTL, *args, "--json"], capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise AssertionError(f"{args}: {done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


class Storm:
    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self.chance = Random(seed)
        self.shelf = root / "shelf"
        self.moments: list[int] = []  # times in the middle of it
        self.backups = 0

    def run(self, rounds: int) -> list[str]:
        with Daemon(self.root / "d", wal_shards=2, delivery_shards=2, **LIVELY) as daemon:
            kinds = ("fsync", "disk", "memory")
            writers = [Writer(daemon, f"storm.{n}", kinds[n % len(kinds)]) for n in range(WRITERS)]
            for writer in writers:
                writer.start()
            try:
                for number in range(rounds):
                    self._round(daemon, last=number == rounds - 1)
            finally:
                for writer in writers:
                    writer.stopping.set()
                for writer in writers:
                    writer.join()
        found = [f"{writer.topic}: {writer.error}" for writer in writers if writer.error]
        for number, moment in enumerate(self.moments):
            found += self._restored(writers, moment, number)
        return found

    def _round(self, daemon: Daemon, *, last: bool) -> None:
        time.sleep(ROUND_S / 2)
        self.moments.append(now_ms())
        time.sleep(ROUND_S / 2)
        victim = self.chance.choice(["dlv-00", "dlv-01", "wal-00", "wal-01", "all"])
        if victim == "all":
            daemon.kill_all(self.chance)
            daemon.start().wait_ready()
        else:
            pid = daemon.kill(victim)
            daemon.wait_replaced(victim, pid)
        if last or self.chance.random() < 0.5:
            ctl("backup", "create", str(self.shelf), "--socket", str(daemon.run.root))
            self.backups += 1

    def _restored(self, writers: list[Writer], moment: int, number: int) -> list[str]:
        root = self.root / f"restored-{number}"
        root.mkdir()
        text = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(moment // 1000))}.{moment % 1000:03d}+00:00"
        ctl("backup", "restore", str(self.shelf), str(root / "data"), "--until", text)
        found = []
        with Daemon(root, wal_shards=1, delivery_shards=1) as daemon:
            client = daemon.client()
            for writer in writers:
                numbers = [int(record.data) for record in drain_topic(client, writer.topic)]
                found += [f"until {text}: {line}" for line in writer.problems(numbers, moment)]
                head = client.state(writer.topic).head_seq
                if client.publish(writer.topic, b"later") <= head:
                    found.append(f"{writer.topic}: a seq was given out again")
        return found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=None)
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else Random().randrange(1 << 32)
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory() as root:
        storm = Storm(Path(root), seed)
        found = storm.run(given.rounds)
    print("\n".join(found))
    print(f"{given.rounds} rounds, {storm.backups} backups, {len(storm.moments)} restores, {len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
