"""Other processes: servers with their descendants, memory, and worker processes of the drivers."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import re
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

READY = "ready"
WORKER_TIMEOUT = 120.0
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
    """SIGKILL a server and every descendant; all are gone on return."""
    victims = [psutil.Process(pid) for pid in tree(server.pid) if psutil.pid_exists(pid)]
    # The parent first, so that it restarts nobody.
    for victim in victims:
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.kill()
    server.wait()
    psutil.wait_procs(victims, timeout=10)


def stop(server: subprocess.Popen[bytes], timeout: float = 15.0) -> None:
    """SIGTERM, then SIGKILL."""
    if server.poll() is None:
        server.terminate()
        try:
            server.wait(timeout)
        except subprocess.TimeoutExpired:
            kill9(server)


def pss_mib(pids: Sequence[int], part: str = "Pss") -> float:
    """Proportional set size of all processes together: shared pages are counted once. Parts: Pss_Anon, Pss_File."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            found = re.search(rf"^{part}:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
            total += int(found.group(1)) if found else 0
    return total / 1024


def _child(target: Callable[..., Any], link: Connection, args: tuple[Any, ...]) -> None:
    try:
        link.send(("result", target(link, *args)))
    except Exception as error:
        # Raised again in the process that waits for the result.
        link.send(("error", f"{type(error).__name__}: {error}"))


class Worker:
    """A function in a fresh process. Its first argument is the link, where it sends READY once it is."""

    def __init__(self, target: Callable[..., Any], *args: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.link, theirs = context.Pipe()
        self._process = context.Process(target=_child, args=(target, theirs, args), daemon=True)
        self._process.start()
        theirs.close()

    def receive(self, timeout: float = WORKER_TIMEOUT) -> Any:
        """The next message; an error inside the worker is raised here."""
        if not self.link.poll(timeout):
            raise TimeoutError(f"worker {self._process.pid} said nothing for {timeout:.0f} s")
        message = self.link.recv()
        if isinstance(message, tuple) and message[0] == "error":
            raise RuntimeError(f"worker failed: {message[1]}")
        return message

    def wait_ready(self) -> None:
        if self.receive() != READY:
            raise RuntimeError("worker answered something else than ready")

    def go(self) -> None:
        self.link.send("go")

    def result(self) -> Any:
        return self.receive()[1]

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.join(0.0 if kind else 5.0)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self.link.close()
