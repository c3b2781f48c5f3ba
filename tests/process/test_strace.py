"""The WAL shard's system calls, counted from outside: one write and one sync for each group, none when idle."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.process.wire import Wire, batch, owner
from tests.support.daemon import Daemon, wait_until

SHARDS = 1
# An attestation when the load ends, and a group that was gathered while we looked.
TOLERANCE = 2
WRITES = "pwritev,pwritev2"  # one call of ours; which of them depends on the C library
_CALL = re.compile(r"^(\w+)\(")


@contextmanager
def traced(pid: int, out: Path, calls: str) -> Iterator[Counter[str]]:
    """The calls of one thread while the block runs; filled in at its end."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    arguments = [strace, "-qq", "-p", str(pid), "-o", str(out), "-e", f"trace={calls}"]
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE)
    found: Counter[str] = Counter()
    try:
        wait_until(lambda: _tracer(pid) == process.pid or process.poll() is not None, "strace to attach", 20)
        if process.poll() is not None:
            assert process.stderr is not None
            pytest.skip(f"strace cannot attach: {process.stderr.read().decode().strip()}")
        yield found
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(20)
    found.update(m.group(1) for line in out.read_text().splitlines() if (m := _CALL.match(line)))


def written(calls: Counter[str]) -> int:
    return calls["pwritev"] + calls["pwritev2"]


def _tracer(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("TracerPid:"):
            return int(line.split()[1])
    return 0


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("strace"), wal_shards=SHARDS, delivery_shards=SHARDS) as running:
        yield running


def settled_stats(daemon: Daemon) -> dict[str, Any]:
    """The WAL shard's counters once they stand still."""
    seen: list[dict[str, Any]] = []

    def still() -> bool:
        seen.append(daemon.stats("wal-00"))
        time.sleep(1.1)
        return len(seen) > 1 and all(seen[-1][name] == seen[-2][name] for name in ("groups", "syncs", "lsn"))

    wait_until(still, "the WAL shard to settle", timeout=90)
    return seen[-1]


@pytest.mark.slow
def test_each_group_is_one_write_and_one_sync(daemon: Daemon, tmp_path: Path) -> None:
    pid = daemon.pids()["wal-00"]
    wires = [Wire(owner(daemon.run.root, "t", SHARDS)) for _ in range(4)]
    topic_id = wires[0].open("t", durability="fsync")
    before = settled_stats(daemon)
    with traced(pid, tmp_path / "trace", f"{WRITES},pwrite64,fdatasync,fsync,sync_file_range") as calls:
        load = [threading.Thread(target=_publish, args=(wire, topic_id, 150)) for wire in wires]
        for thread in load:
            thread.start()
        for thread in load:
            thread.join()
        after = settled_stats(daemon)
    groups, syncs = after["groups"] - before["groups"], after["syncs"] - before["syncs"]
    assert wires[0].state("t")["head_seq"] == 600
    # Four writers who each wait for their answer: some groups hold the writes of several.
    assert 150 <= groups <= 600 + TOLERANCE
    assert abs(written(calls) - groups) <= TOLERANCE, (calls, groups)
    assert abs(calls["fdatasync"] - groups) <= TOLERANCE, (calls, groups)
    assert abs(syncs - groups) <= TOLERANCE
    assert calls["fsync"] == calls["pwrite64"] == calls["sync_file_range"] == 0, calls
    for wire in wires:
        wire.close()


def _publish(wire: Wire, topic_id: int, times: int) -> None:
    for _ in range(times):
        wire.appended(wire.send_append(topic_id, batch([b"x" * 100]), 1))


@pytest.mark.slow
def test_many_writes_under_way_share_their_groups(daemon: Daemon, tmp_path: Path) -> None:
    """While one sync runs the next group gathers by itself."""
    pid = daemon.pids()["wal-00"]
    with Wire(owner(daemon.run.root, "many", SHARDS)) as wire:
        topic_id = wire.open("many", durability="fsync")
        before = settled_stats(daemon)
        with traced(pid, tmp_path / "trace", f"{WRITES},fdatasync") as calls:
            ids = [wire.send_append(topic_id, batch([b"x" * 100]), 1) for _ in range(900)]
            for request_id in ids:
                wire.appended(request_id)
            after = settled_stats(daemon)
    groups = after["groups"] - before["groups"]
    assert groups < 450, groups
    assert abs(written(calls) - groups) <= TOLERANCE, (calls, groups)
    assert abs(calls["fdatasync"] - groups) <= TOLERANCE, (calls, groups)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wal-00", "dlv-00"])
def test_an_idle_shard_makes_next_to_no_calls(daemon: Daemon, tmp_path: Path, name: str) -> None:
    settled_stats(daemon)
    pid = daemon.pids()[name]
    seconds = 5.0
    with traced(pid, tmp_path / "trace", "all") as calls:
        time.sleep(seconds)
    assert sum(calls.values()) < 20 * seconds, calls
