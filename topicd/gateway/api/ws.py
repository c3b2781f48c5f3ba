"""Commands over a WebSocket. Contract: docs/http.md.

Commands of a socket begin in the order in which they come. Plain publishes run side by side, so that a socket is not
limited by the time of one write; those of one topic are stored in their order nevertheless.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any

import msgspec
from msgspec import UNSET

from topicd.errors import TopicdError
from topicd.gateway import errors, schemas
from topicd.gateway.api.records import key_of, store, told
from topicd.gateway.api.topics import check_name
from topicd.gateway.api.watch import places_of, wants_of
from topicd.gateway.batches import TopicBatch
from topicd.gateway.endpoints import BODY_MAX, Call, endpoint
from topicd.gateway.errors import Refusal, invalid
from topicd.gateway.feeds import Feed
from topicd.gateway.keys import require, require_name
from topicd.gateway.records_json import Shape
from topicd.gateway.schemas import Command, Publish, Start, Subscribe, Unsubscribe
from topicd.gateway.sse import REVOKED
from topicd.gateway.web import websocket
from topicd.gateway.web.messages import Reply, consumed
from topicd.gateway.web.websocket import WebSocket, text_frame

log = logging.getLogger(__name__)

SUBSCRIPTIONS = 1_024  # topics that one socket follows
_AHEAD = 16  # commands that wait before nothing more is read
_SIDE_BY_SIDE = 32

_text = msgspec.json.encode


@endpoint("GET", "/v0/ws", kind="socket", answers={101: "a WebSocket", 400: "no upgrade"})
async def open_socket(call: Call) -> Reply | None:
    """Upgrade to a WebSocket."""
    headers = websocket.accepts(call.head)
    if headers is None or call.exchange is None:
        raise invalid("this is no upgrade to a WebSocket of version 13 over HTTP/1.1")
    with call.service.usage.stream(call.key):
        socket = WebSocket(call.service.room, BODY_MAX)
        commands = Commands(call, socket)
        socket.open(call.upgrade(headers, socket.receive))
        await commands.run()
    return None


class Commands:
    def __init__(self, call: Call, socket: WebSocket) -> None:
        self._call = call
        self._socket = socket
        self._waiting: deque[str | None] = deque()
        self._arrived = asyncio.Event()
        self._beside: set[asyncio.Task[None]] = set()
        self._feeds: dict[str, SocketFeed] = {}
        self._ended: list[SocketFeed] = []
        self._written: set[str] = set()  # topics that took a write of this socket: they need not be created
        socket.on_message = self._message
        socket.on_room = self._resume

    # ---- what comes ----

    def _message(self, message: str | None) -> None:
        self._waiting.append(message)
        self._arrived.set()
        if len(self._waiting) >= _AHEAD:
            self._socket.pause(True)

    async def run(self) -> None:
        service, socket = self._call.service, self._socket
        work = asyncio.get_running_loop().create_task(self._work())
        work.add_done_callback(consumed)
        revoked = self._call.revocation()
        try:
            await asyncio.wait((socket.gone, service.stopping, revoked, work), return_when=asyncio.FIRST_COMPLETED)
            last = {"op": "error", "request_id": None}
            if revoked.done():
                last |= {"code": "unauthorized", "message": REVOKED}
                socket.close(websocket.POLICY, text_frame(_text(last)))
            elif service.stopping.done():
                last |= {"code": "server_shutting_down", "message": "the daemon is stopping"}
                socket.close(websocket.GOING_AWAY, text_frame(_text(last)))
        finally:
            work.cancel()
            for task in self._beside:
                task.cancel()
            for feed in self._feeds.values():
                feed.close()
            for message in self._waiting:
                socket.done(message or "")
            self._waiting.clear()
            socket.close(websocket.INTERNAL)
            socket.release()

    async def _work(self) -> None:
        while True:
            while not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
            message = self._waiting.popleft()
            if len(self._waiting) == _AHEAD // 2:
                self._socket.pause(False)
            try:
                await self._one(message)
            finally:
                self._socket.done(message or "")

    async def _one(self, message: str | None) -> None:
        if message is None:
            await self._refuse(b"null", Refusal(400, "unsupported_message", "messages are text, not binary"))
            return
        try:
            command = schemas.decode(Command, message.encode())
        except (Refusal, UnicodeEncodeError):
            await self._refuse(b"null", Refusal(400, "invalid_json", "this is no JSON object with an op"))
            return
        request_id = b"null" if command.request_id is UNSET else bytes(command.request_id)
        if command.op == "publish":
            await self._publish(request_id, message)
        elif command.op == "subscribe":
            await self._guarded(request_id, self._subscribe(request_id, message))
        elif command.op == "unsubscribe":
            await self._guarded(request_id, self._unsubscribe(request_id, message))
        elif command.op == "ping":
            await self._reply(request_id, {"op": "pong"})
        else:
            await self._refuse(request_id, Refusal(400, "invalid_json", f"there is no op {command.op!r:.100}"))

    # ---- replies ----

    async def _guarded(self, request_id: bytes, work: Any) -> None:
        try:
            await work
        except Refusal as refusal:
            await self._refuse(request_id, refusal)
        except TopicdError as exc:
            await self._refuse(request_id, errors.of(exc))
        except Exception:
            log.exception("command failed")
            await self._refuse(request_id, errors.internal())

    async def _refuse(self, request_id: bytes, refusal: Refusal) -> None:
        await self._reply(request_id, {"op": "error", **refusal.body()["error"]})

    async def _reply(self, request_id: bytes, body: dict[str, Any]) -> None:
        if await self._socket.until_free():
            op = _text(body.pop("op"))
            rest = _text(body)[1:-1]
            text = b'{"op":%b,"request_id":%b%b}' % (op, request_id, b"," + rest if rest else b"")
            self._socket.send(text_frame(text))

    # ---- publish ----

    async def _publish(self, request_id: bytes, message: str) -> None:
        try:
            body = schemas.decode(Publish, message.encode())
        except Refusal as refusal:
            await self._refuse(request_id, refusal)
            return
        work = self._guarded(request_id, self._store(request_id, body))
        if body.idempotency_key or body.config is not None or body.topic not in self._written:
            if self._beside:
                await asyncio.wait(self._beside)
            await work
            return
        while len(self._beside) >= _SIDE_BY_SIDE:
            await asyncio.wait(self._beside, return_when=asyncio.FIRST_COMPLETED)
        task = asyncio.get_running_loop().create_task(work)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)
        task.add_done_callback(consumed)

    async def _store(self, request_id: bytes, body: Publish) -> None:
        call = Call(self._call.service, self._call.head, self._call.rights, self._call.key)
        if not body.topic:
            raise invalid("publish needs a topic")
        require(call.rights, ("write", "admin") if body.config is not None else ("write",))
        require_name(call.rights, body.topic, in_body=True)
        check_name(body.topic)
        written = await store(call, body.topic, body, key_of(body))
        if len(self._written) < SUBSCRIPTIONS:
            self._written.add(body.topic)
        answer = told(body.topic, written)
        if not body.return_seqs:
            answer["seqs"] = None
        performance = {"server_total_ms": call.elapsed_ms(), **written.performance}
        await self._reply(request_id, {"op": "ack", **answer, "performance": performance})

    # ---- subscriptions ----

    async def _subscribe(self, request_id: bytes, message: str) -> None:
        body = schemas.decode(Subscribe, message.encode())
        call = self._call
        require(call.rights, ("read",))
        topics = dict(body.topics or {})
        if body.topic is not None:
            topics[body.topic] = Start(from_seq=body.from_seq, tail=body.tail)
        places, answer = await places_of(call, topics, lenient=body.lenient)
        if len(self._feeds.keys() | places.keys()) > SUBSCRIPTIONS:
            raise invalid(f"a socket follows at most {SUBSCRIPTIONS} topics")
        wants = wants_of(body.limit, body.max_batch_bytes, body.node)
        shape = Shape(tags=body.include_tags, meta=body.include_meta, data=body.include_data)
        for name in places:
            self._drop(name)
        await self._reply(request_id, {"op": "subscribed", "topics": answer})
        for name, place in places.items():
            self._drop(name)
            follower = self._feeds[name] = SocketFeed(self._socket, self, shape)
            follower.feed = Feed(call.service, follower, name, place, wants)
            follower.feed.start()

    async def _unsubscribe(self, request_id: bytes, message: str) -> None:
        body = schemas.decode(Unsubscribe, message.encode())
        names = list(dict.fromkeys([*([body.topic] if body.topic is not None else []), *(body.topics or [])]))
        if not names:
            raise invalid("unsubscribe needs topic or topics")
        for name in names:
            self._drop(name)
        await self._reply(request_id, {"op": "unsubscribed", "topics": names})

    def _drop(self, name: str) -> None:
        found = self._feeds.pop(name, None)
        if found is not None:
            found.close()

    def _resume(self) -> None:
        while self._ended and self._socket.free_for_event:
            self._ended.pop(0).tell_deleted()
        for one in list(self._feeds.values()):
            if not self._socket.free_for_event:
                return
            one.resume()

    def deleted(self, one: SocketFeed, topic: str) -> None:
        if self._feeds.get(topic) is one:
            del self._feeds[topic]
        if self._socket.free_for_event:
            one.tell_deleted()
        else:
            self._ended.append(one)


class SocketFeed:
    """A topic on its way to the socket."""

    def __init__(self, socket: WebSocket, commands: Commands, shape: Shape) -> None:
        self._socket = socket
        self._commands = commands
        self._shape = shape
        self.feed: Feed | None = None

    def close(self) -> None:
        if self.feed is not None:
            self.feed.close()

    def resume(self) -> None:
        if self.feed is not None:
            self.feed.resume()

    # ---- as Reader ----

    def has_room(self) -> bool:
        return self._socket.free_for_event

    def blocked(self) -> None:
        """The socket says when it has room."""

    def records(self, feed: Feed, batch: TopicBatch, *, drained: bool) -> None:
        key = ("ws", self._shape)
        made = batch.made.get(key)
        if made is None:
            places = (batch.from_seq, batch.to_seq, batch.head_seq)
            text = b'{"op":"record","topic":%b,"from_seq":%d,"to_seq":%d,"head_seq":%d,"records":%b}' % (
                _text(batch.topic),
                *places,
                batch.text(self._shape),
            )
            made = batch.made[key] = text_frame(text)
        self._socket.send(made)
        if drained:
            self.caught_up(feed, batch.head_seq)

    def gap(self, feed: Feed, gap: dict[str, Any], *, at: int, first: bool) -> None:
        names = ("reason", "gap_from", "gap_to", "earliest_seq", "head_seq")
        self._send({"op": "tombstone", "topic": feed.topic, **{name: gap[name] for name in names}})

    def caught_up(self, feed: Feed, head_seq: int) -> None:
        self._send({"op": "caught_up", "topic": feed.topic, "head_seq": head_seq})

    def deleted(self, feed: Feed) -> None:
        self._commands.deleted(self, feed.topic)

    def tell_deleted(self) -> None:
        if self.feed is not None:
            told = {"topic": self.feed.topic, "head_seq": self.feed.head_seq, "reason": "deleted"}
            self._send({"op": "topic_deleted", **told})

    def failed(self, feed: Feed) -> None:
        self._socket.close(websocket.INTERNAL)

    def troubled(self, feed: Feed, error: TopicdError, retry_s: float) -> None:
        if self.has_room():
            refusal = errors.of(error, feed.topic)
            detail = {"topic": feed.topic, "retry_after_ms": max(1, int(retry_s * 1000))}
            told = {"request_id": None, "code": refusal.code, "message": refusal.message, "detail": detail}
            self._send({"op": "error", **told})

    def _send(self, body: dict[str, Any]) -> None:
        self._socket.send(text_frame(_text(body)))
