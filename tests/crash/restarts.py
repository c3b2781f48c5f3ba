"""A producer and a consumer in processes of their own, and a daemon that is restarted under them again and again.

`python -m tests.crash.restarts --restarts 20 --seed 7`. Promise: every record arrives exactly once and in order, and no
exception reaches either program.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.daemon import Daemon, wait_until

TOPIC = "restarts"
TIMEOUT_S = 120

PRODUCER = f"""
import pathlib, sys, time, topicd
stop, sent = pathlib.Path(sys.argv[2]), 0
with topicd.connect(sys.argv[1], timeout={TIMEOUT_S}) as client, client.producer(linger=0.002) as producer:
    while not stop.exists():
        for _ in range(50):
            producer.send({TOPIC!r}, b"%d" % sent)
            sent += 1
        producer.flush()
    producer.send({TOPIC!r}, b"end")
print(sent)
"""

CONSUMER = f"""
import sys, topicd
with topicd.connect(sys.argv[1], timeout={TIMEOUT_S}) as client, client.consumer({TOPIC!r}, "reader") as consumer:
    for event in consumer:
        print(event.data.decode() if isinstance(event, topicd.Record) else event, flush=True)
        if event.data == b"end":
            break
"""


def run(root: Path, restarts: int, seed: int) -> int:
    """How many records went through; AssertionError says what was wrong."""
    rng = random.Random(seed)
    stop, seen_path = root / "stop", root / "seen"
    with Daemon(root / "d", wal_shards=2, delivery_shards=2) as daemon:
        daemon.client().configure(TOPIC, durability="fsync")
        target = str(daemon.run.root)
        with seen_path.open("w") as seen:
            consumer = _program(CONSUMER, target, stdout=seen)
            producer = _program(PRODUCER, target, str(stop), stdout=subprocess.PIPE)
            for _ in range(restarts):
                before = len(seen_path.read_bytes())
                wait_until(lambda before=before: len(seen_path.read_bytes()) > before + 200, "records to go through")
                _restart(daemon, rng)
            stop.touch()
            printed, producer_errors = producer.communicate(timeout=TIMEOUT_S)
            _, consumer_errors = consumer.communicate(timeout=TIMEOUT_S)
    assert producer.returncode == 0, producer_errors
    assert consumer.returncode == 0, consumer_errors
    sent = int(printed)
    assert seen_path.read_text().split() == [*map(str, range(sent)), "end"]
    return sent


def _program(code: str, *args: str, stdout: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *args]
    return subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE, text=True)  # type: ignore[call-overload,no-any-return]


def _restart(daemon: Daemon, rng: random.Random) -> None:
    if rng.random() < 0.5:
        daemon.stop()
    else:
        daemon.kill_all()
    daemon.start()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--restarts", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    given = parser.parse_args()
    print(f"seed {given.seed}")
    with tempfile.TemporaryDirectory(prefix="topicd-restarts-") as root:
        sent = run(Path(root), given.restarts, given.seed)
    print(f"{given.restarts} restarts, {sent} records, each once and in order")


if __name__ == "__main__":
    main()
