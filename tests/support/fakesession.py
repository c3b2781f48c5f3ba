"""One connection of the fake daemon: requests in, answers, pushes and ordered faults out."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack

from tests.support import fakequeue
from tests.support.fakelog import FakeTopic
from topicd.errors import Conflict, ConsumerNotFound, TopicdError, WrongShard
from topicd.ipc.protocol.messages import REQUESTS, Op
from topicd.ipc.protocol.wire import (
    ANSWER,
    APPEND,
    APPENDED,
    CREDIT,
    FETCH,
    FETCHED,
    HEADER,
    LENGTH_FIELD,
    PERFORMANCE,
    PROTOCOL_VERSION,
    MessageFlag,
    error_message,
    map_message,
    message,
)
from topicd.paths import RunDir
from topicd.placement import delivery_shard

if TYPE_CHECKING:
    from tests.support.fakeserver import FakeServer

CUT, MUTE, HALF = "cut", "mute", "half"
PUSH_BYTES = 64 * 1024


class Request(NamedTuple):
    shard: int  # -1: the supervisor
    op: int
    request_id: int
    body: bytes


def fields_of(request: Request) -> dict[str, Any]:
    """Checked by the request's declaration, with the defaults of what was left out."""
    want = REQUESTS[request.op].from_wire(msgpack.unpackb(request.body))
    given = {name: getattr(want, name) for name in want.RULES}
    return {
        name: value if (pack := want.RULES[name].pack) is None else pack(value)
        for name, value in given.items()
        if value is not None
    }


class Session(asyncio.Protocol):
    def __init__(self, server: FakeServer, shard: int, listeners: list[socket.socket]) -> None:
        self.server = server
        self.shard = shard
        self.listeners = listeners
        self.received = bytearray()
        self.transport: Any = None
        self.subscriptions: dict[int, Subscription] = {}
        self.works: dict[int, fakequeue.FakeWork] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.server.connections.add(self)
        if self.listeners is not self.server._listeners:
            self.cut()  # accepted by a daemon that is gone

    def connection_lost(self, exc: Exception | None) -> None:
        self.server.connections.discard(self)
        for work in self.works.values():
            work.queue.release(work)
            self.server.moved(work.queue.topic)

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
            if callable(fault):
                answer = fault(answer)
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
        fields_of(request)
        run = RunDir(self.server.run_dir)
        return {
            "version": PROTOCOL_VERSION,
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
        fields_of(request)
        return {}

    def open(self, request: Request, flags: int) -> dict[str, Any]:
        body = fields_of(request)
        self._owned(body["topic"])
        topic, created = self.server.open(body["topic"], body.get("create", True), body.get("config"))
        return {
            "topic_id": topic.id,
            "created": created,
            "head_seq": topic.head,
            "earliest_seq": topic.earliest,
            "type": topic.config.type,
        }

    def configure(self, request: Request, flags: int) -> dict[str, Any]:
        body = fields_of(request)
        self._owned(body["topic"])
        topic, _ = self.server.open(body["topic"], body.get("create", True), body["config"])
        topic.configure(body["config"])
        return {"topic_id": topic.id, "created": False, "config": topic.config.to_fields()}

    def state(self, request: Request, flags: int) -> dict[str, Any]:
        return self._topic(fields_of(request)).state()

    def list(self, request: Request, flags: int) -> dict[str, Any]:
        body = fields_of(request)
        names = sorted(
            name
            for name in self.server.topics
            if name.startswith(body["prefix"]) and delivery_shard(name, self.server.shards) == self.shard
        )
        rest = [name for name in names if name > body["after"]]
        page = rest[: min(body["limit"], 2)]
        following = page[-1] if len(page) < len(rest) else None
        return {"topics": [self.server.topics[name].line() for name in page], "next": following}

    def totals(self, request: Request, flags: int) -> dict[str, Any]:
        mine = [t for t in self.server.topics.values() if delivery_shard(t.name, self.server.shards) == self.shard]
        return {"topics": len(mine), "queue_topics": sum(topic.config.type == "queue" for topic in mine)}

    def delete_topic(self, request: Request, flags: int) -> dict[str, Any]:
        body = fields_of(request)
        topic = self._topic(body)
        if body.get("if_empty") and topic.records:
            raise Conflict("the topic is not empty")
        del self.server.topics[topic.name]
        self.server.deleted(topic)
        return {"topic_id": topic.id}

    def delete_records(self, request: Request, flags: int) -> dict[str, Any]:
        body = fields_of(request)
        return self._topic(body).delete(body.get("before_seq"), body.get("match"))

    def open_commit(self, request: Request, flags: int) -> dict[str, Any]:
        found = self.producer(request, flags)
        first_no = fields_of(request).get("first_no") or found["expected"]
        limits = {"max_records": 10_000, "max_bytes": 1 << 24, "max_inflight_bytes": 1 << 26}
        return {**found, "first_no": first_no, **limits}

    def close_commit(self, request: Request, flags: int) -> dict[str, Any]:
        return {"topic_id": self._topic(fields_of(request)).id, "records": 0}

    def producer(self, request: Request, flags: int) -> dict[str, Any]:
        body = fields_of(request)
        topic = self._topic(body)
        return {"topic_id": topic.id, "expected": topic.producers.get(body["producer_id"], (0, {}))[0] + 1}

    def append(self, request: Request, flags: int) -> bytes:
        topic_id, producer, number, count = APPEND.unpack_from(request.body)
        at, key = APPEND.size, b""
        if flags & MessageFlag.KEY:
            length = int.from_bytes(request.body[at : at + 2], "little")
            key, at = request.body[at + 2 : at + 2 + length], at + 2 + length
        options: Any = []
        if flags & MessageFlag.OPTIONS:
            length = int.from_bytes(request.body[at : at + 4], "little")
            options, at = msgpack.unpackb(request.body[at + 4 : at + 4 + length]), at + 4 + length
        topic = self.server.by_id(topic_id)
        self.server.now_ms += 1
        if options and (key_held := options[0][2].get("unique")):
            seq = fakequeue.queue_of(topic).holder_of_key(key_held)
            if seq:
                body = APPENDED.pack(seq, 1, topic.head)
                return message(Op.APPEND | ANSWER, request.request_id, body, int(MessageFlag.CONFLICT))
        first, stored, deduped = topic.append(
            producer, number, key, bytearray(request.body[at:]), count, self.server.now_ms
        )
        if options:
            fakequeue.queue_of(topic).published(first, count, options, self.server.now_ms)
        self.server.moved(topic)
        answer_flags = int(MessageFlag.DEDUPED) if deduped else 0
        body = APPENDED.pack(first, stored, topic.head)
        if flags & MessageFlag.PERFORMANCE:
            body += PERFORMANCE.pack(1.5, 0.5, 1.0, 0, 0.0)
        return message(Op.APPEND | ANSWER, request.request_id, body, answer_flags)

    def fetch(self, request: Request, flags: int) -> bytes:
        topic_id, from_seq, limit, max_bytes, _wait_ms = FETCH.unpack_from(request.body)
        filters = msgpack.unpackb(request.body[FETCH.size :]) if flags & MessageFlag.FILTER else {}
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
        body = fields_of(request)
        made = Subscription(self, request.request_id, body)
        answer = made.begin()
        self.subscriptions[request.request_id] = made
        self.server._loop.call_soon(self.pump)
        return answer

    def unsubscribe(self, request: Request, flags: int) -> dict[str, Any]:
        self.subscriptions.pop(fields_of(request)["subscription"], None)
        return {}

    def credit(self, request: Request, flags: int) -> bytes:
        subscription, size = CREDIT.unpack(request.body)
        if subscription in self.subscriptions:
            self.subscriptions[subscription].credit += size
        return b""

    def open_consumer(self, request: Request, flags: int) -> dict[str, Any]:
        body = fields_of(request)
        return self._topic(body).open_consumer(body["name"], body.get("start", {"at": "earliest"}))

    def list_consumers(self, request: Request, flags: int) -> dict[str, Any]:
        topic = self._topic(fields_of(request))
        return {"consumers": [topic.consumer_line(name) for name in sorted(topic.consumers)]}

    def consumer(self, request: Request, flags: int) -> dict[str, Any]:
        body = fields_of(request)
        topic = self._topic(body)
        if body["name"] not in topic.consumers:
            raise ConsumerNotFound(f"no consumer {body['name']!r}")
        if request.op == Op.CONSUMER_ACK:
            topic.consumers[body["name"]] = max(topic.consumers[body["name"]], body["seq"])
        elif request.op == Op.CONSUMER_RESET:
            topic.consumers[body["name"]] = topic.position(body["start"])
        elif request.op == Op.CONSUMER_REMOVE:
            del topic.consumers[body["name"]]
            return {}
        return topic.consumer_line(body["name"])

    # ---- pushing ----

    def pump(self) -> None:
        for subscription in self.subscriptions.values():
            subscription.pump()
        for work in self.works.values():
            work.pump()

    def born(self, topic: FakeTopic) -> None:
        for subscription in self.subscriptions.values():
            subscription.born(topic)

    def gone(self, topic: FakeTopic) -> None:
        for subscription in self.subscriptions.values():
            if subscription.cursors.pop(topic.name, None) is not None:
                notice = {"event": "topic_deleted", "topic": topic.name, "topic_id": topic.id}
                self.transport.write(map_message(Op.NOTICE, subscription.id, notice))
        for work in self.works.values():
            if work.queue.topic is topic:
                notice = {"event": "topic_deleted", "topic": topic.name, "topic_id": topic.id}
                self.transport.write(map_message(Op.NOTICE, work.id, notice))


class Subscription:
    def __init__(self, session: Session, sub_id: int, body: dict[str, Any]) -> None:
        self.session = session
        self.id = sub_id
        self.body = body
        self.credit = body["credit"]
        self.cursors: dict[str, int] = {}
        self.epochs: dict[str, int] = {}
        self.awaited: set[str] = set()

    def begin(self) -> dict[str, Any]:
        answer = []
        for entry in self.body["topics"]:
            known = entry["topic"] in self.session.server.topics
            if not known and self.body["wait"] and entry.get("epoch") is None:
                self.session._owned(entry["topic"])
                self.awaited.add(entry["topic"])
                continue
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
        pattern = self.body["pattern"]
        mine = delivery_shard(topic.name, self.session.server.shards) == self.session.shard
        return bool(pattern) and mine and topic.name.startswith(pattern[:-1])

    def born(self, topic: FakeTopic) -> None:
        if self._matches(topic) or topic.name in self.awaited:
            self.awaited.discard(topic.name)
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
    Op.TOTALS: Session.totals,
    Op.DELETE_TOPIC: Session.delete_topic,
    Op.DELETE_RECORDS: Session.delete_records,
    Op.ROUTERS_OF: Session.nothing,
    Op.PRODUCER: Session.producer,
    Op.RELEASE_PRODUCER: Session.producer,
    Op.OPEN_COMMIT: Session.open_commit,
    Op.CLOSE_COMMIT: Session.close_commit,
    Op.APPEND: Session.append,
    Op.FETCH: Session.fetch,
    Op.SUBSCRIBE: Session.subscribe,
    Op.UNSUBSCRIBE: Session.unsubscribe,
    Op.CREDIT: Session.credit,
    Op.CONSUMER_OPEN: Session.open_consumer,
    Op.CONSUMER_LIST: Session.list_consumers,
    Op.CONSUMER_ACK: Session.consumer,
    Op.CONSUMER_RESET: Session.consumer,
    Op.CONSUMER_REMOVE: Session.consumer,
    Op.CONSUMER_STATE: Session.consumer,
    **fakequeue.HANDLERS,
}
