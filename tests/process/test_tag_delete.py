"""One tag deleted among very many sealed records: found by the tag tables, not by looking at the records.

`python -m tests.process.test_tag_delete` does it with a million and prints what it took.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.daemon import Daemon
from tests.support.timewarp import ENVIRON, Warp
from topicd.client.blocking.client import Client

RECORDS = int(os.environ.get("TOPICD_TAG_RECORDS", "200000"))
TAGS = 10_000  # each of them in every segment
DELETES = 5
BATCH = 10_000
TOPIC = "tagged"


class Figures(NamedTuple):
    records: int
    matches: int  # of one tag
    examined: int  # the most of all deletes
    scan_s: float  # reading everything and looking at each tag
    filtered_s: float  # the daemon looks at each record for us
    delete_s: list[float]

    @property
    def ratio(self) -> float:
        return self.scan_s / statistics.median(self.delete_s)


def measure(root: Path, records: int) -> Figures:
    with Daemon(root, env=ENVIRON, delivery_shards=1, wal_shards=1, heartbeat_timeout_s=30) as daemon:
        client = daemon.client(timeout=120.0)
        fill(client, records)
        Warp(daemon).settle()
        last = client.publish(TOPIC, b"not sealed", tag="other")
        assert last == records + 1
        began = time.perf_counter()
        matches = scan(client, tag(0))
        scan_s = time.perf_counter() - began
        began = time.perf_counter()
        assert filtered(client, tag(0)) == matches
        filtered_s = time.perf_counter() - began
        delete_s, examined = [], 0
        for number in range(DELETES):
            began = time.perf_counter()
            answer = client.delete(TOPIC, match=tag(number))
            delete_s.append(time.perf_counter() - began)
            assert answer.deleted == matches
            examined = max(examined, answer.examined)
            assert client.state(TOPIC).count == records + 1 - matches * (number + 1)
        assert filtered(client, tag(0)) == 0
        return Figures(records, matches, examined, scan_s, filtered_s, delete_s)


def tag(number: int) -> str:
    return f"user:{number}"


def fill(client: Client, records: int) -> None:
    for start in range(0, records, BATCH):
        # A multiplier without a common factor spreads each tag over all segments.
        client.publish_many(TOPIC, [(b"x" * 100, tag(n * 7919 % TAGS)) for n in range(start, start + BATCH)])


def scan(client: Client, wanted: str) -> int:
    """What one would have to do without tag tables."""
    found, at = 0, 0
    while True:
        answer = client.fetch(TOPIC, at, limit=100_000, max_bytes=8 << 20)
        found += sum(1 for record in answer.records if record.tag == wanted)
        at = answer.next_from_seq
        if answer.caught_up:
            return found


def filtered(client: Client, wanted: str) -> int:
    found, at = 0, 0
    while True:
        answer = client.fetch(TOPIC, at, limit=100_000, max_bytes=8 << 20, match=wanted)
        found += len(answer)
        at = answer.next_from_seq
        if answer.caught_up:
            return found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_tag_is_deleted_without_looking_at_other_records(tmp_path: Path) -> None:
    figures = measure(tmp_path, RECORDS)
    assert figures.examined - figures.matches <= 1_000
    assert figures.ratio >= 50, f"{figures}"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_delete_of_nearly_everything_is_not_taken_for_death(tmp_path: Path) -> None:
    """Neither at once nor when it is replayed after a crash."""
    with Daemon(tmp_path, env=ENVIRON, delivery_shards=1, wal_shards=1) as daemon:
        client = daemon.client(timeout=120.0)
        fill(client, RECORDS)
        Warp(daemon).settle()
        pid = daemon.pids()["dlv-00"]
        some = client.delete(TOPIC, match="user:1*")
        every = client.delete(TOPIC, match="user:*")
        assert (some.deleted + every.deleted, every.count) == (RECORDS, 0)
        assert daemon.pids()["dlv-00"] == pid
        daemon.kill_all()
        daemon.start().wait_ready()
        state = client.state(TOPIC)
        assert (state.count, state.bytes, state.next_seq) == (0, 0, RECORDS + 1)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.process.test_tag_delete", description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="topicd-tags-") as scratch:
        found = measure(Path(scratch), given.records)
    times = ", ".join(f"{seconds * 1000:.1f}" for seconds in found.delete_s)
    print(f"{found.records} records, {found.matches} with the tag, {found.examined} examined")
    print(f"full scan {found.scan_s:.2f} s, scan in the daemon {found.filtered_s:.2f} s, deletes {times} ms")
    print(f"a delete takes 1/{found.ratio:.0f} of the full scan")
    return 0 if found.ratio >= 50 and found.examined - found.matches <= 1_000 else 1


if __name__ == "__main__":
    sys.exit(main())
