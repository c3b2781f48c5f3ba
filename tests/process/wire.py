"""A client that hides nothing: raw messages over one socket, answers kept until somebody asks for them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgpack

from topicd.errors import from_wire
from topicd.frames import core
from topicd.ipc.protocol import unixsock
from topicd.ipc.protocol import wire as protocol
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import ANSWER, APPEND, APPENDED, CREDIT, FETCH, FETCHED, MessageFlag, MessageReader
from topicd.placement import delivery_shard

PATIENCE_S = 30.0
Frames = bytes | bytearray | memoryview


class Reply(NamedTuple):
    op: int
    flags: int
    request_id: int
    body: bytes

    @property
    def map(self) -> dict[str, Any]:
        found = msgpack.unpackb(self.body)
        assert isinstance(found, dict)
        return found

    def checked(self, op: int) -> Reply:
        """This reply if it answers op; the error of the contract if it is one."""
        if self.op == Op.ERROR:
            raise from_wire(self.map)
        assert self.op == op | ANSWER, f"op 0x{self.op:02x} is no answer to 0x{op:02x}"
        return self


class Appended(NamedTuple):
    first_seq: int
    count: int  # type: ignore[assignment]
    head_seq: int
    deduped: bool
    performance: dict[str, float] | None


class Row(NamedTuple):
    seq: int
    ts: int
    node: bytes | None
    tag: bytes | None
    meta: bytes | None
    data: bytes


class Fetched(NamedTuple):
    topic_id: int
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    count: int  # type: ignore[assignment]
    rows: list[Row]
    frames: bytes
    caught_up: bool
    tombstone: dict[str, Any] | None
    performance: dict[str, Any] | None

    @property
    def seqs(self) -> list[int]:
        return [row.seq for row in self.rows]

    @property
    def datas(self) -> list[bytes]:
        return [row.data for row in self.rows]


class Closed(EOFError):
    """The daemon closed the connection."""


class Wire:
    def __init__(self, path: Path, *, greet: bool = True, timeout: float = PATIENCE_S) -> None:
        self.path = path
        self.sock = unixsock.connect(path, timeout)
        self._timeout = timeout
        self._reader = MessageReader()
        self._inbox: deque[Reply] = deque()
        self._next = 0
        self.hello: dict[str, Any] = {}
        if greet:
            self.hello = self.ask(Op.HELLO, {"version": protocol.PROTOCOL_VERSION, "client": "wire"})

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- sending ----

    def next_id(self) -> int:
        self._next += 1
        return self._next

    def send_raw(self, data: bytes | bytearray) -> None:
        self.sock.sendall(data)

    def send(self, op: int, body: dict[str, Any] | Frames = b"", flags: int = 0) -> int:
        """Send a request; the id under which it will be answered."""
        request_id = self.next_id()
        self.sock.sendall(packed(op, request_id, body, flags))
        return request_id

    # ---- receiving ----

    def receive(self, timeout: float | None = None) -> Reply:
        """The next message of any kind. Closed: there will be none. TimeoutError: none came."""
        if self._inbox:
            return self._inbox.popleft()
        self._fill(time.monotonic() + (self._timeout if timeout is None else timeout))
        return self._inbox.popleft()

    def wait(self, request_id: int, timeout: float | None = None) -> Reply:
        """The next message with that id; others stay for later."""
        deadline = time.monotonic() + (self._timeout if timeout is None else timeout)
        while True:
            for i, reply in enumerate(self._inbox):
                if reply.request_id == request_id:
                    del self._inbox[i]
                    return reply
            try:
                self._fill(deadline)
            except (Closed, ConnectionResetError):
                self._raise_refusal()
                raise

    def _raise_refusal(self) -> None:
        """An error with id 0 says why the whole connection was closed."""
        for reply in self._inbox:
            if reply.op == Op.ERROR and reply.request_id == 0:
                raise from_wire(reply.map)

    def quiet(self, seconds: float) -> bool:
        """Does nothing come for so long?"""
        try:
            reply = self.receive(seconds)
        except TimeoutError:
            return True
        self._inbox.appendleft(reply)
        return False

    def wait_closed(self, timeout: float | None = None) -> list[Reply]:
        """What still comes until the daemon closes the connection."""
        found = []
        while True:
            try:
                found.append(self.receive(timeout))
            except (Closed, ConnectionResetError):
                return found

    def _fill(self, deadline: float) -> None:
        before = len(self._inbox)
        while len(self._inbox) == before:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("no message came")
            self.sock.settimeout(left)
            try:
                piece = self.sock.recv(1 << 18)
            finally:
                self.sock.settimeout(self._timeout)
            if not piece:
                raise Closed(f"{self.path} closed the connection")
            for m in self._reader.feed(piece):
                self._inbox.append(Reply(m.op, m.flags, m.request_id, bytes(m.body)))

    # ---- requests ----

    def ask(self, op: int, body: dict[str, Any] | None = None) -> dict[str, Any]:
        return self.wait(self.send(op, body or {})).checked(op).map

    def open(self, topic: str, **config: Any) -> int:
        """The topic's id; made if it is not there."""
        answer = self.ask(Op.OPEN, {"topic": topic, "config": config})
        topic_id: int = answer["topic_id"]
        return topic_id

    def state(self, topic: str) -> dict[str, Any]:
        return self.ask(Op.STATE, {"topic": topic})

    def send_append(
        self,
        topic_id: int,
        frames: Frames,
        count: int,
        *,
        producer: int = 0,
        batch_no: int = 0,
        key: bytes = b"",
        flags: int = 0,
    ) -> int:
        body = append_body(topic_id, frames, count, producer=producer, batch_no=batch_no, key=key)
        return self.send(Op.APPEND, body, flags | (MessageFlag.KEY if key else 0))

    def appended(self, request_id: int) -> Appended:
        reply = self.wait(request_id).checked(Op.APPEND)
        rest = reply.body[APPENDED.size :]
        performance = protocol.performance_map(rest) if rest else None
        return Appended(*APPENDED.unpack_from(reply.body), bool(reply.flags & MessageFlag.DEDUPED), performance)

    def append(self, topic_id: int, datas: Sequence[Frames], **options: Any) -> Appended:
        """Store records without tags; options as for send_append."""
        return self.appended(self.send_append(topic_id, batch(datas), len(datas), **options))

    def send_fetch(
        self,
        topic_id: int,
        from_seq: int = 0,
        limit: int = 0,
        max_bytes: int = 0,
        wait_ms: int = 0,
        *,
        flags: int = 0,
        **chosen: Any,
    ) -> int:
        body = FETCH.pack(topic_id, from_seq, limit, max_bytes, wait_ms)
        if chosen:
            flags |= MessageFlag.FILTER
            body += msgpack.packb(chosen)
        return self.send(Op.FETCH, body, flags)

    def fetched(self, request_id: int, timeout: float | None = None) -> Fetched:
        return fetched(self.wait(request_id, timeout).checked(Op.FETCH))

    def fetch(self, topic_id: int, from_seq: int = 0, **options: Any) -> Fetched:
        return self.fetched(self.send_fetch(topic_id, from_seq, **options))

    def read_all(self, topic_id: int, from_seq: int = 0) -> list[Row]:
        rows: list[Row] = []
        while True:
            answer = self.fetch(topic_id, from_seq, limit=100_000, max_bytes=8 << 20)
            rows += answer.rows
            from_seq = answer.next_from_seq
            if answer.caught_up:
                return rows

    def subscribe(self, topics: Sequence[dict[str, Any]], credit: int = 1 << 20, **options: Any) -> int:
        """The subscription's id, once it is confirmed."""
        request_id = self.send(Op.SUBSCRIBE, {"topics": list(topics), "credit": credit, **options})
        self.wait(request_id).checked(Op.SUBSCRIBE)
        return request_id

    def pushed(self, subscription: int, timeout: float | None = None) -> Fetched:
        reply = self.wait(subscription, timeout)
        assert reply.op == Op.PUSH, f"op 0x{reply.op:02x} instead of a push: {reply.body[:200]!r}"
        return fetched(reply)

    def credit(self, subscription: int, size: int) -> None:
        self.send(Op.CREDIT, CREDIT.pack(subscription, size))


def packed(op: int, request_id: int, body: dict[str, Any] | Frames = b"", flags: int = 0) -> bytes:
    if isinstance(body, dict):
        return protocol.map_message(op, request_id, body, flags)
    return protocol.header(op, flags, request_id, len(body)) + body


def batch(
    datas: Sequence[Frames],
    tags: Sequence[bytes | None] | bytes | None = None,
    nodes: Sequence[bytes | None] | bytes | None = None,
    metas: Sequence[bytes | None] | None = None,
) -> bytearray:
    return core.encode_batch(datas, tags, nodes, metas)


def append_body(
    topic_id: int, frames: Frames, count: int, *, producer: int = 0, batch_no: int = 0, key: bytes = b""
) -> bytes:
    named = len(key).to_bytes(2, "little") + key if key else b""
    return APPEND.pack(topic_id, producer, batch_no, count) + named + frames


def fetched(reply: Reply) -> Fetched:
    """A fetch answer or a push."""
    topic_id, next_from, head, earliest, count, extra_len = FETCHED.unpack_from(reply.body)
    at = FETCHED.size + extra_len
    extra = msgpack.unpackb(reply.body[FETCHED.size : at]) if extra_len else {}
    frames = reply.body[at:]
    rows = [Row(*row) for row in core.decode_frames(frames, 0, len(frames))]
    assert len(rows) == count, f"{count} frames were announced, {len(rows)} came"
    assert bool(reply.flags & MessageFlag.TOMBSTONE) == ("tombstone" in extra)
    return Fetched(
        topic_id,
        next_from,
        head,
        earliest,
        count,
        rows,
        frames,
        bool(reply.flags & MessageFlag.CAUGHT_UP),
        extra.get("tombstone"),
        extra.get("performance"),
    )


def owner(run_dir: Path, topic: str, shards: int) -> Path:
    """The socket of the shard that owns a topic."""
    return run_dir / f"dlv-{delivery_shard(topic, shards):02d}.sock"
