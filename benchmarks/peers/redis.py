"""Redis streams: append-only file, Unix socket, redis-py with hiredis."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
import redis.asyncio

from benchmarks import procs
from benchmarks.peers.base import Cursor, Driver, Handler, Peer, Session, socket_dir, until_up
from topicd.bench.load import Load

FIELD = b"d"
START = b"0-0"
BLOCK_MS = 200
GROUP = "workers"

# One script call per batch: the fastest way into a stream from Python.
ADD_ALL = """
local last
for i = 1, #ARGV do last = redis.call('XADD', KEYS[1], '*', 'd', ARGV[i]) end
return last
"""


def raw(client: Any) -> Any:
    """Take entries as hiredis parsed them: the dictionaries that redis-py makes cost more than half."""
    for command in ("XREAD", "XREADGROUP", "XRANGE"):
        client.set_response_callback(command, lambda response, **_: response)
    return client


def entries_of(response: Any) -> list[tuple[bytes, Any]]:
    """Entries (id, fields) of the one stream that was asked for, in either protocol version."""
    if not response:
        return []
    found: list[tuple[bytes, Any]]
    found = next(iter(response.values())) if isinstance(response, dict) else response[0][1]
    return found


class RedisSession:
    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self._add_all = client.register_script(ADD_ALL)

    def append(self, topic: str, data: bytes) -> object:
        return self.client.xadd(topic, {FIELD: data})

    def append_many(self, topic: str, batch: list[bytes]) -> Cursor:
        return self._add_all(keys=[topic], args=batch)

    def fetch(self, topic: str, after: Cursor, limit: int) -> tuple[Sequence[bytes], Cursor]:
        found = entries_of(self.client.xread({topic: after or START}, count=limit))
        return [fields[1] for _, fields in found], found[-1][0] if found else after

    def count(self, topic: str) -> int:
        return int(self.client.xlen(topic))

    def tail(self, topic: str, ready: Callable[[], None], handler: Handler) -> None:
        last = self.client.xrevrange(topic, count=1)
        cursor: Any = last[0][0] if last else START
        ready()
        while True:
            for entry, fields in entries_of(self.client.xread({topic: cursor}, count=1000, block=BLOCK_MS)):
                cursor = entry
                if not handler(fields[1]):
                    return

    def close(self) -> None:
        self.client.close()


@dataclass(frozen=True)
class RedisAddress:
    socket: str

    def plain(self) -> redis.Redis:
        return redis.Redis(unix_socket_path=self.socket)

    def client(self) -> redis.Redis:
        client: redis.Redis = raw(self.plain())
        return client

    def session(self) -> Session:
        return RedisSession(self.client())

    def pool(self, connections: int) -> redis.asyncio.Redis:
        pool = redis.asyncio.ConnectionPool(
            connection_class=redis.asyncio.UnixDomainSocketConnection,
            path=self.socket,
            max_connections=connections,
        )
        return redis.asyncio.Redis(connection_pool=pool)

    async def fan(self, topic: str, subscribers: int, ready: Callable[[], None], handler: Handler) -> None:
        client = raw(self.pool(subscribers))
        last = await client.xrevrange(topic, count=1)
        start = last[0][0] if last else START
        connected = 0

        async def follow() -> None:
            nonlocal connected
            cursor = start
            await client.ping()
            connected += 1
            if connected == subscribers:
                ready()
            while True:
                found = await client.xread({topic: cursor}, count=1000, block=BLOCK_MS)
                for entry, fields in entries_of(found):
                    cursor = entry
                    if not handler(fields[1]):
                        return

        await asyncio.gather(*(follow() for _ in range(subscribers)))
        await client.aclose()


class RedisWorker:
    """A member of a consumer group: a job is an entry, finished by XACK."""

    def __init__(self, client: redis.Redis, stream: str) -> None:
        self._client = client
        self._stream = stream
        self._name = f"w{os.getpid()}"
        self._add_all = client.register_script(ADD_ALL)
        self._held: bytes | None = None
        self._ahead: tuple[bytes, bytes] | None = None
        self._ahead_many: list[tuple[bytes, Any]] = []

    def put(self, data: bytes) -> object:
        return self._client.xadd(self._stream, {FIELD: data})

    def put_many(self, batch: list[bytes]) -> object:
        return self._add_all(keys=[self._stream], args=batch)

    def one(self) -> bytes | None:
        found = self.some(1)
        return found[0] if found else None

    def chained(self) -> bytes | None:
        if self._ahead is None:
            self._ahead = self._entry(self._client.xreadgroup(GROUP, self._name, {self._stream: ">"}, count=1))
        finished = self._ahead
        if finished is None:
            return None
        with self._client.pipeline(transaction=False) as both:
            both.xack(self._stream, GROUP, finished[0])
            both.xreadgroup(GROUP, self._name, {self._stream: ">"}, count=1)
            _, found = both.execute()
        self._ahead = self._entry(found)
        return finished[1]

    def chained_some(self, limit: int) -> list[bytes]:
        if not self._ahead_many:
            self._ahead_many = entries_of(self._client.xreadgroup(GROUP, self._name, {self._stream: ">"}, count=limit))
        finished = self._ahead_many
        if finished:
            with self._client.pipeline(transaction=False) as both:
                both.xack(self._stream, GROUP, *(entry for entry, _ in finished))
                both.xreadgroup(GROUP, self._name, {self._stream: ">"}, count=limit)
                _, found = both.execute()
            self._ahead_many = entries_of(found)
        return [fields[1] for _, fields in finished]

    @staticmethod
    def _entry(answer: Any) -> tuple[bytes, bytes] | None:
        """Its id and its data."""
        found = entries_of(answer)
        return (found[0][0], found[0][1][1]) if found else None

    def some(self, limit: int) -> list[bytes]:
        found = entries_of(self._client.xreadgroup(GROUP, self._name, {self._stream: ">"}, count=limit))
        if found:
            self._client.xack(self._stream, GROUP, *(entry for entry, _ in found))
        return [fields[1] for _, fields in found]

    def wait(self) -> bytes:
        if self._held is not None:
            self._client.xack(self._stream, GROUP, self._held)
        while not (
            found := entries_of(
                self._client.xreadgroup(GROUP, self._name, {self._stream: ">"}, count=1, block=BLOCK_MS)
            )
        ):
            pass
        self._held = found[0][0]
        data: bytes = found[0][1][1]
        return data

    def close(self) -> None:
        self._client.close()


@dataclass(frozen=True)
class RedisQueue:
    address: RedisAddress
    stream: str

    def open(self) -> RedisWorker:
        return RedisWorker(self.address.client(), self.stream)


class Redis(Peer):
    name = "redis"

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._server: subprocess.Popen[bytes] | None = None
        self._run = socket_dir()
        self._address = RedisAddress(str(self._run / "redis.sock"))

    @classmethod
    def missing(cls) -> str | None:
        return None if shutil.which("redis-server") else "redis-server not installed"

    def start(self) -> None:
        # No snapshots and no rewrite of its own: neither may fall into somebody else's round.
        settings = "port 0|save ''|appendonly yes|appendfsync always|auto-aof-rewrite-percentage 0|loglevel warning"
        argv = ["redis-server", "--dir", str(self.root), "--unixsocket", self._address.socket]
        for setting in settings.split("|"):
            key, value = setting.split(" ", 1)
            argv += [f"--{key}", value.strip("'")]
        self._server = server = procs.start_server(argv, self.root.parent / f"{self.root.name}.log")
        with contextlib.closing(self._address.client()) as client:
            until_up(client.ping, "redis-server", lambda: server.poll() is None)

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

    def address(self, durable: bool) -> RedisAddress:
        with contextlib.closing(self._address.client()) as client:
            client.config_set("appendfsync", "always" if durable else "everysec")
        return self._address

    def drop_topics(self, names: Sequence[str]) -> None:
        with contextlib.closing(self._address.client()) as client:
            for start in range(0, len(names), 1000):
                client.delete(*names[start : start + 1000])

    @contextlib.contextmanager
    def queue(self, durable: bool) -> Iterator[RedisQueue]:
        with self.topics(1, durable) as [stream]:
            address = self.address(durable)
            with contextlib.closing(address.client()) as client:
                client.xgroup_create(stream, GROUP, id="0", mkstream=True)
            yield RedisQueue(address, stream)

    def facts(self) -> dict[str, str]:
        with contextlib.closing(self._address.client()) as client:
            version = client.info("server")["redis_version"]
        return {
            "version": f"Redis {version}",
            "settings": "appendonly; appendfsync always (durable), everysec (relaxed); Unix socket, hiredis",
        }

    def drivers(self, test: str, load: Load) -> Mapping[str, Driver]:
        from benchmarks.drivers import redis as drivers

        return drivers.drivers(test, load)
