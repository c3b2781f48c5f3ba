"""One child process: its life, its channel and what it said last. Decisions are taken by the loop."""

from __future__ import annotations

import signal
import subprocess
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from topicd.errors import FormatError
from topicd.ipc.control import CONTROL_FD_ENV, BootInfo, ControlChannel, process_name
from topicd.ipc.stats import StatsPage
from topicd.supervisor.kinds import Kind
from topicd.supervisor.restarts import RestartPolicy
from topicd.supervisor.states import CHILD_STATES, RUNNING, ChildState, Machine
from topicd.supervisor.template import Copy, Template, environment

# Until a process has published its first heartbeat it may still be loading its code.
BOOT_GRACE_S = 30.0

_UTIME = 11  # in /proc/<pid>/stat, counted behind the state; the time in the kernel follows


class Child:
    def __init__(self, kind: Kind, index: int, page: StatsPage) -> None:
        self.kind = kind
        self.index = index
        self.name = process_name(kind.name, index)
        self.page = page
        self.policy = RestartPolicy()
        self.restarts = 0
        self.percent = 0.0
        self.what = ""
        self.due = float("-inf")  # when to start it, while in BACKOFF
        self.spawned_at = 0.0
        self.exit_code: int | None = None
        self.told_start = False
        self.wants_ids = False
        self.failed = False  # it said that no restart can help
        self.channel: ControlChannel | None = None
        self._machine = Machine(CHILD_STATES, ChildState.BACKOFF)
        self._process: subprocess.Popen[bytes] | Copy | None = None
        self._served_at: float | None = None
        self._heard_at = 0.0
        self._worked: int | None = None  # clock ticks of processor time, when they were looked at last
        self._inbox: deque[dict[str, Any]] = deque()

    @property
    def state(self) -> ChildState:
        return self._machine.now

    @property
    def running(self) -> bool:
        return self.state in RUNNING

    @property
    def pid(self) -> int:
        """0 while it does not run."""
        return self.last_pid if self.running else 0

    @property
    def last_pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    def spawn(self, boot: BootInfo, fds: Sequence[int], now: float, template: Template | None = None) -> ControlChannel:
        """Start the process. fds: what it inherits beside its control channel, under the same numbers."""
        channel, theirs = ControlChannel.pair()
        self.channel = channel
        try:
            # The boot message waits in the socket, so the child never waits for it.
            channel.send(boot.to_wire())
            inherited = [theirs.fileno(), *fds]
            copy = template.copy(self.kind.name, self.name, inherited) if template and self.kind.copied else None
            self._process = copy or subprocess.Popen(
                self.kind.command,
                stdin=subprocess.DEVNULL,
                pass_fds=inherited,
                env={**environment(), CONTROL_FD_ENV: str(theirs.fileno())},
                # Out of reach of the terminal's Ctrl-C: the supervisor alone decides who stops when.
                start_new_session=True,
            )
        except BaseException:
            self.disconnect()
            raise
        finally:
            theirs.close()
        self.spawned_at = self._heard_at = now
        self._worked = None
        self.told_start = self.wants_ids = False
        self.percent, self.what, self._served_at, self.exit_code = 0.0, "", None, None
        self._machine.move(ChildState.STARTING)
        return channel

    def send(self, body: Mapping[str, Any]) -> bool:
        """False if it cannot be told: dead, or deaf and soon found out by its heartbeat."""
        if self.channel is None:
            return False
        try:
            self.channel.send(dict(body))
        except (EOFError, BufferError):
            return False
        return True

    def flush(self) -> None:
        """Send what its socket had no room for."""
        if self.channel is not None:
            with suppress(EOFError):
                self.channel.flush()

    def collect(self, now: float) -> bool:
        """Take what it said into the inbox. False once it has closed its channel; then stop watching that.
        FormatError if it sends what is no message."""
        if self.channel is None:
            return False
        try:
            found = self.channel.receive()
        except EOFError:
            return False
        if found:
            self._heard_at = now
            self._inbox.extend(found)
        return True

    def next_message(self) -> dict[str, Any] | None:
        return self._inbox.popleft() if self._inbox else None

    def progress(self, percent: Any, what: Any) -> None:
        self.percent = float(percent) if isinstance(percent, int | float) else 0.0
        self.what = str(what or "")
        if self.state is ChildState.STARTING:
            self._machine.move(ChildState.RECOVERING)

    def serving(self, now: float) -> None:
        if self._machine.move(ChildState.SERVING):
            self.percent, self.what, self._served_at = 100.0, "", now

    def silence(self, now: float) -> float:
        """Seconds since the last sign of life, less the grace of a process that has just begun."""
        stats = self.stats()
        if stats is None:
            return now - self._heard_at - BOOT_GRACE_S
        return now - max(self._heard_at, float(stats.get("heartbeat", 0.0)))

    def works(self) -> bool:
        """Has it used the processor since this was asked last, or does it wait for one, or for the disk?"""
        try:
            state, fields = _stat(self.pid)
        except OSError:
            return False
        before, self._worked = self._worked, int(fields[_UTIME]) + int(fields[_UTIME + 1])
        return state in ("R", "D") or (before is not None and self._worked > before)

    def stats(self) -> dict[str, Any] | None:
        """The page of the process that runs now; None if it has not written one yet."""
        with suppress(FormatError):
            found = self.page.read()
            if found is not None and found.get("pid") == self.pid:
                return found
        return None

    def forgive(self, now: float) -> None:
        """Count silence from now: it was the supervisor that slept."""
        self._heard_at = now

    def kill(self, number: int = signal.SIGKILL) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def reap(self) -> bool:
        """True once when the process has ended: exit_code is set then, its last words are in the inbox."""
        if self._process is None or not self.running:
            return False
        code = self._process.poll()
        if code is None:
            return False
        self.exit_code = code
        return True

    def gone(self, due: float | None) -> None:
        """Note its end; due: when to start it again, None for never."""
        self.disconnect()
        self._inbox.clear()
        if due is None:
            self._machine.move(ChildState.EXITED)
        else:
            self.due = due
            self._machine.move(ChildState.BACKOFF)

    def abandon(self) -> None:
        """It is not running and shall not be started again."""
        self._machine.move(ChildState.EXITED)

    def served_s(self, now: float) -> float | None:
        return None if self._served_at is None else now - self._served_at

    def exit_text(self) -> str:
        code = self.exit_code
        if code is None or code >= 0:
            return f"exit code {code}"
        with suppress(ValueError):
            return signal.Signals(-code).name
        return f"signal {-code}"

    def disconnect(self) -> None:
        """Close the channel; a child that still runs takes this as the supervisor's death and leaves."""
        if self.channel is not None:
            self.channel.close()
            self.channel = None


def _stat(pid: int) -> tuple[str, list[str]]:
    """The state of a process, and what follows it in /proc/<pid>/stat."""
    with open(f"/proc/{pid}/stat") as file:
        state, *fields = file.read().rpartition(")")[2].split()
    return state, fields
