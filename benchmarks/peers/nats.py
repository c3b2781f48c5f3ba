"""NATS JetStream: file storage, loopback, nats-py. The topics of a driver call are subjects of one stream."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import nats
import uvloop
from nats.aio.client import Client
from nats.js import JetStreamContext, api

from benchmarks import procs
from benchmarks.peers.base import Cursor, Driver, Handler, Peer, Session, until_up
from topicd.bench.load import Load
from topicd.bench.work import run

T = TypeVar("T")

# `sync_interval: always` exists from here on; before, acknowledged records wait two minutes for their sync.
SYNC_SINCE = (2, 10)
FETCH_TIMEOUT = 5.0
SYNCING = "sync"


@dataclass(frozen=True)
class NatsAddress:
    url: str

    def session(self) -> Session:
        return NatsSession(self)

    async def connect(self) -> tuple[Client, JetStreamContext]:
        client = await nats.connect(self.url, allow_reconnect=False, connect_timeout=2)
        return client, client.jetstream(timeout=30)

    async def fan(self, topic: str, subscribers: int, ready: Callable[[], None], handler: Handler) -> None:
        connections = [await self.connect() for _ in range(subscribers)]
        left = subscribers
        done = asyncio.Event()

        async def receive(message: Any) -> None:
            nonlocal left
            if not handler(message.data):
                left -= 1
                if left == 0:
                    done.set()

        for _, stream in connections:
            await subscribe_new(stream, topic, receive)
        ready()
        await done.wait()
        await asyncio.gather(*(client.close() for client, _ in connections))


async def subscribe_new(
    stream: JetStreamContext, topic: str, callback: Callable[[Any], Coroutine[Any, Any, None]]
) -> None:
    config = api.ConsumerConfig(deliver_policy=api.DeliverPolicy.NEW, ack_policy=api.AckPolicy.NONE)
    await stream.subscribe(topic, cb=callback, config=config, manual_ack=True)


def stream_of(topic: str) -> str:
    return topic.split(".", maxsplit=1)[0]


class NatsSession:
    """Blocking face over the asyncio client, for set-up and for tests where its cost does not count."""

    def __init__(self, address: NatsAddress) -> None:
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._client, self._stream = self._run(address.connect())
        self._pulls: dict[str, tuple[Cursor, Any]] = {}

    def _run(self, what: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(what)

    def append(self, topic: str, data: bytes) -> object:
        return self._run(self._stream.publish(topic, data))

    def append_many(self, topic: str, batch: list[bytes]) -> Cursor:
        return self._run(append_many(self._stream, topic, batch))

    def fetch(self, topic: str, after: Cursor, limit: int) -> tuple[Sequence[bytes], Cursor]:
        return self._run(self._fetch(topic, after, limit))

    async def _fetch(self, topic: str, after: Cursor, limit: int) -> tuple[Sequence[bytes], Cursor]:
        at, pull = self._pulls.get(topic, (None, None))
        if pull is None or at != after:
            config = api.ConsumerConfig(
                ack_policy=api.AckPolicy.NONE,
                deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE if after else api.DeliverPolicy.ALL,
                opt_start_seq=after + 1 if after else None,
            )
            pull = await self._stream.pull_subscribe(topic, stream=stream_of(topic), config=config)
        try:
            found = await pull.fetch(limit, timeout=FETCH_TIMEOUT)
        except nats.errors.TimeoutError:
            found = []
        after = found[-1].metadata.sequence.stream if found else after
        self._pulls[topic] = (after, pull)
        return [message.data for message in found], after

    def first(self, topic: str) -> bytes | None:
        """The first record of a stream, without a consumer."""
        return self._run(self._stream.get_msg(stream_of(topic), seq=1)).data

    def count(self, topic: str) -> int:
        return int(self._run(self._stream.stream_info(stream_of(topic))).state.messages)

    def make(self, stream: str) -> None:
        self._run(self._stream.add_stream(name=stream, subjects=[f"{stream}.*"], storage=api.StorageType.FILE))

    def drop(self, stream: str) -> None:
        self._run(self._stream.delete_stream(stream))

    def tail(self, topic: str, ready: Callable[[], None], handler: Handler) -> None:
        async def follow() -> None:
            done = asyncio.Event()

            async def receive(message: Any) -> None:
                if not handler(message.data):
                    done.set()

            await subscribe_new(self._stream, topic, receive)
            ready()
            await done.wait()

        self._run(follow())

    def close(self) -> None:
        self._run(self._client.close())
        self._runner.close()


async def append_many(stream: JetStreamContext, topic: str, batch: list[bytes]) -> int:
    futures = [await stream.publish_async(topic, data) for data in batch]
    return int((await asyncio.gather(*futures))[-1].seq)


class Nats(Peer):
    name = "nats"
    # Both classes on one server where the setting is missing; the sync check tells.
    syncs = False

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._server: subprocess.Popen[bytes] | None = None
        self._address = NatsAddress("")

    @classmethod
    def missing(cls) -> str | None:
        return None if server_program() else "nats-server not installed"

    def start(self) -> None:
        if not self._address.url:
            self._address = NatsAddress(f"nats://127.0.0.1:{_free_port()}")
        jetstream = f'store_dir: "{self.root}"' + (", sync_interval: always" if self.syncs else "")
        config = self.root.with_suffix(".conf")
        listen = self._address.url.removeprefix("nats://")
        # Room for a consumer that reads all there is: by default it is cut off once it falls behind.
        room = 'max_pending: 1GB\nwrite_deadline: "60s"'
        config.write_text(f'listen: "{listen}"\n{room}\njetstream {{ {jetstream} }}\n')
        command = [server_program() or "nats-server", "-c", str(config)]
        self._server = server = procs.start_server(command, self.root.with_suffix(".log"))
        until_up(lambda: _probe(self._address), "nats-server", lambda: server.poll() is None)

    def stop(self) -> None:
        if self._server:
            procs.stop(self._server)
            self._server = None

    def kill9(self) -> None:
        if self._server:
            procs.kill9(self._server)

    def pids(self) -> list[int]:
        return procs.tree(self._server.pid) if self._server else []

    def sync_pids(self) -> list[int]:
        return self.of_class(True).pids()

    def end_case(self) -> None:
        for name in [n for n in self._siblings if n != SYNCING]:
            self.close_sibling(name)

    def of_class(self, durable: bool) -> Nats:
        """The server for a durability class: the setting is fixed at its start."""
        if not durable or self.syncs or version() < SYNC_SINCE:
            return self
        syncing = self.sibling(SYNCING)
        assert isinstance(syncing, Nats)
        return syncing

    def sibling(self, name: str, kind: type[Peer] | None = None) -> Peer:
        if name == SYNCING and name not in self._siblings:
            fresh = Nats(self.root.with_name(f"{self.root.name}-{name}"))
            fresh.syncs = True
            fresh.open()
            self._siblings[name] = fresh
        return super().sibling(name, kind)

    def address(self, durable: bool) -> NatsAddress:
        return self.of_class(durable)._address

    def make_topics(self, names: Sequence[str], durable: bool) -> None:
        session = NatsSession(self.address(durable))
        session.make(stream_of(names[0]))
        session.close()

    def drop_topics(self, names: Sequence[str]) -> None:
        for server in {id(s): s for s in (self, self._siblings.get(SYNCING, self))}.values():
            assert isinstance(server, Nats)
            session = NatsSession(server._address)
            with contextlib.suppress(nats.js.errors.NotFoundError):
                session.drop(stream_of(names[0]))
            session.close()

    def facts(self) -> dict[str, str]:
        sync = "no sync setting in this version: synced every 2 minutes"
        if version() >= SYNC_SINCE:
            sync = "sync_interval always (durable) or default (relaxed)"
        return {
            "version": f"NATS {'.'.join(map(str, version()))}",
            "settings": f"JetStream file storage, {sync}, loopback TCP, nats-py on uvloop",
        }

    def drivers(self, test: str, load: Load) -> Mapping[str, Driver]:
        from benchmarks.drivers import nats as drivers

        return drivers.drivers(test, load)


def _probe(address: NatsAddress) -> None:
    """A refused connection makes nats-py print a traceback: knock with a plain socket first."""
    host, port = address.url.removeprefix("nats://").split(":")
    socket.create_connection((host, int(port)), timeout=1).close()
    run(_ping(address))


async def _ping(address: NatsAddress) -> None:
    client, stream = await address.connect()
    try:
        await stream.account_info()
    finally:
        await client.close()


def server_program() -> str | None:
    """The current release that `make bench-deps` built beside this interpreter, or whatever the system has."""
    own = Path(sys.executable).with_name("nats-server")
    return str(own) if own.exists() else shutil.which("nats-server")


@functools.cache
def version() -> tuple[int, ...]:
    printed = subprocess.check_output([server_program() or "nats-server", "--version"], text=True)
    found = re.search(r"v(\d+)\.(\d+)\.(\d+)", printed)
    return tuple(map(int, found.groups())) if found else (0,)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
