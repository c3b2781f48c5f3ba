"""The way from one delivery shard to another, or to itself: its socket, as any client uses it. Promise: a question is
answered, or fails with an error that says whether asking again may help; whoever follows something there hears of a
broken connection and begins again where it was; a shard that is away costs those who ask it, and nobody else.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from topicd.errors import NotReady, Throttled, TopicdError
from topicd.ipc.protocol import unixsock
from topicd.ipc.protocol.codec import (
    Appended,
    Fetched,
    answer_map,
    append_body,
    error_of,
    number,
    packed,
    parse_ack,
)
from topicd.ipc.protocol.cutter import Arrived, Cutter
from topicd.ipc.protocol.messages import Hello, OpenTopic, Request, Subscribe, Unsubscribe
from topicd.ipc.protocol.wire import (
    CREDIT,
    FLAG_OPTIONS,
    OP_APPEND,
    OP_CREDIT,
    OP_ERROR,
    OP_NOTICE,
    OP_PUSH,
    PROTOCOL_VERSION,
    message,
)
from topicd.placement import delivery_shard
from topicd.shards.delivery.place import Place

log = logging.getLogger(__name__)

ASK_S = 5.0  # so long a question waits for its answer
_CONNECT_S = 0.2
_ASKED_MAX = 10_000  # questions to one shard that are not answered
_ID_MAX = (1 << 31) - 1


class Listener:
    """Somebody who follows topics of another shard."""

    def accepted(self, answer: dict[str, Any]) -> None:
        """The subscription is there."""

    def pushed(self, fetched: Fetched) -> None:
        raise NotImplementedError

    def noticed(self, notice: dict[str, Any]) -> None:
        raise NotImplementedError

    def lost(self, error: TopicdError) -> None:
        """It was refused, or the connection is gone: nothing more comes. Told once."""
        raise NotImplementedError


class Followed:
    """A subscription on a link, for as long as that lives."""

    def __init__(self, link: Link, sub_id: int) -> None:
        self._link: Link | None = link
        self._id = sub_id

    def grant(self, size: int) -> None:
        """So many bytes more may be pushed."""
        if self._link is not None and size:
            self._link.send(message(OP_CREDIT, 0, CREDIT.pack(self._id, size)))

    def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.forget(self._id)


class Link(asyncio.BufferedProtocol):
    """One connection."""

    def __init__(self, on_lost: Callable[[Link], None]) -> None:
        self._on_lost = on_lost
        self._cutter = Cutter()
        self._transport: asyncio.Transport | None = None
        self._early: list[bytes] | None = []  # what is sent before the loop has the socket
        self._last_id = 0
        self._asked: dict[int, asyncio.Future[tuple[int, bytes]]] = {}
        self._listeners: dict[int, Listener] = {}

    # ---- transport ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        early, self._early = self._early, None
        transport.write(b"".join(early or ()))  # type: ignore[attr-defined]

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._cutter.window()

    def buffer_updated(self, nbytes: int) -> None:
        self._cutter.received(nbytes)
        try:
            while (arrived := self._cutter.take()) is not None:
                self._take(arrived)
        except Exception:
            log.exception("another shard's answer makes no sense")
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = self._early = None
        self._on_lost(self)
        error = NotReady("the connection to another shard broke", retry_after_ms=20)
        asked, self._asked = self._asked, {}
        for answer in asked.values():
            if not answer.done():
                answer.set_exception(error)
        listeners, self._listeners = self._listeners, {}
        for listener in listeners.values():
            listener.lost(error)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # ---- out ----

    def send(self, data: bytes) -> None:
        if self._early is not None:
            self._early.append(data)
        elif self._transport is not None:
            self._transport.write(data)

    def ask(self, op: int, flags: int, body: bytes, loop: asyncio.AbstractEventLoop) -> asyncio.Future[Any]:
        """(flags, body) of the answer, later."""
        if len(self._asked) >= _ASKED_MAX:
            raise Throttled("too many questions to another shard are under way", limit="relay", retry_after_ms=50)
        answer: asyncio.Future[tuple[int, bytes]] = loop.create_future()
        number = self._next_id()
        self._asked[number] = answer
        answer.add_done_callback(lambda _: self._asked.pop(number, None))
        self.send(message(op, number, body, flags))
        return answer

    def follow(self, want: Subscribe, listener: Listener) -> Followed:
        number = self._next_id()
        self._listeners[number] = listener
        self.send(message(int(want.OP), number, packed(want.to_wire())))
        return Followed(self, number)

    def forget(self, sub_id: int) -> None:
        if self._listeners.pop(sub_id, None) is not None:
            ended = Unsubscribe(subscription=sub_id)
            self.send(message(int(ended.OP), self._next_id(), packed(ended.to_wire())))

    def _next_id(self) -> int:
        self._last_id = self._last_id % _ID_MAX + 1
        return self._last_id

    # ---- in ----

    def _take(self, arrived: Arrived) -> None:
        listener = self._listeners.get(arrived.request_id)
        if listener is None:
            answer = self._asked.get(arrived.request_id)
            if answer is None or answer.done():
                return  # nobody waits any more
            if arrived.op == OP_ERROR:
                answer.set_exception(error_of(arrived.body()))
            else:
                answer.set_result((arrived.flags, arrived.body()))
        elif arrived.op == OP_PUSH:
            listener.pushed(self._cutter.fetched(arrived))
        elif arrived.op == OP_NOTICE:
            listener.noticed(answer_map(arrived.body()))
        elif arrived.op == OP_ERROR:
            del self._listeners[arrived.request_id]
            listener.lost(error_of(arrived.body()))
        else:
            listener.accepted(answer_map(arrived.body()))


class Relay:
    """Links to all shards, each made when it is needed."""

    def __init__(self, place: Place, loop: asyncio.AbstractEventLoop) -> None:
        self._place = place
        self._loop = loop
        self._links: dict[int, Link] = {}
        self._opening: set[asyncio.Task[None]] = set()
        self._closed = False
        # Set by the process: the other end of a connection to this very shard, which needs no way through the door.
        self.own_session: Callable[[], asyncio.BaseProtocol] | None = None

    def shard_of(self, topic: str) -> int:
        return delivery_shard(topic, self._place.delivery_shards)

    async def ask(self, shard: int, want: Request, timeout: float = ASK_S) -> dict[str, Any]:
        """The answer to a declared message."""
        _, body = await self._ask(shard, int(want.OP), 0, packed(want.to_wire()), timeout)
        return answer_map(body)

    async def open(self, topic: str, *, create: bool = True, internal: bool = False) -> int:
        """The id of a topic, wherever it lives."""
        want = OpenTopic(topic=topic, create=create, internal=internal, config=None)
        return number(await self.ask(self.shard_of(topic), want), "topic_id")

    async def append(
        self,
        topic: str,
        topic_id: int,
        producer_id: int,
        batch_no: int,
        frames: bytes | bytearray,
        count: int,
        options: bytes = b"",
    ) -> Appended:
        """Frames as a client lays them out, to the topic of that name and id, as that batch of that producer: however
        often it is repeated, it is stored once. options: of jobs, packed."""
        given = len(options).to_bytes(4, "little") + options if options else b""
        body = append_body(topic_id, producer_id, batch_no, count) + given + frames
        asked = FLAG_OPTIONS if options else 0
        flags, raw = await self._ask(self.shard_of(topic), OP_APPEND, asked, body, ASK_S)
        return parse_ack(flags, raw, 0, len(raw))

    def follow(self, shard: int, want: Subscribe, listener: Listener) -> Followed:
        """Raises if there is no connection to that shard now."""
        return self._link(shard).follow(want, listener)

    def close(self) -> None:
        self._closed = True
        for link in list(self._links.values()):
            link.close()

    async def _ask(self, shard: int, op: int, flags: int, body: bytes, timeout: float) -> tuple[int, bytes]:
        try:
            async with asyncio.timeout(timeout):
                found: tuple[int, bytes] = await self._link(shard).ask(op, flags, body, self._loop)
                return found
        except TimeoutError:
            raise NotReady(f"shard {shard} does not answer", retry_after_ms=100) from None

    def _link(self, shard: int) -> Link:
        link = self._links.get(shard)
        if link is not None:
            return link
        if self._closed:
            raise NotReady("the daemon is stopping", retry_after_ms=500)
        sock = self._socket(shard)
        link = self._links[shard] = Link(lambda lost: self._forget(shard, lost))
        hello = Hello(version=PROTOCOL_VERSION, client=f"dlv-{self._place.index:02d}")
        link.send(message(int(hello.OP), 0, packed(hello.to_wire())))
        self._spawn(self._connect(link, sock))
        return link

    def _socket(self, shard: int) -> socket.socket:
        try:
            if shard == self._place.index and self.own_session is not None:
                here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
                there.setblocking(False)
                self._spawn(self._serve(self.own_session, there))
            else:
                # The supervisor holds the listening sockets: this waits for nobody.
                here = unixsock.connect(Path(self._place.socket_paths[shard]), _CONNECT_S)
        except OSError as exc:
            raise NotReady(f"shard {shard} cannot be reached: {exc.strerror or exc}", retry_after_ms=50) from None
        here.setblocking(False)
        return here

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _serve(self, session: Callable[[], asyncio.BaseProtocol], sock: socket.socket) -> None:
        await self._loop.connect_accepted_socket(session, sock)

    async def _connect(self, link: Link, sock: socket.socket) -> None:
        try:
            await self._loop.create_unix_connection(lambda: link, sock=sock)
        except OSError as exc:
            sock.close()
            link.connection_lost(exc)

    def _forget(self, shard: int, link: Link) -> None:
        if self._links.get(shard) is link:
            del self._links[shard]
