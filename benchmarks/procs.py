"""Servers with their descendants, and their memory."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from topicd.bench.crash import kill9, tree

__all__ = ["cpu_seconds", "kill9", "pss_mib", "start_server", "stop", "tree"]
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
