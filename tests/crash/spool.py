"""A client with a spool under SIGKILL, its own and the daemon's, in any order; an oracle knows what it was told.

    python -m tests.crash.spool --rounds 100 --seed 7

The client publishes numbers to a few topics and reports each publish that returned. Each round kills the client, the
daemon, or both, and starts them again. In the end every publish that returned is in its topic, once and in order; one
that was under way may be there or not.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import topicd
from tests.support.daemon import LIVELY, Daemon, drain_topic

ROOT = Path(__file__).resolve().parents[2]
TOPICS = ("orders", "events", "audit")
WAIT_S = 120.0

PUBLISHER = """
import os, random, sys, time
import topicd
socket, directory, seed, number = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
rng = random.Random(seed)
topics = sys.argv[5].split(",")
client = topicd.connect(socket, spool=directory)
os.write(1, b"ready\\n")
while True:
    topic = rng.choice(topics)
    count = rng.choice((1, 1, 1, 5))
    batch = [b"%d" % n for n in range(number, number + count)]
    if count == 1:
        client.publish(topic, batch[0])
    else:
        client.publish_many(topic, batch)
    number += count
    os.write(1, b"%s %d\\n" % (topic.encode(), number))
    time.sleep(rng.choice((0, 0, 0.001)))
"""


class SpoolStorm:
    def __init__(self, root: Path, seed: int) -> None:
        self._random = random.Random(seed)
        self._spool = root / "spool"
        self.daemon = Daemon(root / "d", wal_shards=1, delivery_shards=2, **LIVELY)
        self._next = 0  # numbers below it were given out
        self.told: dict[str, list[int]] = {topic: [] for topic in TOPICS}
        self.kills = 0

    def run(self, rounds: int) -> None:
        with self.daemon:
            client = self._start()
            for _ in range(rounds):
                time.sleep(self._random.uniform(0.0, 0.4))
                victims = self._random.choice((("client",), ("daemon",), ("client", "daemon"), ("daemon", "client")))
                for victim in victims:
                    self.kills += 1
                    if victim == "daemon":
                        self.daemon.kill_all(self._random)
                    else:
                        client = self._end(client)
                for victim in self._random.sample(victims, len(victims)):
                    if victim == "daemon":
                        self.daemon.restart()
                    else:
                        client = self._start()
            self._end(client)
            with topicd.connect(self.daemon.run.socket, spool=self._spool) as last:
                if not last.spool.wait(WAIT_S):
                    raise AssertionError(f"{last.spool.pending} publishes are not sent: {last.spool.error}")
                self._check(last)

    def _start(self) -> subprocess.Popen[str]:
        seed = str(self._random.randrange(2**31))
        args = [str(self.daemon.run.socket), str(self._spool), seed, str(self._next), ",".join(TOPICS)]
        command = [sys.executable, "-c", PUBLISHER, *args]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        if process.stdout is None or process.stdout.readline() != "ready\n":
            raise AssertionError("the publisher did not start")
        return process

    def _end(self, client: subprocess.Popen[str]) -> subprocess.Popen[str]:
        client.kill()
        at = self._next
        for line in client.communicate()[0].split("\n")[:-1]:
            topic, behind = line.split()
            self.told[topic] += range(at, int(behind))
            at = int(behind)
        # One publish may have been under way: its numbers are not used again.
        self._next = at + 10
        return client

    def _check(self, client: topicd.Client) -> None:
        for topic in TOPICS:
            found = [int(record.data) for record in drain_topic(client, topic)]
            if found != sorted(set(found)):
                raise AssertionError(f"{topic}: not once and in order")
            if lost := sorted(set(self.told[topic]) - set(found)):
                raise AssertionError(f"{topic}: {len(lost)} are lost, the first is {lost[0]}")
            extra = set(found) - set(self.told[topic])
            if len(extra) > 5 * (self.kills + 1):
                raise AssertionError(f"{topic}: {len(extra)} more than anybody was told of")


def storm(root: Path, rounds: int, seed: int) -> SpoolStorm:
    found = SpoolStorm(root, seed)
    try:
        found.run(rounds)
    except AssertionError as error:
        error.add_note(f"seed {seed}")
        raise
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        found = storm(Path(directory), options.rounds, options.seed)
    told = sum(map(len, found.told.values()))
    print(f"{found.kills} kills, {told} records published, none lost or doubled; seed {options.seed}")


if __name__ == "__main__":
    main()
