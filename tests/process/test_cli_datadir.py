"""topicctl on the data directory of a daemon that was killed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import topicd
from tests.process.cli_kit import run_ctl
from tests.support.daemon import LIVELY, Daemon, wait_until

DELETED = {*range(1, 100), *range(1201, 1601)}  # of orders


@pytest.fixture
def stopped(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon that was killed in the middle of its work."""
    with Daemon(tmp_path, wal_shards=2, delivery_shards=2, **LIVELY) as running:
        client = running.client()
        for number in range(6):
            client.publish_many("orders", [b"record %d.%d" % (number, n) for n in range(400)], tag=f"t{number}")
            client.publish_many("other", [b"x" * 500] * 300)
        client.delete("orders", 100)
        client.delete("orders", match="t3")
        directory = running.data.topic(client.state("orders").topic_id)
        other = running.data.topic(client.state("other").topic_id)
        wait_until(lambda: len(list(directory.glob("*.tags"))) >= 3 and any(other.glob("*.tags")), "sealed segments")
        running.kill_all()
        yield running


def offline(daemon: Daemon, *args: str, code: int = 0) -> Any:
    done = run_ctl(daemon, *args, "--data-dir", str(daemon.data.root), "--json", code=code)
    if args[0] in ("fsck", "snapshot") or args[1] == "verify":
        return json.loads(done.stdout)
    return [json.loads(line) for line in done.stdout.splitlines()]


def topic_id_of(daemon: Daemon, name: str) -> int:
    rows = offline(daemon, "wal", "dump", "--topic", name) + offline(daemon, "segment", "dump", name, "--deleted")
    return int(next(row["topic_id"] for row in rows))


def test_a_running_daemon_keeps_fsck_out(tmp_path: Path) -> None:
    with Daemon(tmp_path, wal_shards=1, delivery_shards=1) as daemon:
        refused = run_ctl(daemon, "fsck", "--data-dir", str(daemon.data.root), code=5)
        assert f"pid {daemon.pid}" in refused.stderr and "stop the daemon" in refused.stderr


def test_a_killed_daemon_leaves_nothing_that_fsck_calls_damage(stopped: Daemon) -> None:
    found = offline(stopped, "fsck")
    assert found["damaged"] is False
    assert found["topics"] == 2 and found["segments"] >= 4
    assert [f for f in found["findings"] if f["severity"] == "unknown"] == []


def test_offline_tools_read_what_the_daemon_wrote(stopped: Daemon) -> None:
    assert {row["problem"] for row in offline(stopped, "snapshot", "list")} == {None}
    assert all(row["damaged"] is False for row in offline(stopped, "segment", "verify"))
    segments = offline(stopped, "segment", "dump", "orders", "--deleted")
    logged = offline(stopped, "wal", "dump", "--topic", "orders", "--type", "append")
    stored = {line["seq"]: line["data"] for line in [*segments, *logged]}
    assert stored == {n + 1: f"record {n // 400}.{n % 400}" for n in range(2400) if n + 1 in stored}
    assert set(stored) >= set(range(1, 2401)) - DELETED
    assert {line["type"] for line in offline(stopped, "wal", "dump")} & {"append", "producer"}


@pytest.mark.parametrize("name", ["orders", "other"])
def test_a_repaired_daemon_serves_every_readable_record(stopped: Daemon, name: str) -> None:
    directory = stopped.data.topic(topic_id_of(stopped, name))
    data = min(directory.glob("*.tags")).with_suffix(".data")
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 0xFF
    data.write_bytes(content)
    readable = {row["seq"] for row in offline(stopped, "segment", "dump", directory.name, code=1)}
    damage = [f for f in offline(stopped, "fsck", code=1)["findings"] if f["severity"] == "damage"]
    assert {f["path"] for f in damage} == {str(data)}
    lost = set(range(damage[0]["first_seq"], damage[0]["last_seq"] + 1))
    assert all(
        f["action"] for f in offline(stopped, "fsck", "--repair", code=1)["findings"] if f["severity"] == "damage"
    )
    assert offline(stopped, "fsck")["damaged"] is False
    assert list(stopped.data.quarantine.rglob("*.data.*"))

    stopped.start().wait_ready()
    client = stopped.client()
    served = set()
    at, head = 0, client.state(name).head_seq
    while at < head:
        try:
            batch = client.fetch(name, at, limit=1000)
        except topicd.errors.StorageCorrupt as exc:
            assert set(range(exc.detail["first_seq"], exc.detail["last_seq"] + 1)) == lost
            at = exc.detail["last_seq"]
            continue
        served |= {record.seq for record in batch.records}
        at = batch.next_from_seq
    # Of a delete shortly before the kill the segments know nothing yet: it is in the log.
    deleted = DELETED if name == "orders" else set()
    assert readable - served <= deleted
    assert not served & (lost | deleted)


def test_fsck_calls_nothing_damage_that_went_as_it_should(tmp_path: Path) -> None:
    """Whole segments are gone by caps, deletes, acknowledgements and expiry, in front of those that are left."""
    often = {"segment_max_records": 10, "checkpoint_ms": 20, "snapshot_ms": 100}
    with Daemon(tmp_path, wal_shards=1, delivery_shards=1, **often) as daemon:
        client = daemon.client()
        client.configure("capped", cap_records=15)
        client.configure("jobs", type="queue")
        client.configure("short", ttl_ms=1)
        for topic in ("capped", "deleted", "tagged", "short"):
            client.publish_many(topic, [b"%d" % n for n in range(95)], tag="all")
        client.delete("deleted", before_seq=62)
        client.delete("tagged", match="all")
        queue = client.queue("jobs")
        queue.put_many([b"job"] * 95)
        queue.claim(90).done()
        jobs = daemon.data.topic(client.state("jobs").topic_id)

        def gone() -> bool:
            client.publish("capped", b"so that there is something to store")
            return len(list(jobs.glob("seg-*.data"))) == 1 and len(list(daemon.data.topics.rglob("*.data"))) < 12

        wait_until(gone, "segments to go")
        for stop in (daemon.kill_all, daemon.stop):
            stop()
            assert offline(daemon, "fsck")["damaged"] is False
            daemon.start().wait_ready()
            client = daemon.client()
            assert [client.state(topic).count for topic in ("capped", "deleted", "tagged")] == [15, 34, 0]
            client.publish_many("capped", [b"more"] * 20)
