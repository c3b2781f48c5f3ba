"""A /dev/shm that somebody else fills: a start that finds too little says so and leaves nothing, and a daemon that runs
does not notice."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, drain_topic, wait_until
from topicd.limits import MIB

SIZE = 24 * MIB
FILLER = Path("/dev/shm/filler")
_MOUNT = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", "/dev/shm"]


def fill() -> None:
    """Take what is left of it, to the last page."""
    with FILLER.open("wb", buffering=0) as file:
        for piece in (MIB, 4096):
            try:
                while file.write(bytes(piece)) == piece:
                    pass
            except OSError:
                continue


def scene(root: Path) -> None:
    """In a mount namespace of its own: the whole of /dev/shm is this test's."""
    daemon = Daemon(root, wal_shards=2, delivery_shards=2, ring_bytes="4MiB")
    fill()
    daemon.start()
    wait_until(lambda: not daemon.running, "the refusal")
    assert daemon.exit_code == 1, daemon.log  # the unit tries again
    assert "/dev/shm has 0 MiB free" in daemon.log, daemon.log
    assert "Traceback" not in daemon.log, daemon.log
    assert os.listdir("/dev/shm") == [FILLER.name]
    FILLER.unlink()
    with daemon:
        fill()
        pids = daemon.pids()
        with daemon.client() as client:
            # More than the rings hold, so that every page of them is touched.
            threads = [threading.Thread(target=client.publish_many, args=(f"t{i}", [b"x" * MIB] * 8)) for i in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert [len(drain_topic(client, f"t{i}")) for i in range(4)] == [8] * 4
        assert daemon.pids() == pids, daemon.log
        assert daemon.stop().code == 0
    assert os.listdir("/dev/shm") == [FILLER.name]
    FILLER.unlink()
    beside_a_killed_run(root / "killed")


def beside_a_killed_run(root: Path) -> None:
    """There is room for the rings of one run only, and those of a killed one are not drained yet."""
    with Daemon(root, wal_shards=2, delivery_shards=2, ring_bytes="4MiB") as killed:
        with killed.client() as client:
            client.publish_many("t", [b"x"] * 100)
        killed.kill_all()
        killed.start()
        wait_until(lambda: not killed.running, "the refusal")
        assert "a killed run had not written" in killed.log, killed.log
        assert "ring_bytes = 1536KiB" in killed.log, killed.log
        with Daemon(root, wal_shards=2, delivery_shards=2, ring_bytes="1536KiB") as daemon, daemon.client() as client:
            assert len(drain_topic(client, "t")) == 100


@pytest.mark.fault("SHM-01", "SHM-02")
def test_shared_memory_that_others_fill(tmp_path: Path) -> None:
    program = shlex.join([sys.executable, "-m", "tests.crash.test_shared_memory_full", str(tmp_path)])
    inside = f"{shlex.join(_MOUNT)} && exec {program}"
    if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("a mount namespace is not permitted here")
    done = subprocess.run(["unshare", "-m", "sh", "-c", inside], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


if __name__ == "__main__":
    scene(Path(sys.argv[1]))
