"""Servers with their descendants, and their memory."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def _die_with_parent() -> None:
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def start_server(argv: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a server that ends with us, whatever happens to us."""
    with log.open("ab") as out:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env={**os.environ, **(env or {})},
            start_new_session=True,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 one system call
        )


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


def stop(server: subprocess.Popen[bytes], timeout: float = 15.0) -> None:
    """SIGTERM, then SIGKILL."""
    if server.poll() is None:
        server.terminate()
        try:
            server.wait(timeout)
        except subprocess.TimeoutExpired:
            kill9(server)


def cpu_seconds(pids: Sequence[int]) -> float:
    """What the processes have used so far."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += sum(psutil.Process(pid).cpu_times()[:2])
    return total


def pss_mib(pids: Sequence[int], part: str = "Pss") -> float:
    """Proportional set size of all processes together: shared pages are counted once. Parts: Pss_Anon, Pss_File."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            found = re.search(rf"^{part}:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
            total += int(found.group(1)) if found else 0
    return total / 1024
