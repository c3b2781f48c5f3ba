"""Queues of a real daemon: workers that die, dead letters in another shard, what a restart keeps."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.process.wire import Wire, owner
from tests.support.daemon import Daemon, wait_until
from tests.support.jobs import Acked, Claimed, ack_body, claim_body, parse_acked, parse_claimed, put_body
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import APPENDED, FLAG_CONFLICT, FLAG_OPTIONS
from topicd.placement import delivery_shard

SHARDS = 2
ROOT = Path(__file__).parents[2]
# A worker as another process: takes jobs, says which, and does nothing more.
WORKER = """
import sys, time
from pathlib import Path
from tests.process.wire import Wire
from tests.support.jobs import claim_body, parse_claimed
from topicd.ipc.protocol.messages import Op
wire, how, lease_ms = Wire(Path(sys.argv[1])), sys.argv[2], int(sys.argv[3])
topic_id = wire.open("jobs")
if how == "push":
    stream = wire.send(Op.WORK, {"topic": "jobs", "node": "w", "max": 2, "lease_ms": lease_ms})
    wire.wait(stream).checked(Op.WORK)
    claimed = parse_claimed(wire.wait(stream).body)
else:
    claimed = parse_claimed(wire.wait(wire.send(Op.CLAIM, claim_body(topic_id, 2, lease_ms=lease_ms))).body)
print(*claimed.seqs, flush=True)
time.sleep(600)
"""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(tmp_path, wal_shards=SHARDS, delivery_shards=SHARDS) as started:
        yield started


class Queue:
    def __init__(self, daemon: Daemon, name: str = "jobs", **config: Any) -> None:
        self.daemon = daemon
        self.name = name
        self.connect()
        if config:
            self.wire.ask(Op.CONFIGURE, {"topic": name, "config": {"type": "queue", **config}})
        self.id = self.wire.open(name)

    def connect(self) -> None:
        self.wire = Wire(owner(self.daemon.run.root, self.name, SHARDS))

    def put(self, data: bytes = b"job", **options: Any) -> tuple[int, int]:
        body = put_body(self.id, [data], [[0, 1, options]])
        reply = self.wire.wait(self.wire.send(Op.APPEND, body, FLAG_OPTIONS)).checked(Op.APPEND)
        return APPENDED.unpack_from(reply.body)[0], reply.flags

    def claim(self, most: int = 10, **how: Any) -> Claimed:
        request = self.wire.send(Op.CLAIM, claim_body(self.id, most, **how))
        return parse_claimed(self.wire.wait(request).checked(Op.CLAIM).body)

    def ack(self, claimed: Claimed) -> Acked:
        body = ack_body(self.id, [(job.seq, job.lease) for job in claimed.jobs])
        return parse_acked(self.wire.wait(self.wire.send(Op.ACK, body)).checked(Op.ACK).body)

    def ask(self, op: Op, **body: Any) -> dict[str, Any]:
        return self.wire.ask(op, {"topic": self.name, **body})

    def worker(self, how: str, lease_ms: int) -> subprocess.Popen[bytes]:
        """It holds two jobs when this returns."""
        path = str(owner(self.daemon.run.root, self.name, SHARDS))
        made = subprocess.Popen(
            [sys.executable, "-c", WORKER, path, how, str(lease_ms)], stdout=subprocess.PIPE, cwd=ROOT
        )
        assert made.stdout is not None and made.stdout.readline().split() == [b"1", b"2"]
        return made


def test_a_killed_worker_gives_back_at_once_what_it_was_pushed(daemon: Daemon) -> None:
    queue = Queue(daemon, lease_ms=600_000)
    for _ in range(3):
        queue.put()
    worker = queue.worker("push", 600_000)
    assert queue.claim().seqs == [3]
    began = time.monotonic()
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    again = queue.claim(wait_ms=30_000)
    assert again.seqs == [1, 2] and [job.deliveries for job in again.jobs] == [1, 1]
    assert time.monotonic() - began < 20, "no lease of ten minutes was waited for"


def test_what_a_killed_worker_has_claimed_comes_back_with_the_lease_and_its_number_is_void(daemon: Daemon) -> None:
    queue = Queue(daemon, lease_ms=600_000)
    for _ in range(2):
        queue.put()
    worker = queue.worker("claim", 1_500)
    worker.kill()
    worker.wait()
    assert queue.claim().jobs == []
    again = queue.claim(wait_ms=30_000)
    assert again.seqs == [1, 2] and [job.deliveries for job in again.jobs] == [2, 2]
    stale = Claimed(again.topic_id, 0, [job._replace(lease=job.lease - 2) for job in again.jobs])
    assert queue.ack(stale).skipped == [1, 2]
    assert queue.ack(again).acked == 2


def test_dead_letters_in_another_shard_and_back(daemon: Daemon) -> None:
    dead = next(
        name for n in range(100) if delivery_shard(name := f"dead-{n}", SHARDS) != delivery_shard("jobs", SHARDS)
    )
    queue = Queue(daemon, max_deliveries=1, dead_letter=dead, backoff_ms=0)
    queue.put(b"poison", priority=8, group="g")
    claimed = queue.claim()
    fields = {"seqs": [1], "leases": [claimed.jobs[0].lease], "reason": "cannot be done"}
    assert queue.ask(Op.NACK, **fields)["dead"] == [1]
    wait_until(lambda: queue.ask(Op.QUEUE_STATE)["dead_lettered"] == 1, "the burial")
    letters = Wire(owner(daemon.run.root, dead, SHARDS))
    (row,) = letters.read_all(letters.open(dead))
    assert row.data == b"poison" and row.meta is not None and b"cannot be done" in row.meta
    assert queue.ask(Op.STATE)["count"] == 0
    assert letters.ask(Op.REDRIVE, {"topic": dead})["redriven"] == 1
    (job,) = queue.claim().jobs
    assert (job.data, job.deliveries) == (b"poison", 1)
    assert queue.ask(Op.QUEUE_WHY, seq=job.seq)["group"] == "g"


@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_a_restart_keeps_what_was_answered(daemon: Daemon, killed: bool) -> None:
    queue = Queue(daemon, leases_durable=True, lease_ms=600_000, backoff_ms=0)
    for options in ({}, {"priority": 9}, {"delay_ms": 600_000}, {"unique": "k"}, {"group": "g"}):
        queue.put(**options)
    held = queue.claim(1)
    assert held.seqs == [2]
    done = queue.claim(1)
    queue.ack(done)
    queue.ask(Op.NACK, seqs=(failed := queue.claim(1)).seqs, leases=[failed.jobs[0].lease], reason="r", delay_ms=0)
    queue.ask(Op.QUEUE_PAUSE, reason="night")
    before = queue.ask(Op.QUEUE_STATE)
    queue.wire.close()
    if killed:
        daemon.kill_all()
        daemon.start().wait_ready()
    else:
        daemon.restart()
    queue.connect()
    after = queue.ask(Op.QUEUE_STATE)
    same = ("ready", "in_flight", "delayed", "acked", "failed", "priorities", "groups", "unique_keys", "paused")
    assert {name: after[name] for name in same} == {name: before[name] for name in same}
    assert queue.claim().jobs == []
    queue.ask(Op.QUEUE_RESUME)
    assert queue.put(unique="k") == (4, FLAG_CONFLICT)
    assert queue.ask(Op.QUEUE_WHY, seq=failed.seqs[0])["reason"] == "r"
    again = queue.claim(1)
    assert again.jobs[0].lease > held.jobs[0].lease
    assert queue.ack(held).acked == 1, "its lease outlived the restart"
