"""Ends daemons whose test process is gone. Promise: however a run of tests ends (Ctrl-C twice, a time limit, SIGKILL),
no daemon of it runs on and no shared memory of it stays.

One helper process for each test process, in a session of its own. It reads lines from a pipe, `+ROOT` and `-ROOT`, and
the end of the pipe means that nobody is left to close what is still open. A process is a daemon's if its environment
says so: one that was given the number of another meanwhile is safe.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

import psutil

ROOT_VARIABLE = "TEST_DAEMON_ROOT"  # in the environment of each process of a daemon
GONE_S = 10.0


class Reaper:
    """The test process's side."""

    def __init__(self) -> None:
        self._pipe: IO[str] | None = None
        self._owner = 0

    def note(self, root: Path) -> None:
        """A daemon on this directory is about to be started."""
        self._tell(f"+{root}")

    def forget(self, root: Path) -> None:
        """It is closed, and nothing of it is left."""
        if self._owner == os.getpid():
            self._tell(f"-{root}")

    def _tell(self, line: str) -> None:
        if self._pipe is None or self._owner != os.getpid():  # a fork has a helper of its own
            self._pipe, self._owner = self._start(), os.getpid()
        with suppress(BrokenPipeError):  # the helper was killed: then there is none
            self._pipe.write(line + "\n")
            self._pipe.flush()

    @staticmethod
    def _start() -> IO[str]:
        helper = subprocess.Popen(
            [sys.executable, "-m", "tests.support.reaper"],
            cwd=Path(__file__).resolve().parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        helper.returncode = 0  # it outlives us on purpose: not waited for
        assert helper.stdin is not None
        return helper.stdin


REAPER = Reaper()


def processes_of(root: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(ROOT_VARIABLE) == root:
                yield process


def reap(root: str) -> None:
    """The supervisor, which has the lowest number, is stopped first: it restarts nobody."""
    deadline = time.monotonic() + GONE_S
    while found := sorted(processes_of(root), key=lambda process: process.create_time()):
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for process in found:
                with suppress(psutil.Error):
                    process.send_signal(number)
        psutil.wait_procs(found, timeout=1)
        if time.monotonic() > deadline:
            break
    from tests.support.daemon import Daemon  # which knows us

    Daemon(Path(root)).unlink_shared_memory()


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    still_open: dict[str, None] = {}
    for line in sys.stdin:
        kind, root = line[0], line[1:].rstrip("\n")
        if kind == "+":
            still_open[root] = None
        else:
            still_open.pop(root, None)
    for root in still_open:
        reap(root)


if __name__ == "__main__":
    main()
