"""topicd with stub children watched from outside. Waits are for conditions, until a deadline."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tests.support.reaper import REAPER, ROOT_VARIABLE
from topicd.ipc import shm
from topicd.ipc.protocol import unixsock
from topicd.ipc.protocol import wire as protocol
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import MessageReader

DAEMON = Path(__file__).with_name("stub_daemon.py")
PATIENCE_S = 30.0
T = TypeVar("T")
Start = Callable[..., "StubDaemon"]


def wait_for(condition: Callable[[], T], what: str, timeout: float = PATIENCE_S) -> T:
    """The first true value of condition()."""
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout:g} s in vain for {what}")
        time.sleep(0.01)
    return found


def alive(pid: int) -> bool:
    """A zombie counts as dead: its parent may be gone or slow."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Link:
    """One connection to the supervisor's socket."""

    def __init__(self, path: Path, greet: bool = True) -> None:
        self.sock = unixsock.connect(path, PATIENCE_S)
        self._reader = MessageReader()
        self._next = 0
        self.hello = self.ask(Op.HELLO, {"version": protocol.PROTOCOL_VERSION}) if greet else {}

    def ask(self, op: int, body: dict[str, Any]) -> dict[str, Any]:
        """The answer's map; an error comes as {"error": map}."""
        self._next += 1
        self.sock.sendall(protocol.map_message(op, self._next, body))
        answer_op, request_id, found = self.receive()
        if answer_op == Op.ERROR:
            return {"error": found}
        assert (answer_op, request_id) == (op | protocol.ANSWER, self._next)
        return found

    def receive(self) -> tuple[int, int, dict[str, Any]]:
        while True:
            piece = self.sock.recv(65536)
            if not piece:
                raise EOFError("closed by the daemon")
            for message in self._reader.feed(piece):
                return message.op, message.request_id, protocol.unpack_map(bytes(message.body))

    def close(self) -> None:
        self.sock.close()


class StubDaemon:
    def __init__(self, root: Path, plan: dict[str, Any] | None = None, **settings: Any) -> None:
        self.root = root
        self.log_file = root / "stub.log"
        self.plan = plan or {}
        self.settings = {"wal_shards": 2, "delivery_shards": 2, "ring_bytes": "2MiB", **settings}
        self.extra_env: dict[str, str] = {}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> StubDaemon:
        self._launch([sys.executable, *self._arguments()])
        return self

    def start_activated(self, listener: socket.socket) -> StubDaemon:
        """As systemd starts a service with a socket unit: descriptor 3 listens."""
        hand_over = "import os, sys; os.dup2(int(sys.argv[1]), 3); os.environ.update(LISTEN_PID=str(os.getpid()), "
        hand_over += "LISTEN_FDS='1'); os.execv(sys.executable, [sys.executable, *sys.argv[2:]])"
        fd = listener.fileno()
        self._launch([sys.executable, "-c", hand_over, str(fd), *self._arguments()], pass_fds=[fd])
        return self

    def _arguments(self) -> list[str]:
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in self.settings.items()]
        return [str(DAEMON), f"--data-dir={self.root / 'data'}", f"--run-dir={self.root / 'run'}", *flags]

    def _launch(self, command: list[str], pass_fds: list[int] | None = None) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        REAPER.note(self.root.absolute())
        plan = {**self.plan, "*": {"log": str(self.log_file), **self.plan.get("*", {})}}
        with (self.root / "out.txt").open("ab") as out, (self.root / "err.txt").open("ab") as err:
            self.process = subprocess.Popen(
                command,
                env={
                    **os.environ,
                    "TOPICD_STUB": json.dumps(plan),
                    ROOT_VARIABLE: str(self.root.absolute()),
                    **self.extra_env,
                },
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                pass_fds=pass_fds or [],
            )

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def out(self) -> str:
        return (self.root / "out.txt").read_text()

    @property
    def err(self) -> str:
        return (self.root / "err.txt").read_text()

    def events(self, what: str | None = None, name: str | None = None) -> list[dict[str, Any]]:
        """What the stubs noted, in order."""
        if not self.log_file.exists():
            return []
        whole = self.log_file.read_text().rpartition("\n")[0]  # one that is being written is not there yet
        lines = [json.loads(line) for line in whole.splitlines()]
        return [e for e in lines if what in (None, e["what"]) and name in (None, e["name"])]

    def wait_ready(self) -> StubDaemon:
        wait_for(lambda: "listens on" in self.out or not self.running, f"READY; log so far:\n{self.err}")
        assert self.running, self.err
        return self

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def wait_answering(self) -> StubDaemon:
        """Until its socket answers, ready or not."""

        def answers() -> bool:
            try:
                return bool(self.status())
            except (FileNotFoundError, ConnectionRefusedError):
                return False

        wait_for(answers, "an answer")
        return self

    @property
    def socket(self) -> Path:
        return self.root / "run" / "topicd.sock"

    def status(self) -> dict[str, Any]:
        link = Link(self.socket)
        try:
            return link.ask(Op.STATUS, {})
        finally:
            link.close()

    def child(self, name: str) -> dict[str, Any]:
        return next(row for row in self.status()["processes"] if row["name"] == name)

    def pids(self) -> list[int]:
        """Every child that ever ran."""
        return sorted({e["pid"] for e in self.events("boot")})

    def stop(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        if self.running:
            self.process.send_signal(number)
        return self.wait_exit()

    def wait_exit(self) -> int:
        assert self.process is not None
        return self.process.wait(PATIENCE_S)

    def instances(self) -> list[str]:
        return sorted({e["instance"] for e in self.events("boot")})

    def shm_left(self) -> list[str]:
        return [name for instance in self.instances() for name in shm.names_of(instance)]

    def clean_up(self) -> None:
        """For the end of a test, however it ended."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        for pid in self.pids():
            if alive(pid):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        for name in self.shm_left():
            shm.unlink(name)
        REAPER.forget(self.root.absolute())


@contextmanager
def stub_daemons(root: Path) -> Iterator[Start]:
    """A maker of daemons (plan, then settings) in one directory; all are gone at the end."""
    made: list[StubDaemon] = []

    def make(plan: dict[str, Any] | None = None, **settings: Any) -> StubDaemon:
        made.append(StubDaemon(root, plan, **settings))
        return made[-1]

    try:
        yield make
    finally:
        for daemon in made:
            daemon.clean_up()
