"""A real filesystem that is full for a while: writers are told why, readers go on, nothing acknowledged is lost, and
when there is space again the same processes take writes again."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.process.wire import Wire, owner
from tests.support.daemon import LIVELY, Daemon, drain_topic, wait_until
from tests.support.oracle import Oracle, seen
from tests.support.refusing import Refusals
from topicd.errors import StorageFailed, TopicdError
from topicd.ipc.protocol.messages import Op
from topicd.limits import KIB, MIB
from topicd.paths import DataDir

SHARDS = 2
DISK_BYTES = 48 * MIB
CLASSES = ("fsync", "disk", "memory")
TOPICS = [f"{cls}-{n}" for cls in CLASSES for n in range(2)]
# Checkpoints need space as well: in the second case they fail long before the WAL is at its end.
CASES = {"wal": {}, "checkpoint": {"checkpoint_bytes": "64KiB", "wal_file_bytes": "6MiB"}}


@dataclass
class Disk:
    """A directory that can be filled to the last block."""

    path: Path
    ballast: Path
    environment: dict[str, str] = field(default_factory=dict)  # of processes for which it may be full

    def fill(self) -> None:
        with self.ballast.open("wb", buffering=0) as file:
            if self.environment:
                return  # it is enough that it is there
            for step in (MIB, 4 * KIB, 1):
                with suppress(OSError):
                    while True:
                        file.write(bytes(step))
            with suppress(OSError):
                os.fsync(file.fileno())

    def empty(self) -> None:
        self.ballast.unlink()


@pytest.fixture(params=["ext4", "tmpfs", "preloaded"])
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    """On a filesystem of its own, or one that refuses where none may be mounted."""
    mounted = tmp_path / "disk"
    mounted.mkdir()
    if request.param == "preloaded":
        refusals = Refusals(tmp_path)
        refusals.full(tmp_path / "full", mounted)
        yield Disk(mounted, tmp_path / "full", refusals.environment)
        return
    if request.param == "tmpfs":
        steps = [["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(mounted)]]
    else:
        image = tmp_path / "image"
        with image.open("wb") as file:
            file.truncate(DISK_BYTES)
        steps = [["mkfs.ext4", "-q", "-F", "-m", "0", str(image)], ["mount", "-o", "loop", str(image), str(mounted)]]
    for step in steps:
        try:
            subprocess.run(step, check=True, capture_output=True, text=True, timeout=60)
        except FileNotFoundError:
            pytest.skip(f"{step[0]} is not installed")
        except subprocess.CalledProcessError as exc:
            pytest.skip(f"mounting a {request.param} is not permitted here: {exc.stderr.strip()}")
    try:
        yield Disk(mounted, mounted / "ballast")
    finally:
        subprocess.run(["umount", str(mounted)], check=True, timeout=60)


class Writers:
    """One connection for each topic; what is answered and what is refused is told to the oracle."""

    def __init__(self, daemon: Daemon) -> None:
        self.oracle = Oracle()
        self._daemon = daemon
        self._number = 0
        self._wires = {t: Wire(owner(daemon.run.root, t, SHARDS), timeout=30) for t in TOPICS}
        self._ids = {t: wire.open(t, durability=t.split("-")[0]) for t, wire in self._wires.items()}

    def write(self, topic: str, size: int = 50 * KIB) -> None:
        """Raises what the daemon refuses with."""
        self._number += 1
        payloads = [f"{self._number}.{n}/".encode().ljust(size, b".") for n in range(2)]
        batch = self.oracle.submit(topic, topic, payloads)
        try:
            answer = self._wires[topic].append(self._ids[topic], payloads)
        except TopicdError:
            self.oracle.refused(batch)
            raise
        self.oracle.acked(batch, answer.first_seq)

    def write_until_refused(self, topic: str) -> StorageFailed:
        with pytest.raises(StorageFailed) as refused:
            for _ in range(2 * DISK_BYTES // (100 * KIB)):
                self.write(topic)
        return refused.value

    def works(self, topic: str) -> bool:
        try:
            self.write(topic)
        except StorageFailed:
            return False
        return True

    def problems(self) -> list[str]:
        client = self._daemon.client(timeout=60)
        found = []
        for topic in TOPICS:
            found += self.oracle.check(topic, seen(drain_topic(client, topic)), head_seq=client.state(topic).head_seq)
        client.close()
        return found

    def close(self) -> None:
        for wire in self._wires.values():
            wire.close()


@pytest.mark.slow
@pytest.mark.fault("WAL-03", "CKP-02")
@pytest.mark.timeout(240)
@pytest.mark.parametrize("case", CASES)
def test_a_full_disk_loses_nothing_and_needs_no_restart(small_disk: Disk, tmp_path: Path, case: str) -> None:
    settings: dict[str, Any] = {**LIVELY, "wal_shards": SHARDS, "delivery_shards": SHARDS, **CASES[case]}
    daemon = Daemon(tmp_path / "d", env=small_disk.environment, **settings)
    daemon.data = DataDir(small_disk.path / "data")
    with daemon:
        writers = Writers(daemon)
        for topic in TOPICS:
            writers.write(topic)
        pids = daemon.pids()
        small_disk.fill()

        for topic in TOPICS:
            error = writers.write_until_refused(topic)
            assert "No space left on device" in error.message
            assert error.retriable and error.detail["errno"] == errno.ENOSPC
        if case == "wal":  # else there is room left in the log for a change
            with pytest.raises(StorageFailed), Wire(owner(daemon.run.root, "new", SHARDS)) as wire:
                wire.ask(Op.CONFIGURE, {"topic": "new", "config": {}})
        assert writers.problems() == [], "readers go on"

        small_disk.empty()
        for topic in TOPICS:
            wait_until(lambda topic=topic: writers.works(topic), f"{topic} to take writes again", 30)  # type: ignore[misc]
        assert daemon.pids() == pids, "nobody was restarted"
        assert writers.problems() == []

        small_disk.fill()
        writers.write_until_refused(TOPICS[0])
        daemon.kill_all()
        daemon.start()
        assert wait_until(lambda: daemon.exit_code, "a start on a full disk to be given up", 30) == 1
        assert f'No space left on device" data_dir={daemon.data.root}' in daemon.log
        small_disk.empty()
        daemon.start().wait_ready()
        assert writers.problems() == []
        writers.close()
