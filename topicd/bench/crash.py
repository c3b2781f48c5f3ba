"""A crash of a whole server, and what it costs until records are served again."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable

import psutil

from topicd.bench.load import Figures
from topicd.bench.work import clock_ns


def tree(pid: int) -> list[int]:
    """A process and all its living descendants."""
    try:
        root = psutil.Process(pid)
        return [pid, *(child.pid for child in root.children(recursive=True))]
    except psutil.NoSuchProcess:
        return []


def kill9(server: subprocess.Popen[bytes]) -> None:
    """SIGKILL a server and every descendant; all are gone on return, but for what their new parent has not reaped."""
    victims = [psutil.Process(pid) for pid in tree(server.pid) if psutil.pid_exists(pid)]
    # The parent first, so that it restarts nobody.
    for victim in victims:
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.kill()
    server.wait()
    deadline = time.monotonic() + 10
    while any(map(_runs, victims)) and time.monotonic() < deadline:
        time.sleep(0.002)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def recover(kill9: Callable[[], object], start: Callable[[], object], read_one: Callable[[], int]) -> Figures:
    """Seconds from SIGKILL of every process to the first record read again, and how many of them the start took."""
    begun = clock_ns()
    kill9()
    killed = clock_ns()
    start()
    if not read_one():
        raise RuntimeError("an empty topic is served after the crash")
    done = clock_ns()
    return {"seconds": (done - begun) / 1e9, "start": (done - killed) / 1e9}
