"""Tests that are killed leave nothing behind: no daemon, no shared memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, wait_until
from tests.support.reaper import processes_of

ROOT = Path(__file__).resolve().parents[2]
TEST = """
import signal, sys
from pathlib import Path
from tests.support.daemon import Daemon

with Daemon(Path(sys.argv[1]), wal_shards=1, delivery_shards=1):
    print("ready", flush=True)
    signal.pause()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_killed_run_of_tests_leaves_nothing(tmp_path: Path, number: int) -> None:
    run = subprocess.Popen(
        [sys.executable, "-c", TEST, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    with run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"ready\n"
        daemon = Daemon(tmp_path)
        assert len(list(processes_of(str(tmp_path)))) == 4  # supervisor, template, two shards
        assert daemon.shm_left()
        os.killpg(run.pid, number)
        run.wait(60)
    wait_until(lambda: not list(processes_of(str(tmp_path))), "the daemon's end")
    wait_until(lambda: not daemon.shm_left(), "the end of its shared memory")
