"""A real daemon on directories of its own, watched and killed from outside. Promise: whatever happens, close()
leaves no process and no shared memory behind, and where the tests were killed before it, the reaper does; every wait is
for a condition, until a deadline.

    with Daemon(tmp_path, wal_shards=2) as daemon:
        daemon.client().publish("orders", b"hello")
        daemon.kill("wal-00")
"""

from __future__ import annotations

import fcntl
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

import psutil

import topicd
from tests.support.reaper import REAPER, ROOT_VARIABLE
from topicd.client.blocking.client import Client
from topicd.disk import envelope, identity
from topicd.disk.fs import RealFs
from topicd.errors import TopicdError
from topicd.ipc import shm
from topicd.paths import DataDir, Instance, RunDir

READY_S = 60.0
STOP_S = 30.0
GONE_S = 30.0
LOG_TAIL = 200  # lines shown with a failure
SUPERVISOR = "supervisor"
# Small files and short periods: rotation, checkpoints and snapshots happen within a second of load.
LIVELY: dict[str, Any] = {
    "ring_bytes": "1536KiB",
    "wal_file_bytes": "3MiB",
    "checkpoint_ms": 50,
    "snapshot_ms": 200,
    "segment_max_records": 500,
}
T = TypeVar("T")


def wait_until(condition: Callable[[], T], what: str, timeout: float = READY_S) -> T:
    """The first true value of condition()."""
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout:g} s in vain for {what}")
        time.sleep(0.01)
    return found


class Stopped(NamedTuple):
    code: int
    seconds: float


class Daemon:
    """root holds data, run and log. Settings become flags; restart() may change them."""

    def __init__(self, root: Path, *, env: dict[str, str] | None = None, **settings: Any) -> None:
        self.root = root
        self.settings = settings
        self.data = DataDir(root / "data")
        self.run = RunDir(root / "run")
        self.log_path = root / "topicd.log"
        self._env = env or {}
        self._process: subprocess.Popen[bytes] | None = None
        self._clients: list[Client] = []
        self._shards: dict[int, psutil.Process] = {}  # every child that was seen

    # ---- life ----

    def __enter__(self) -> Self:
        try:
            return self.start().wait_ready()
        except BaseException as exc:
            exc.add_note(self.log_tail())
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if exc is not None:
            exc.add_note(self.log_tail())
        self.close()

    def start(self) -> Self:
        """Launch it; wait_ready() waits."""
        self.root.mkdir(parents=True, exist_ok=True)
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in self.settings.items()]
        where = [f"--data-dir={self.data.root}", f"--run-dir={self.run.root}"]
        REAPER.note(self.root.absolute())
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "topicd", *where, *flags],
                env={**os.environ, **self._env, ROOT_VARIABLE: str(self.root.absolute())},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # A Ctrl-C at the terminal is for the test, which then closes the daemon.
                start_new_session=True,
            )
        return self

    def wait_ready(self, timeout: float = READY_S) -> Self:
        """Until every shard serves."""
        deadline = time.monotonic() + timeout
        while True:
            if not self.running:
                raise AssertionError(f"topicd left with code {self._require().returncode}\n{self.log_tail()}")
            status = self.try_status()
            if status is not None and all(row["state"] == "serving" for row in status["processes"]):
                return self
            if time.monotonic() > deadline:
                raise AssertionError(f"topicd not ready after {timeout:g} s: {status}\n{self.log_tail()}")
            time.sleep(0.01)

    def stop(self, number: int = signal.SIGTERM, timeout: float = STOP_S) -> Stopped:
        """Ask it to leave; exit code and how long it took."""
        process = self._require()
        self.children()
        began = time.monotonic()
        process.send_signal(number)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"topicd did not stop within {timeout:g} s\n{self.log_tail()}") from None
        return Stopped(code, time.monotonic() - began)

    def restart(self, **settings: Any) -> Self:
        """Stop it if it runs, and start it again, with other settings where given."""
        if self.running:
            self.stop()
        self.settings |= settings
        return self.start().wait_ready()

    def close(self) -> None:
        """May be called twice."""
        for client in self._clients:
            client.close()
        self._clients.clear()
        if self._process is not None:
            self.kill_all()
        self.unlink_shared_memory()
        if self._process is not None:
            REAPER.forget(self.root.absolute())

    # ---- looking ----

    def _require(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the daemon was never started"
        return self._process

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        return self._require().poll()

    @property
    def pid(self) -> int:
        return self._require().pid

    def client(self, **options: Any) -> Client:
        """Closed with the daemon at the latest."""
        client = topicd.connect(self.run.root, **{"wait": READY_S, **options})
        self._clients.append(client)
        return client

    def status(self) -> dict[str, Any]:
        with topicd.connect(self.run.root, timeout=READY_S, wait=READY_S) as client:
            return client.status()

    def try_status(self) -> dict[str, Any] | None:
        """None while nobody answers."""
        try:
            with topicd.connect(self.run.root, timeout=1.0) as client:
                return client.status()
        except TopicdError:
            return None

    def pids(self) -> dict[str, int]:
        """Process name to pid, of those that run."""
        return {row["name"]: row["pid"] for row in self.status()["processes"] if row["pid"]}

    def stats(self, name: str) -> dict[str, Any]:
        row = next(row for row in self.status()["processes"] if row["name"] == name)
        return row["stats"] or {}

    def children(self) -> list[psutil.Process]:
        """Shard processes of the running supervisor, asked from the kernel."""
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.pid).children():
                self._shards[child.pid] = child
        return [child for child in self._shards.values() if _lives(child)]

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def log_tail(self) -> str:
        lines = self.log.splitlines()[-LOG_TAIL:]
        return "\n".join([f"---- {self.log_path} ----", *lines])

    # ---- killing ----

    def kill(self, name: str, number: int = signal.SIGKILL) -> int:
        """Signal one process by name; the pid it had."""
        self.children()
        pid = self.pid if name == SUPERVISOR else self.pids()[name]
        os.kill(pid, number)
        if name == SUPERVISOR and number == signal.SIGKILL:
            self._require().wait(GONE_S)
        return pid

    def kill_all(self, chance: random.Random | None = None) -> None:
        """SIGKILL supervisor and children. The supervisor is stopped first, so that it restarts nobody."""
        process = self._require()
        if self.running:
            process.send_signal(signal.SIGSTOP)
        victims = self.children()
        if chance is not None:
            chance.shuffle(victims)
        for victim in victims:
            with suppress(psutil.NoSuchProcess):
                victim.kill()
        if process.poll() is None:
            process.kill()
        process.wait(GONE_S)
        self.wait_children_gone()

    def wait_children_gone(self) -> None:
        wait_until(lambda: not any(_lives(child) for child in self._shards.values()), "shards to leave", GONE_S)
        self._shards.clear()
        # The last thread of a killed process may hold the lock a moment longer than the process shows.
        wait_until(self._lock_is_free, "the data directory's lock", GONE_S)

    def _lock_is_free(self) -> bool:
        try:
            fd = os.open(self.data.lock, os.O_RDWR)
        except FileNotFoundError:
            return True
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(fd)
        return True

    def wait_replaced(self, name: str, old_pid: int, timeout: float = READY_S) -> None:
        """Until another process of that name serves."""

        def replaced() -> bool:
            status = self.try_status()
            rows = status["processes"] if status is not None else []
            return any(r["name"] == name and r["pid"] not in (0, old_pid) and r["state"] == "serving" for r in rows)

        wait_until(replaced, f"{name} to be replaced", timeout)

    # ---- what is left ----

    def instances(self) -> list[str]:
        """Whose shared memory may be there, as the data directory says."""
        try:
            body = envelope.load(RealFs(), self.data.identity, identity.MAGIC, identity.VERSION)
        except (OSError, TopicdError):
            return []
        named = [Instance(**body[key]).instance for key in ("live", "undrained") if body[key]]
        return [*named, *body["garbage"]]

    def unlink_shared_memory(self) -> None:
        for name in self.shm_left():
            shm.unlink(name)

    def shm_left(self) -> list[str]:
        return [name for instance in self.instances() for name in shm.names_of(instance)]


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def drain_topic(client: Client, topic: str, from_seq: int = 0) -> list[Any]:
    """Every record there is, in order."""
    found: list[Any] = []
    while True:
        answer = client.fetch(topic, from_seq, limit=10_000, max_bytes=8 << 20)
        found += answer.records
        if answer.caught_up:
            return found
        assert answer.next_from_seq > from_seq, f"{topic}: reading stands still at {from_seq}"
        from_seq = answer.next_from_seq
