"""A daemon of one thread and no disk that speaks the client protocol, for tests of clients. Faults are
ordered by tests.

`server.fault` is called with each request and may return what shall happen instead of the right thing: an error
(answered), CUT (closed before it is acted upon), MUTE (acted upon, closed without an answer), HALF (acted upon, half
of the answer sent, closed), bytes (sent as they are) or a function from the right answer to what is sent.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.fakelog import FakeTopic
from tests.support.fakesession import CUT, HALF, MUTE, Request, Session
from topicd.errors import TopicdError, TopicNotFound
from topicd.ipc.protocol import unixsock
from topicd.paths import RunDir

__all__ = ["CUT", "HALF", "MUTE", "FakeServer", "Request"]

Mangle = Callable[[bytes], bytes]
Fault = Callable[[Request], TopicdError | str | bytes | Mangle | None]


class FakeServer:
    def __init__(self, shards: int = 2, run_dir: Path | None = None) -> None:
        self._own_dir = run_dir is None
        self.run_dir = run_dir or Path(tempfile.mkdtemp(prefix="faketopicd-"))
        self.shards = shards
        self.instance = 1
        self.topics: dict[str, FakeTopic] = {}
        self.next_id = 1
        self.fault: Fault = lambda request: None
        self.requests: list[Request] = []
        self.connections: set[Session] = set()
        self.now_ms = 1_700_000_000_000
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._listeners: list[socket.socket] = []
        self._accepting: set[asyncio.Task[Any]] = set()

    @property
    def path(self) -> Path:
        return RunDir(self.run_dir).socket

    def start(self) -> FakeServer:
        self._thread.start()
        self.listen()
        return self

    def run(self, function: Callable[[], Any]) -> Any:
        """Runs in the server's thread and waits for it."""

        async def call() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(10)

    def listen(self) -> None:
        def begin() -> None:
            run = RunDir(self.run_dir)
            for index, path in [(-1, run.socket), *((i, run.delivery_socket(i)) for i in range(self.shards))]:
                listener = unixsock.listen(path, 0o600)
                self._listeners.append(listener)
                self._loop.add_reader(listener, self._accept, listener, index)

        self.run(begin)

    def _accept(self, listener: socket.socket, shard: int) -> None:
        """By hand: asyncio's Server forgets connections that arrive while it is being closed."""
        connection, _ = listener.accept()
        connection.setblocking(False)
        made = self._loop.connect_accepted_socket(partial(Session, self, shard, self._listeners), connection)
        self._accepting.add(task := self._loop.create_task(made))
        task.add_done_callback(self._accepting.discard)

    def silence(self) -> None:
        """Stops listening and drops every connection; the topics stay."""

        def end() -> None:
            for listener in self._listeners:
                self._loop.remove_reader(listener)
                listener.close()
            self._listeners = []
            self.drop_connections()
            for path in self.run_dir.glob("*.sock"):
                path.unlink()

        self.run(end)

    def drop_connections(self) -> None:
        for session in list(self.connections):
            session.cut()

    def restart(self, shards: int | None = None) -> None:
        self.silence()
        self.shards = shards or self.shards
        self.instance += 1
        self.listen()

    def stop(self) -> None:
        self.silence()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
        if self._own_dir:
            shutil.rmtree(self.run_dir, ignore_errors=True)

    def __enter__(self) -> FakeServer:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    # ---- topics ----

    def open(self, name: str, create: bool, config: dict[str, Any] | None = None) -> tuple[FakeTopic, bool]:
        if name in self.topics:
            return self.topics[name], False
        if not create:
            raise TopicNotFound(f"no topic named {name!r}", topic=name)
        topic = self.topics[name] = FakeTopic(name, self.next_id, config or {})
        self.next_id += 1
        for session in self.connections:
            session.born(topic)
        return topic, True

    def by_id(self, topic_id: int) -> FakeTopic:
        for topic in self.topics.values():
            if topic.id == topic_id:
                return topic
        raise TopicNotFound(f"no topic with id {topic_id}")

    def moved(self, topic: FakeTopic) -> None:
        for session in self.connections:
            session.pump()

    def deleted(self, topic: FakeTopic) -> None:
        for session in self.connections:
            session.gone(topic)

    def payloads(self, name: str) -> list[bytes]:
        return self.topics[name].payloads() if name in self.topics else []
