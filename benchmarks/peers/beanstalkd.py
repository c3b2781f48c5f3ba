"""beanstalkd with a binlog, over a Unix socket and no library: its protocol is text, and ours to speak."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks import procs
from benchmarks.drivers import queue
from benchmarks.peers.base import Address, Driver, Peer, socket_dir, until_up
from topicd.bench.load import Figures, Load
from topicd.bench.work import payloads, timed

END = b"\r\n"
CHUNK = 1 << 16
SYNC_MS = {True: 0, False: 1000}
TTR_S = 60


class BeanstalkSession:
    def __init__(self, path: str, tube: str) -> None:
        self._sock = socket.socket(socket.AF_UNIX)
        self._sock.connect(path)
        self._rest = b""
        self._held = b""
        self._ahead: bytes | None = None
        for command in (f"use {tube}", f"watch {tube}", "ignore default"):
            self._ask(command.encode())

    def _ask(self, command: bytes) -> bytes:
        self._sock.sendall(command + END)
        return self._line()

    def _line(self) -> bytes:
        while END not in self._rest:
            self._more()
        line, self._rest = self._rest.split(END, 1)
        return line

    def _body(self, size: int) -> bytes:
        while len(self._rest) < size + len(END):
            self._more()
        body, self._rest = self._rest[:size], self._rest[size + len(END) :]
        return body

    def _more(self) -> None:
        if not (piece := self._sock.recv(CHUNK)):
            raise ConnectionError("beanstalkd closed the connection")
        self._rest += piece

    def put(self, data: bytes) -> object:
        return self._inserted(self._ask(b"put 0 0 %d %d\r\n%b" % (TTR_S, len(data), data)))

    def put_many(self, batch: list[bytes]) -> object:
        self._sock.sendall(b"".join(b"put 0 0 %d %d\r\n%b\r\n" % (TTR_S, len(data), data) for data in batch))
        for _ in batch:
            self._inserted(self._line())
        return len(batch)

    def _inserted(self, answer: bytes) -> bytes:
        if not answer.startswith(b"INSERTED "):
            raise RuntimeError(f"beanstalkd answered {answer!r} to put")
        return answer

    def one(self) -> bytes | None:
        found = self._reserve(b"reserve-with-timeout 0")
        if found is not None:
            self._delete()
        return found

    def chained(self) -> bytes | None:
        if not self._held:
            self._ahead = self._reserve(b"reserve-with-timeout 0")
        finished = self._ahead
        if finished is not None:
            # Both commands in one write; beanstalkd answers them one after the other.
            self._sock.sendall(b"delete %b\r\nreserve-with-timeout 0\r\n" % self._held)
            self._held = b""
            if self._line() != b"DELETED":
                raise RuntimeError("beanstalkd did not delete a job that it had handed out")
            self._ahead = self._reserved(self._line())
        return finished

    def _reserve(self, command: bytes) -> bytes | None:
        return self._reserved(self._ask(command))

    def _reserved(self, answer: bytes) -> bytes | None:
        words = answer.split()
        if words[0] != b"RESERVED":
            return None
        self._held = words[1]
        return self._body(int(words[2]))

    def _delete(self) -> None:
        held, self._held = self._held, b""
        if self._ask(b"delete " + held) != b"DELETED":
            raise RuntimeError("beanstalkd did not delete a job that it had handed out")

    def some(self, limit: int) -> list[bytes]:
        raise NotImplementedError("beanstalkd hands out one job at a time")

    def wait(self) -> bytes:
        if self._held:
            self._delete()
        found = self._reserve(b"reserve")
        assert found is not None
        return found

    def stats(self) -> bytes:
        return self._ask(b"stats")

    def close(self) -> None:
        self._sock.close()


@dataclass(frozen=True)
class Tube:
    path: str
    name: str

    def open(self) -> BeanstalkSession:
        return BeanstalkSession(self.path, self.name)


class Beanstalkd(Peer):
    name = "beanstalkd"
    has_sessions = False

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._run = socket_dir()
        self._servers: dict[bool, subprocess.Popen[bytes]] = {}
        self._tubes = 0

    @classmethod
    def missing(cls) -> str | None:
        return None if shutil.which("beanstalkd") else "beanstalkd not installed"

    def start(self) -> None:
        for durable, sync_ms in SYNC_MS.items():
            place, path = self.root / str(sync_ms), self._path(durable)
            place.mkdir(parents=True, exist_ok=True)
            argv = ["beanstalkd", "-l", f"unix:{path}", "-b", str(place), "-f", str(sync_ms)]
            self._servers[durable] = server = procs.start_server(argv, self.root.with_suffix(".log"))
            until_up(Tube(path, "probe").open, "beanstalkd", lambda server=server: server.poll() is None)  # type: ignore[misc]

    def _path(self, durable: bool) -> str:
        return str(self._run / f"{SYNC_MS[durable]}.sock")

    def stop(self) -> None:
        for server in self._servers.values():
            procs.stop(server)
        self._servers.clear()

    def close(self) -> None:
        super().close()
        shutil.rmtree(self._run, ignore_errors=True)

    def pids(self) -> list[int]:
        return [server.pid for server in self._servers.values()]

    def address(self, durable: bool) -> Address:
        raise NotImplementedError("beanstalkd has no topics")

    @contextlib.contextmanager
    def queue(self, durable: bool) -> Iterator[Tube]:
        self._tubes += 1
        tube = Tube(self._path(durable), f"b{self._tubes}")
        try:
            yield tube
        finally:
            # What a timed round has left: beanstalkd has no command to empty a tube.
            with queue.closing(tube) as session:
                while session.one() is not None:
                    pass

    def facts(self) -> dict[str, str]:
        version = subprocess.run(["beanstalkd", "-v"], capture_output=True, text=True, check=False).stdout.strip()
        return {"version": version, "settings": "-b, -f0 (durable), -f1000 (relaxed); Unix socket, no client library"}

    def drivers(self, test: str, load: Load) -> Mapping[str, Driver]:
        if test == "A":
            return {"put": _put_single}
        if test == "E":
            return {"reserve": _push}
        if test == "F":
            return queue.drivers(load, one="reserve, delete", wait="reserve", both="delete and reserve in one")
        return {}


def _put_single(peer: Beanstalkd, load: Load) -> Figures:
    """A: the next put starts when the last one is answered."""
    with peer.queue(load.durable) as tube, queue.closing(tube) as session:
        session.put(b"x")
        return timed(session.put, payloads(load.size), load.seconds)


def _push(peer: Beanstalkd, load: Load) -> Figures:
    """E: from put to the job in the hands of a worker that waits."""
    return queue.start(peer, dataclasses.replace(load, in_flight=load.records))
