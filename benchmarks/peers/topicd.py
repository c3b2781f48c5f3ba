"""topicd itself: a real daemon on a directory of its own, through the public client."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import topicd
from benchmarks import procs
from benchmarks.peers.base import Cursor, Driver, Handler, Peer, Session, socket_dir, until_up
from topicd.bench.fan import watches
from topicd.bench.load import Load, Where
from topicd.client.blocking.job import Jobs
from topicd.client.blocking.work import Work

DURABLE: Final = "fsync"
RELAXED: Final = "disk"
CLEARED_S = 60.0
PREFETCH = 100


class TopicdSession:
    def __init__(self, socket: str) -> None:
        self.client = topicd.connect(socket)

    def append(self, topic: str, data: bytes) -> object:
        return self.client.publish(topic, data)

    def append_many(self, topic: str, batch: list[bytes]) -> Cursor:
        return self.client.publish_many(topic, batch).last_seq

    def fetch(self, topic: str, after: Cursor, limit: int) -> tuple[Sequence[bytes], Cursor]:
        found = self.client.fetch(topic, after or 0, limit=limit)
        return found.payloads(), found.next_from_seq

    def count(self, topic: str) -> int:
        return int(self.client.state(topic).count)

    def tail(self, topic: str, ready: Callable[[], None], handler: Handler) -> None:
        with self.client.watch(topic, "latest", on_gap="raise") as events:
            ready()
            for record in events:
                if not isinstance(record, topicd.Record) or not handler(record.data):
                    return

    def close(self) -> None:
        self.client.close()


class TopicdQueueSession:
    """One worker's way to a queue, or a producer's; a stream of jobs is opened by the first call that needs one."""

    def __init__(self, socket: str, name: str) -> None:
        self._client = topicd.connect(socket)
        self._queue = self._client.queue(name)
        self.put, self.put_many = self._queue.put, self._queue.put_many
        self._stream: Work | None = None
        self._job: topicd.Job | None = None
        self._held: Jobs | None = None

    def one(self) -> bytes | None:
        found = self._queue.claim()
        if not found:
            return None
        job: topicd.Job = found[0]
        job.done()
        return job.data

    def chained(self) -> bytes | None:
        found = self._held or self._queue.claim()
        if not found:
            return None
        job: topicd.Job = found[0]
        self._held = self._queue.claim(done=job)
        return job.data

    def chained_some(self, limit: int) -> list[bytes]:
        found = self._held or self._queue.claim(limit)
        datas = found.payloads()
        if datas:
            self._held = self._queue.claim(limit, done=found)
        return datas

    def some(self, limit: int) -> list[bytes]:
        found = self._queue.claim(limit)
        datas = found.payloads()
        if datas:
            found.done()
        return datas

    def wait(self) -> bytes:
        if self._stream is None:
            self._stream = self._queue.work()
        if self._job is not None:
            self._job.done(wait=False)
        self._job = next(self._stream)
        return self._job.data

    def pushed(self) -> bytes | None:
        if self._stream is None:
            self._stream = self._queue.work(max=PREFETCH, idle=0)
        try:
            job = next(self._stream)
        except StopIteration:
            return None
        job.done(wait=False)
        return job.data

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
        self._client.close()


@dataclass(frozen=True)
class TopicdQueue:
    socket: str
    name: str

    def open(self) -> TopicdQueueSession:
        return TopicdQueueSession(self.socket, self.name)


@dataclass(frozen=True)
class TopicdAddress:
    socket: str

    def session(self) -> Session:
        return TopicdSession(self.socket)

    async def fan(self, topic: str, subscribers: int, ready: Callable[[], None], handler: Handler) -> None:
        await watches(Where(self.socket))(topic, subscribers, ready, handler)


class Topicd(Peer):
    """Measures a daemon of its own, or, given a socket, one that runs already."""

    name = "topicd"
    flags: tuple[str, ...] = ()

    def __init__(self, root: Path, attach: Path | None = None) -> None:
        super().__init__(root)
        self._attach = attach
        self._relaxed: Literal["disk", "memory"] = RELAXED
        self._server: subprocess.Popen[bytes] | None = None
        self._run = socket_dir()
        self._address = TopicdAddress(str(attach or self._run / "topicd.sock"))

    @classmethod
    def missing(cls) -> str | None:
        return None

    def start(self) -> None:
        if self._attach:
            return
        argv = [sys.executable, "-m", "topicd", "--data-dir", str(self.root), "--run-dir", str(self._run), *self.flags]
        self._server = server = procs.start_server(argv, self.root.with_suffix(".log"))
        until_up(self._probe, "topicd", lambda: server.poll() is None)

    def _probe(self) -> None:
        with topicd.connect(self._address.socket, timeout=5.0) as client:
            client.ping()

    def client(self) -> topicd.Client:
        return topicd.connect(self._address.socket)

    def stop(self) -> None:
        if self._server:
            procs.stop(self._server)
            self._server = None

    def close(self) -> None:
        super().close()
        shutil.rmtree(self._run, ignore_errors=True)

    def kill9(self) -> None:
        if self._server:
            procs.kill9(self._server)

    def pids(self) -> list[int]:
        return procs.tree(self._server.pid) if self._server else []

    def address(self, durable: bool) -> TopicdAddress:
        return self._address

    def make_topics(self, names: Sequence[str], durable: bool) -> None:
        with self.client() as client:
            for name in names:
                client.configure(name, durability=DURABLE if durable else self._relaxed)

    @contextlib.contextmanager
    def using(self, durability: Literal["disk", "memory"]) -> Iterator[None]:
        """Relaxed topics have this class meanwhile."""
        self._relaxed = durability
        try:
            yield
        finally:
            self._relaxed = RELAXED

    def drop_topics(self, names: Sequence[str]) -> None:
        with self.client() as client:
            for name in names:
                client.delete_topic(name)

    @contextlib.contextmanager
    def queue(self, durable: bool) -> Iterator[TopicdQueue]:
        name = f"queue-{secrets.token_hex(4)}"
        with self.client() as client:
            client.queue(name).configure(durability=DURABLE if durable else RELAXED)
            try:
                yield TopicdQueue(self._address.socket, name)
            finally:
                client.delete_topic(name)
        self.until_cleared()

    def until_cleared(self) -> None:
        """Until the files of deleted topics are gone: whoever is measured next does not pay for it."""
        deadline = time.monotonic() + CLEARED_S
        while any(path.name.endswith(".deleted") for path in (self.root / "topics").iterdir()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"files of deleted topics are still there after {CLEARED_S:g} s")
            time.sleep(0.01)

    def facts(self) -> dict[str, str]:
        shards = len(self.pids()) - 1
        return {
            "version": f"topicd {topicd.__version__}",
            "settings": f"durability {DURABLE} (durable), {RELAXED} (relaxed); {shards} shard processes",
        }

    def drivers(self, test: str, load: Load) -> Mapping[str, Driver]:
        from benchmarks.drivers import topicd as drivers

        return drivers.drivers(test, load)


class LogOnly(Topicd):
    """Makes no checkpoint until it is started again: everything is in the WAL and nowhere else."""

    flags = ("--checkpoint-ms", "86400000", "--checkpoint-bytes", "4GiB")
