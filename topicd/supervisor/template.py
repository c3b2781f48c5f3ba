"""The template: a process that has the code of shards and gateway loaded and copies itself when one is to start.
Promise: it is a shorter way and no other: where it is missing, dead or silent, the supervisor starts it itself.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

from topicd import _native
from topicd.ipc import template
from topicd.limits import MIB

COMMAND = (sys.executable, "-P", "-m", "topicd.shards.template")
ANSWER_S = 5.0  # it may still be loading, on a machine that is busy
_END_S = 2.0
_MISSING = "no template, processes start without it"
log = logging.getLogger(__name__)


# Batches come and go by the megabyte: keep their memory instead of giving it back and faulting it in again. It is
# bounded by what may be under way and by checkpoint_bytes.
_MALLOC = {
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": str(32 * MIB),
    "MALLOC_TRIM_THRESHOLD_": str(128 * MIB),
    "MALLOC_TOP_PAD_": str(MIB),
}


def environment() -> dict[str, str]:
    """Of every process."""
    return {**_MALLOC, **os.environ}


class Copy:
    """A process that began as a copy: a child of the supervisor, though it did not make it. As subprocess.Popen."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        if self._code is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                pid, status = self.pid, 0  # somebody else waited for it
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def send_signal(self, number: int) -> None:
        # Until it was waited for, its number cannot be another process'.
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


class Template:
    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    @property
    def pid(self) -> int:
        """0 while there is none."""
        return self._process.pid if self._process is not None else 0

    def open(self) -> None:
        """It loads while the supervisor does other things."""
        if _native.keep_orphans is None:
            return  # copies would not be the supervisor's children
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as exc:
            log.warning(_MISSING, extra={"error": exc})
            return
        try:
            _native.keep_orphans()
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**environment(), template.TEMPLATE_FD_ENV: str(theirs.fileno())},
                start_new_session=True,
            )
        except OSError as exc:
            log.warning(_MISSING, extra={"error": exc})
            ours.close()
        else:
            self._socket = ours
        finally:
            theirs.close()

    def copy(self, kind: str, name: str, fds: Sequence[int]) -> Copy | None:
        """None: the process must be started in another way."""
        if self._socket is None:
            return None
        try:
            return Copy(template.ask(self._socket, kind, name, fds, ANSWER_S))
        except (OSError, ValueError) as exc:
            log.warning("no copy of the template", extra={"child": name, "error": exc})
            self.close()
            return None

    def reap(self) -> None:
        """Bury it if it died, and have another one: the next process that dies shall not wait for it."""
        if self._process is not None and self._process.poll() is not None:
            log.warning("the template died", extra={"pid": self._process.pid, "exit": self._process.returncode})
            self.close()
            self.open()

    def close(self) -> None:
        """It leaves when its socket closes."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._process.send_signal(signal.SIGKILL)
                self._process.wait()
            self._process = None
