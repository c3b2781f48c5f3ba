"""A daemon that nobody needs costs next to nothing, also with topics, connections and subscribers."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.process.procstat import cpu_seconds, voluntary_switches
from tests.process.wire import Wire, owner
from tests.support.daemon import Daemon, wait_until

SHARDS = 2
MEASURED_S = 10.0
CPU_PERCENT = 0.5
# Heartbeat, supervisor's round: one each in a second. The rest is tolerance.
WAKE_UPS_PER_S = 5


@pytest.mark.slow
def test_an_idle_daemon_sleeps(tmp_path: Path) -> None:
    with Daemon(tmp_path, wal_shards=SHARDS, delivery_shards=SHARDS, checkpoint_ms=100, snapshot_ms=500) as daemon:
        wires = []
        for number, durability in enumerate(["memory", "disk", "fsync", "ephemeral"] * 3):
            name = f"topic-{number}"
            wire = Wire(owner(daemon.run.root, name, SHARDS))
            topic_id = wire.open(name, durability=durability)
            wire.append(topic_id, [b"x" * 100] * 100)
            wire.subscribe([{"topic": name}], pattern="*")
            wire.send_fetch(topic_id, 100, wait_ms=30_000)
            wires.append(wire)
        _wait_settled(daemon)
        pids = daemon.pids()
        cpu, switches = cpu_seconds(pids.values()), {name: voluntary_switches(pid) for name, pid in pids.items()}
        time.sleep(MEASURED_S)
        spent = cpu_seconds(pids.values()) - cpu
        woken = {name: voluntary_switches(pid) - switches[name] for name, pid in pids.items()}
        assert 100 * spent / MEASURED_S < CPU_PERCENT, f"{spent} s of CPU in {MEASURED_S} s"
        assert max(woken.values()) < WAKE_UPS_PER_S * MEASURED_S, woken
        assert daemon.pids() == pids
        for wire in wires:
            wire.close()


def _wait_settled(daemon: Daemon) -> None:
    """Until everything is checkpointed, in a snapshot, and two rounds of statistics say the same."""
    seen: list[tuple[int, ...]] = []

    def settled() -> bool:
        stats = [row["stats"] for row in daemon.status()["processes"] if row["stats"]]
        names = ("snapshots", "checkpoints", "tail_bytes", "groups", "syncs", "lsn")
        seen.append(tuple(page.get(name, 0) for page in stats for name in names))
        time.sleep(1.1)
        return len(seen) > 2 and seen[-1] == seen[-2] == seen[-3]

    wait_until(settled, "the daemon to settle", timeout=90)
