"""A daemon of one thread and no disk that speaks the client protocol, for tests of clients. Faults are
ordered by tests.

`server.fault` is called with each request and may return what shall happen instead of the right thing:
an error (answered), CUT (closed before it is acted upon), MUTE (acted upon, closed without an answer), HALF
(acted upon, half of the answer sent, closed) or bytes (sent as they are).
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
from typing import Any, NamedTuple

import msgpack

from tests.support.fakelog import FakeTopic
from topicd.errors import Conflict, ConsumerNotFound, InvalidRequest, TopicdError, TopicNotFound, WrongShard
from topicd.ipc import unixsock
from topicd.ipc.protocol import (
    ANSWER,
    APPEND,
    APPENDED,
    CREDIT,
    FETCH,
    FETCHED,
    HEADER,
    LENGTH_FIELD,
    MessageFlag,
    Op,
    error_message,
    map_message,
    message,
)
from topicd.paths import RunDir
from topicd.placement import delivery_shard

CUT, MUTE, HALF = "cut", "mute", "half"
PUSH_BYTES = 64 * 1024


class Request(NamedTuple):
    shard: int  # -1: the supervisor
    op: int
    request_id: int
    body: bytes


def unpack_map(body: bytes) -> dict[str, Any]:
    found: dict[str, Any] = msgpack.unpackb(body)
    return found


Fault = Callable[[Request], TopicdError | str | bytes | None]


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


class Session(asyncio.Protocol):
    def __init__(self, server: FakeServer, shard: int, listeners: list[socket.socket]) -> None:
        self.server = server
        self.shard = shard
        self.listeners = listeners
        self.received = bytearray()
        self.transport: Any = None
        self.subscriptions: dict[int, Subscription] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.server.connections.add(self)
        if self.listeners is not self.server._listeners:
            self.cut()  # accepted by a daemon that is gone

    def connection_lost(self, exc: Exception | None) -> None:
        self.server.connections.discard(self)

    def cut(self) -> None:
        self.server.connections.discard(self)
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        self.received += data
        while len(self.received) >= HEADER.size and not self.transport.is_closing():
            length, op, flags, request_id = HEADER.unpack_from(self.received)
            if len(self.received) < LENGTH_FIELD + length:
                return
            body = bytes(self.received[HEADER.size : LENGTH_FIELD + length])
            del self.received[: LENGTH_FIELD + length]
            self._one(Request(self.shard, op, request_id, body), flags)

    def _one(self, request: Request, flags: int) -> None:
        self.server.requests.append(request)
        fault = self.server.fault(request)
        if fault == CUT:
            self.cut()
        elif isinstance(fault, TopicdError):
            self.transport.write(error_message(request.request_id, fault))
        elif isinstance(fault, bytes):
            self.transport.write(fault)
        else:
            answer = self._answer(request, flags)
            if fault == MUTE:
                self.cut()
            elif fault == HALF:
                self.transport.write(answer[: len(answer) // 2])
                self.server.connections.discard(self)
                self.transport.close()
            else:
                self.transport.write(answer)
        self.pump()

    def _answer(self, request: Request, flags: int) -> bytes:
        try:
            answer: Any = HANDLERS[Op(request.op)](self, request, flags)
        except TopicdError as exc:
            return error_message(request.request_id, exc)
        if isinstance(answer, dict):
            return map_message(request.op | ANSWER, request.request_id, answer)
        return bytes(answer)

    def _topic(self, body: dict[str, Any], *, create: bool = False) -> FakeTopic:
        self._owned(body["topic"])
        return self.server.open(body["topic"], create)[0]

    def _owned(self, name: str) -> None:
        if delivery_shard(name, self.server.shards) != self.shard:
            raise WrongShard(f"topic {name} is not here")

    # ---- operations ----

    def hello(self, request: Request, flags: int) -> dict[str, Any]:
        run = RunDir(self.server.run_dir)
        return {
            "version": 1,
            "server": "fake",
            "instance": str(self.server.instance),
            "role": "supervisor" if self.shard < 0 else "delivery",
            "shard": self.shard,
            "wal_shards": 1,
            "delivery_shards": self.server.shards,
            "shards": [str(run.delivery_socket(i)) for i in range(self.server.shards)],
            "limits": {},
        }

    def nothing(self, request: Request, flags: int) -> dict[str, Any]:
        return {}

    def open(self, request: Request, flags: int) -> dict[str, Any]:
        body = unpack_map(request.body)
        self._owned(body["topic"])
        topic, created = self.server.open(body["topic"], body.get("create", True), body.get("config"))
        return {
            "topic_id": topic.id,
            "created": created,
            "head_seq": topic.head,
            "earliest_seq": topic.earliest,
        }

    def configure(self, request: Request, flags: int) -> dict[str, Any]:
        body = unpack_map(request.body)
        topic = self._topic(body, create=body.get("create", True))
        topic.configure(body["config"])
        return {"topic_id": topic.id, "created": False, "config": topic.config.to_fields()}

    def state(self, request: Request, flags: int) -> dict[str, Any]:
        return self._topic(unpack_map(request.body)).state()

    def list(self, request: Request, flags: int) -> dict[str, Any]:
        body = unpack_map(request.body)
        names = sorted(
            name
            for name in self.server.topics
            if name.startswith(body["prefix"]) and delivery_shard(name, self.server.shards) == self.shard
        )
        rest = [name for name in names if name > body["after"]]
        page = rest[: min(body["limit"], 2)]
        following = page[-1] if len(page) < len(rest) else None
        return {"topics": [self.server.topics[name].line() for name in page], "next": following}

    def delete_topic(self, request: Request, flags: int) -> dict[str, Any]:
        body = unpack_map(request.body)
        topic = self._topic(body)
        if body.get("if_empty") and topic.records:
            raise Conflict("the topic is not empty")
        del self.server.topics[topic.name]
        self.server.deleted(topic)
        return {"topic_id": topic.id}

    def delete_records(self, request: Request, flags: int) -> dict[str, Any]:
        body = unpack_map(request.body)
        return self._topic(body).delete(body.get("before_seq"), body.get("match"))

    def append(self, request: Request, flags: int) -> bytes:
        topic_id, producer, number, count = APPEND.unpack_from(request.body)
        at, key = APPEND.size, b""
        if flags & MessageFlag.KEY:
            length = int.from_bytes(request.body[at : at + 2], "little")
            key, at = request.body[at + 2 : at + 2 + length], at + 2 + length
        topic = self.server.by_id(topic_id)
        self.server.now_ms += 1
        first, stored, deduped = topic.append(
            producer, number, key, bytearray(request.body[at:]), count, self.server.now_ms
        )
        self.server.moved(topic)
        answer_flags = int(MessageFlag.DEDUPED) if deduped else 0
        body = APPENDED.pack(first, stored, topic.head)
        return message(Op.APPEND | ANSWER, request.request_id, body, answer_flags)

    def fetch(self, request: Request, flags: int) -> bytes:
        topic_id, from_seq, limit, max_bytes, _wait_ms = FETCH.unpack_from(request.body)
        filters = unpack_map(request.body[FETCH.size :]) if flags & MessageFlag.FILTER else {}
        topic = self.server.by_id(topic_id)
        if "from_ts" in filters:
            from_seq = topic.before_ts(filters["from_ts"])
        return self._frames(
            Op.FETCH | ANSWER,
            request.request_id,
            topic,
            from_seq,
            limit or 256,
            max_bytes or 1 << 20,
            filters,
        )[0]

    def _frames(
        self,
        op: int,
        request_id: int,
        topic: FakeTopic,
        from_seq: int,
        limit: int,
        max_bytes: int,
        filters: dict[str, Any],
    ) -> tuple[bytes, int, int, int]:
        frames, count, position, extra = topic.select(from_seq, limit, max_bytes, filters)
        flags = int(MessageFlag.CAUGHT_UP) if position >= topic.head else 0
        flags |= int(MessageFlag.TOMBSTONE) if extra else 0
        head = FETCHED.pack(topic.id, position, topic.head, topic.earliest, count, len(extra))
        useful = count + len(extra)
        return message(op, request_id, head + extra + frames, flags), position, len(frames), useful

    def subscribe(self, request: Request, flags: int) -> dict[str, Any]:
        body = unpack_map(request.body)
        made = Subscription(self, request.request_id, body)
        answer = made.begin()
        self.subscriptions[request.request_id] = made
        self.server._loop.call_soon(self.pump)
        return answer

    def unsubscribe(self, request: Request, flags: int) -> dict[str, Any]:
        self.subscriptions.pop(unpack_map(request.body)["subscription"], None)
        return {}

    def credit(self, request: Request, flags: int) -> bytes:
        subscription, size = CREDIT.unpack(request.body)
        if subscription in self.subscriptions:
            self.subscriptions[subscription].credit += size
        return b""

    def consumer(self, request: Request, flags: int) -> dict[str, Any]:
        body = unpack_map(request.body)
        if body["action"] == "open":
            return self._topic(body).open_consumer(body["name"], body["start"])
        topic = self._topic(body)
        if body["action"] == "list":
            return {"consumers": [topic.consumer_line(name) for name in sorted(topic.consumers)]}
        if body["name"] not in topic.consumers:
            raise ConsumerNotFound(f"no consumer {body['name']!r}")
        if body["action"] == "ack":
            topic.consumers[body["name"]] = max(topic.consumers[body["name"]], body["seq"])
        elif body["action"] == "reset":
            topic.consumers[body["name"]] = topic.position(body["start"])
        elif body["action"] == "state":
            pass
        elif body["action"] == "remove":
            del topic.consumers[body["name"]]
            return {}
        else:
            raise InvalidRequest("unknown action")
        return topic.consumer_line(body["name"])

    # ---- pushing ----

    def pump(self) -> None:
        for subscription in self.subscriptions.values():
            subscription.pump()

    def born(self, topic: FakeTopic) -> None:
        for subscription in self.subscriptions.values():
            subscription.born(topic)

    def gone(self, topic: FakeTopic) -> None:
        for subscription in self.subscriptions.values():
            if subscription.cursors.pop(topic.name, None) is not None:
                notice = {"event": "topic_deleted", "topic": topic.name, "topic_id": topic.id}
                self.transport.write(map_message(Op.NOTICE, subscription.id, notice))


class Subscription:
    def __init__(self, session: Session, sub_id: int, body: dict[str, Any]) -> None:
        self.session = session
        self.id = sub_id
        self.body = body
        self.credit = body["credit"]
        self.cursors: dict[str, int] = {}
        self.epochs: dict[str, int] = {}

    def begin(self) -> dict[str, Any]:
        answer = []
        for entry in self.body["topics"]:
            topic = self.session._topic(entry)
            position = topic.start_of(entry)
            self.cursors[topic.name] = position
            if entry.get("epoch") not in (None, topic.id):
                self.cursors[topic.name], position = 0, 0
                self.epochs[topic.name] = entry["epoch"]
            answer.append({"topic": topic.name, "topic_id": topic.id, "from_seq": position})
        for topic in self.session.server.topics.values():
            if topic.name not in self.cursors and self._matches(topic):
                position = self.cursors[topic.name] = topic.start_of(self.body)
                answer.append({"topic": topic.name, "topic_id": topic.id, "from_seq": position})
        return {"topics": answer}

    def _matches(self, topic: FakeTopic) -> bool:
        pattern = self.body.get("pattern")
        mine = delivery_shard(topic.name, self.session.server.shards) == self.session.shard
        return pattern is not None and mine and topic.name.startswith(pattern[:-1])

    def born(self, topic: FakeTopic) -> None:
        if self._matches(topic):
            self.cursors[topic.name] = 0
            notice = {"event": "topic", "topic": topic.name, "topic_id": topic.id}
            self.session.transport.write(map_message(Op.NOTICE, self.id, notice))

    def pump(self) -> None:
        for name in list(self.cursors):
            topic = self.session.server.topics[name]
            while self.credit > 0 and (self.cursors[name] < topic.head or name in self.epochs):
                filters = {**self.body, "epoch": self.epochs.pop(name, None)}
                made = self.session._frames(Op.PUSH, self.id, topic, self.cursors[name], 100_000, PUSH_BYTES, filters)
                push, self.cursors[name], size, useful = made
                self.credit -= size
                if useful:
                    self.session.transport.write(push)


HANDLERS: dict[Op, Callable[[Session, Request, int], Any]] = {
    Op.HELLO: Session.hello,
    Op.PING: Session.nothing,
    Op.STATUS: Session.nothing,
    Op.OPEN: Session.open,
    Op.CONFIGURE: Session.configure,
    Op.STATE: Session.state,
    Op.LIST: Session.list,
    Op.DELETE_TOPIC: Session.delete_topic,
    Op.DELETE_RECORDS: Session.delete_records,
    Op.APPEND: Session.append,
    Op.FETCH: Session.fetch,
    Op.SUBSCRIBE: Session.subscribe,
    Op.UNSUBSCRIBE: Session.unsubscribe,
    Op.CREDIT: Session.credit,
    Op.CONSUMER: Session.consumer,
}
