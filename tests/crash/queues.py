"""`python -m tests.crash.queues`: workers on a queue while processes die. Afterwards: no acknowledged job came back,
none is lost, every job ended acknowledged or dead, and what jobs published (`done(then=…)`) is there exactly once.

Half of the workers claim, half are pushed jobs; some jobs fail at times, some are poison and belong to the dead
letters.
"""

from __future__ import annotations

import argparse
import random
import secrets
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.process.wire import Wire, owner
from tests.support.daemon import LIVELY, Daemon, wait_until
from tests.support.jobs import ack_body, claim_body, parse_acked, parse_claimed
from topicd.errors import TopicdError
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import CLAIMED, FLAG_DONE
from topicd.limits import SCATTERED

SHARDS = 2
QUEUE, RESULTS, DEAD = "jobs", "results", "jobs.dead"
LEASE_MS = 1_500
SHARD_KILLS = 2  # in one life of a daemon; more within half a minute, and it gives up
LOST = (EOFError, OSError, TimeoutError, TopicdError)


class Yard:
    """What everybody knows: how to get in, and what was promised."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.stopping = threading.Event()
        self.published: set[int] = set()  # answered
        self.sent = 0
        self.acked: set[int] = set()  # seqs
        self.problems: list[str] = []
        self.delivered = 0

    def wire(self, topic: str) -> Wire:
        return Wire(owner(self.daemon.run.root, topic, SHARDS), timeout=5.0)


def is_poison(number: int) -> bool:
    return number % 17 == 0


class Person(threading.Thread):
    """Does its work again and again, whatever breaks."""

    def __init__(self, yard: Yard, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.yard = yard
        self.chance = random.Random(name)
        self.start()

    def run(self) -> None:
        while not self.yard.stopping.is_set():
            try:
                self.live()
            except LOST:
                time.sleep(0.02)
            except Exception as exc:  # anything else is a finding
                self.yard.problems.append(f"{self.name}: {exc!r}")
                return

    def live(self) -> None:
        raise NotImplementedError


class Publisher(Person):
    def __init__(self, yard: Yard) -> None:
        self._number = 0
        self._producer = secrets.randbits(60) | 1
        self.pace = threading.Event()
        self.pace.set()
        super().__init__(yard, "publisher")

    def live(self) -> None:
        """One job a batch, the same again until it is answered."""
        with self.yard.wire(QUEUE) as wire:
            topic_id = wire.open(QUEUE)
            while not self.yard.stopping.is_set():
                if not self.pace.wait(0.05):
                    continue
                number = self._number + 1
                self.yard.sent = number
                wire.append(topic_id, [b"%d" % number], producer=self._producer, batch_no=number)
                self.yard.published.add(number)
                self._number = number
                time.sleep(0.001)


class Worker(Person):
    def __init__(self, yard: Yard, number: int) -> None:
        self._pushed = bool(number % 2)
        self._finished: list[tuple[int, int]] = []  # which the next claim says
        super().__init__(yard, f"worker-{number}")

    def live(self) -> None:
        with self.yard.wire(QUEUE) as wire, self.yard.wire(RESULTS) as results:
            queue_id, results_id = wire.open(QUEUE), results.open(RESULTS)
            stream, self._finished = 0, []
            if self._pushed:
                stream = wire.send(Op.WORK, {"topic": QUEUE, "node": self.name, "max": 4, "lease_ms": LEASE_MS})
                wire.wait(stream).checked(Op.WORK)
            while not self.yard.stopping.is_set():
                for job in self._take(wire, queue_id, stream):
                    self._do(wire, queue_id, results, results_id, job)

    def _take(self, wire: Wire, queue_id: int, stream: int) -> list[Any]:
        if stream:
            try:
                body = wire.wait(stream, timeout=0.2).body
            except TimeoutError:
                return []
            return parse_claimed(body).jobs if len(body) >= CLAIMED.size else []
        rows, self._finished = self._finished, []
        most = self.chance.choice((1, 3))
        body = claim_body(queue_id, most, node=self.name.encode(), lease_ms=LEASE_MS, wait_ms=200, done=rows)
        answer = wire.wait(wire.send(Op.CLAIM, body, FLAG_DONE if rows else 0)).checked(Op.CLAIM)
        found = parse_claimed(answer.body, answer.flags)
        self.yard.acked |= {seq for seq, _ in rows} - set(found.skipped)
        return found.jobs

    def _do(self, wire: Wire, queue_id: int, results: Wire, results_id: int, job: Any) -> None:
        yard, number = self.yard, int(job.data)
        yard.delivered += 1
        if job.seq in yard.acked:
            yard.problems.append(f"job {job.seq} was acknowledged and came back to {self.name}")
        back = {"topic": QUEUE, "seqs": [job.seq], "leases": [job.lease]}
        if is_poison(number):
            wire.ask(Op.NACK, {**back, "kind": "dead", "reason": "poison"})
            return
        if self.chance.random() < 0.1:
            wire.ask(Op.NACK, {**back, "kind": "fail", "delay_ms": 10, "reason": "bad luck"})
            return
        results.append(results_id, [job.data], producer=SCATTERED | queue_id, batch_no=job.seq)
        if not self._pushed and self.chance.random() < 0.5:
            self._finished.append((job.seq, job.lease))
            return
        answer = wire.wait(wire.send(Op.ACK, ack_body(queue_id, [(job.seq, job.lease)]))).checked(Op.ACK)
        if parse_acked(answer.body).acked:
            yard.acked.add(job.seq)


def storm(root: Path, kills: int, number: int, *, workers: int = 4) -> str:
    """What happened, in a line. Raises AssertionError with all that is wrong."""
    chance = random.Random(number)
    settings = {"wal_shards": SHARDS, "delivery_shards": SHARDS, **LIVELY}
    with Daemon(root, **settings) as daemon:
        yard = Yard(daemon)
        with yard.wire(QUEUE) as wire:
            config = {"type": "queue", "durability": "fsync", "dead_letter": DEAD, "lease_ms": LEASE_MS}
            wire.ask(Op.CONFIGURE, {"topic": QUEUE, "config": config})
        people: list[Person] = [Publisher(yard), *(Worker(yard, n) for n in range(workers))]
        since_start = 0
        for _ in range(kills):
            time.sleep(chance.uniform(0.05, 0.4))
            if since_start < SHARD_KILLS and chance.random() < 0.5:
                victim = chance.choice([f"{kind}-{n:02d}" for kind in ("dlv", "wal") for n in range(SHARDS)])
                daemon.wait_replaced(victim, daemon.kill(victim))
                since_start += 1
            else:
                daemon.kill_all(chance)
                daemon.start().wait_ready()
                since_start = 0
        publisher = people[0]
        assert isinstance(publisher, Publisher)
        publisher.pace.clear()
        wait_until(lambda: _is_empty(yard), "the queue to be worked off", 120)
        yard.stopping.set()
        for person in people:
            person.join(30)
        return _judge(yard)


def _is_empty(yard: Yard) -> bool:
    try:
        with yard.wire(QUEUE) as wire:
            state = wire.ask(Op.STATE, {"topic": QUEUE})
            return bool(state["count"] == 0)
    except LOST:
        return False


def _judge(yard: Yard) -> str:
    problems = list(yard.problems)
    done, dead = _numbers(yard, RESULTS), _numbers(yard, DEAD)
    for name, found in (("result", done), ("dead letter", dead)):
        twice = [number for number, count in found.items() if count > 1]
        if twice:
            problems.append(f"there more than once, as {name}: {twice[:20]}")
    lost = [number for number in yard.published if number not in done and number not in dead]
    if lost:
        problems.append(f"lost: {sorted(lost)[:20]} of {len(lost)}")
    wrong = [n for n in dead if not is_poison(n)] + [n for n in done if is_poison(n)]
    if wrong:
        problems.append(f"ended where they do not belong: {wrong[:20]}")
    unknown = [number for number in [*done, *dead] if number > yard.sent]
    if unknown:
        problems.append(f"nobody sent {unknown[:20]}")
    assert not problems, "\n".join(problems)
    return f"{len(yard.published)} jobs, {yard.delivered} deliveries, {len(done)} results, {len(dead)} dead letters"


def _numbers(yard: Yard, topic: str) -> Counter[int]:
    with yard.wire(topic) as wire:
        return Counter(int(row.data) for row in wire.read_all(wire.open(topic)))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.queues", description=__doc__)
    parser.add_argument("--rounds", type=int, default=100, help="kills")
    parser.add_argument("--seed", type=int, default=None)
    given = parser.parse_args()
    seed = secrets.randbits(31) if given.seed is None else given.seed
    print(f"seed {seed}, {given.rounds} kills", flush=True)
    with tempfile.TemporaryDirectory(prefix="topicd-queues-") as scratch:
        print(storm(Path(scratch), given.rounds, seed), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
