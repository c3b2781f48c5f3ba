"""HTTP/1.1 on one connection; the parser is llhttp (httptools). Promise: whatever bytes come, the peer gets answers in
the order of its requests or the connection is closed; memory is bounded by one body, one read and MAX_HEAD.

One request is worked on at a time; what a peer sends ahead waits, and when that is much it is not read.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import httptools

from topicd.gateway.web.deadline import Deadline
from topicd.gateway.web.http1_stream import Http1Exchange, Http1Stream, Incoming
from topicd.gateway.web.http1_text import answer_head, origin_form, stream_head, wants_websocket
from topicd.gateway.web.messages import (
    LINGER_S,
    Application,
    BodyRoom,
    Head,
    Headers,
    Reply,
    collect,
)
from topicd.gateway.web.slices import Slices
from topicd.gateway.web.turns import SECONDS, Turns
from topicd.limits import KIB, MIB

MAX_HEAD = 64 * KIB
MAX_HEADERS = 128
HEAD_S = 60.0  # to receive a head; as long may a body stand still
_FIRST = 1 * KIB  # of what comes: so much is looked at at once, at first
_AHEAD = 16  # requests sent ahead before no more are looked at
STUCK_S = 30.0  # a peer that takes nothing of its answers for so long is sent away
_SWALLOW = 1 * MIB  # of a body that nobody wants, before the connection is closed instead
_WRITE_HIGH = 256 * KIB

log = logging.getLogger(__name__)


class Http1:
    """An asyncio.Protocol by its methods; inheriting would keep it from being compiled to a plain struct."""

    def __init__(self, app: Application, room: BodyRoom, turns: Turns, ended: Callable[[Any], None]) -> None:
        self._app = app
        self._turns = turns
        self._room = room
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._peer = ""
        self._arrived = Slices(_FIRST)
        self._queued = False  # for a turn
        self._reading_paused = False
        self._incoming: Incoming | None = None
        self._waiting: deque[Incoming] = deque()
        self._current: Incoming | None = None
        self._task: asyncio.Task[None] | None = None
        self._stream: Http1Stream | None = None
        self._raw: Callable[[bytes], None] | None = None  # upgraded: bytes go there
        self._upgrading = False
        self._early = b""  # what came behind the request for an upgrade
        self._head_bytes = 0
        self._target = b""
        self._headers: dict[bytes, bytes] = {}
        self._header_count = 0
        self._header_bytes = 0
        self._host_count = 0
        self._broken = False  # what comes is not read any more
        self._finished = False  # nothing more is sent
        self._half_closed = False
        self._draining = False
        self._deadline = Deadline(self._loop, HEAD_S, self._late)  # of what is awaited
        self.paused = False

    # ---- transport ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        transport.set_write_buffer_limits(high=_WRITE_HIGH)  # type: ignore[attr-defined]
        peer = transport.get_extra_info("peername")
        self._peer = str(peer[0]) if isinstance(peer, tuple) and peer else ""
        self._arm()

    def data_received(self, data: bytes) -> None:
        if self._raw is not None:
            self._raw(data)
            return
        if self._broken or self._stream is not None:
            return
        busy = bool(self._arrived)
        self._arrived.put(data)
        if not busy:
            now = time.perf_counter()
            if self._work(now + SECONDS, now):
                self._queue()

    def _queue(self) -> None:
        if not self._queued:
            self._queued = True
            self._turns.later(self._turn)

    def _turn(self, until: float) -> bool:
        self._queued = self._work(until, time.perf_counter())
        return self._queued

    def _work(self, until: float, now: float) -> bool:
        """What came, slice by slice, as long as not too many requests wait. True: its time is over before that."""
        arrived, late = self._arrived, False
        while arrived and len(self._waiting) <= _AHEAD and not self._broken and self._stream is None:
            if now >= until:
                late = True
                break
            self._parse(arrived.take())
            before, now = now, time.perf_counter()
            arrived.took(now - before)
        if self._broken:
            arrived.rest()
        if bool(arrived) is not self._reading_paused:
            self._reading_paused = bool(arrived)
            self.pause_reading(self._reading_paused)
        if self._half_closed and not arrived and self._idle and not self._broken and self._transport is not None:
            self._transport.close()  # what it wanted to ask will never be whole
        return late

    def _parse(self, data: bytes) -> None:
        if self._upgrading:
            self._early += data
            if len(self._early) > MAX_HEAD:
                self.abort()
            return
        if self._incoming is None or self._incoming.head is None:
            self._head_bytes += len(data)
        try:
            self._feed(data)
        except httptools.HttpParserError as exc:
            self._refuse_bytes(str(exc) or type(exc).__name__)
        if self._head_bytes > MAX_HEAD and (self._incoming is not None and self._incoming.head is None):
            self._refuse_bytes(f"the head of a request has at most {MAX_HEAD} bytes")

    def _feed(self, data: bytes) -> None:
        while data:
            try:
                self._parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as exc:
                # An upgrade that somebody wants is made by the request itself; all others are ignored.
                data = data[exc.args[0] :]
                if self._raw_expected():
                    self._upgrading, self._early = True, data
                    return
                self._parser = httptools.HttpRequestParser(self)
            except httptools.HttpParserCallbackError as exc:
                raise httptools.HttpParserError(str(exc.__context__ or exc)) from None

    def _raw_expected(self) -> bool:
        last = self._waiting[-1] if self._waiting else self._current
        return last is not None and last.head is not None and wants_websocket(last.head)

    def eof_received(self) -> bool:
        """A peer that has sent all it wants may wait for its answer; one that listens to a stream is gone."""
        self._half_closed = True
        return (self._current is not None or self.paused or bool(self._arrived)) and self._stream is None

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._broken = True
        self._deadline.close()
        if self._stream is not None:
            self._stream.lost()
        for request in (*self._waiting, self._incoming, self._current):
            self._give_up(request)
        self._waiting.clear()
        self._incoming = None
        if self._task is not None:
            self._task.cancel()
        self._ended(self)

    def pause_writing(self) -> None:
        self.paused = True
        if self._stream is None and self._transport is not None:
            self._loop.call_later(STUCK_S, self._look_if_stuck, self.buffered)

    def resume_writing(self) -> None:
        self.paused = False
        if self._stream is not None:
            self._stream.on_writable()
        else:
            self._next()

    def _look_if_stuck(self, before: int) -> None:
        if self.paused and self._stream is None and self._transport is not None:
            if self.buffered >= before:
                self._transport.abort()
            else:
                self._loop.call_later(STUCK_S, self._look_if_stuck, self.buffered)

    def shutdown(self) -> None:
        """The daemon stops: an idle connection ends now, a busy one behind its answer."""
        self._draining = True
        if self._current is None and not self._waiting and self._transport is not None:
            self._transport.close()

    # ---- the parser's calls ----

    def on_message_begin(self) -> None:
        self._incoming = Incoming()
        self._headers = {}
        self._target = b""
        self._header_count = self._header_bytes = self._host_count = 0

    def on_url(self, url: bytes) -> None:
        self._target += url
        if len(self._target) > MAX_HEAD:
            raise ValueError(f"the head of a request has at most {MAX_HEAD} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_count += 1
        self._header_bytes += len(name) + len(value) + 4
        if self._header_count > MAX_HEADERS:
            raise ValueError(f"a request has at most {MAX_HEADERS} headers")
        if len(self._target) + self._header_bytes > MAX_HEAD:
            raise ValueError(f"the head of a request has at most {MAX_HEAD} bytes")
        name = name.lower()
        if name == b"host":
            self._host_count += 1
        collect(self._headers, name, value)

    def on_headers_complete(self) -> None:
        request, parser = self._incoming, self._parser
        if request is None:
            return
        self._head_bytes = 0
        version = parser.get_http_version()
        if version not in ("1.0", "1.1"):
            raise ValueError(f"HTTP/{version} is not spoken here")
        if self._host_count > 1 or (version == "1.1" and not self._host_count):
            raise ValueError("a request has one Host")
        coding = self._headers.get(b"transfer-encoding")
        if coding is not None and (version == "1.0" or coding.lower() != b"chunked"):
            raise ValueError("the only transfer encoding is chunked")
        head = request.head = Head(
            parser.get_method().decode("latin-1"), origin_form(self._target), self._headers, version, self._peer
        )
        # An upgrade that is refused ends the connection: what is behind it was not meant for this parser.
        request.keep_alive = parser.should_keep_alive() and not wants_websocket(head)
        verdict = self._app.begin(head)
        if isinstance(verdict, Reply):
            request.reply = verdict
        else:
            request.accepted = verdict
        self._check_announced(request, head)

    def _check_announced(self, request: Incoming, head: Head) -> None:
        length = head.headers.get(b"content-length", b"")
        announced = int(length) if length.isdigit() else 0
        if request.accepted is not None and announced > request.accepted.body_limit:
            self._turn_down(request, self._app.too_large(request.accepted.body_limit))
        if request.reply is not None and (announced > _SWALLOW or b"expect" in head.headers):
            # Its body is not worth reading.
            self._answer_early(request)
        elif head.headers.get(b"expect", b"").lower() == b"100-continue" and self._idle and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    @property
    def _idle(self) -> bool:
        """No answer is under way."""
        return self._current is None and not self._waiting

    def on_body(self, piece: bytes) -> None:
        request = self._incoming
        if request is None or self._broken:
            return
        self._arm()
        request.size += len(piece)
        if request.reply is not None:
            if request.size > _SWALLOW:
                self._answer_early(request)
            return
        if request.accepted is None:
            return
        if request.size > request.accepted.body_limit:
            self._turn_down(request, self._app.too_large(request.accepted.body_limit))
            self._answer_early(request)
        elif not self._room.take(len(piece)):
            request.size -= len(piece)
            self._turn_down(request, self._app.crowded())
            self._answer_early(request)
        else:
            request.body.append(piece)

    def on_message_complete(self) -> None:
        request, self._incoming = self._incoming, None
        if request is None or self._broken:
            return
        self._deadline.disarm()
        self._waiting.append(request)
        self._next()

    # ---- refusals ----

    def _turn_down(self, request: Incoming, reply: Reply) -> None:
        self._give_up(request)
        request.accepted = None
        request.reply = reply

    def _give_up(self, request: Incoming | None) -> None:
        """Give back what it holds."""
        if request is None or request.accepted is None:
            return
        self._room.give_back(sum(map(len, request.body)))
        request.body = []
        accepted, request.accepted = request.accepted, None
        accepted.over()

    def _answer_early(self, request: Incoming) -> None:
        """Before its body is here: behind this answer nothing more is read."""
        self._broken = True
        self._incoming = None
        request.keep_alive = False
        self._waiting.append(request)
        self._next()

    def _refuse_bytes(self, why: str) -> None:
        if self._broken:
            return
        request = self._incoming or Incoming()
        self._give_up(request)
        request.reply = self._app.malformed(why)
        self._answer_early(request)

    # ---- answers ----

    def _next(self) -> None:
        if self._current is not None or self._transport is None or self._finished:
            return
        if self.paused:
            return  # it asks and does not take the answers
        if not self._waiting:
            self._arm()
            if self._half_closed or self._draining:
                self._transport.close()
            return
        request = self._current = self._waiting.popleft()
        if self._arrived and len(self._waiting) <= _AHEAD // 2:
            self._queue()
        self._task = self._loop.create_task(self._serve(request))

    async def _serve(self, request: Incoming) -> None:
        reply = request.reply
        try:
            if reply is None and request.accepted is not None:
                body = request.body[0] if len(request.body) == 1 else b"".join(request.body)
                reply = await request.accepted.run(body, Http1Exchange(self, request))
            elif reply is not None and reply.delay:
                await asyncio.sleep(reply.delay)
        finally:
            self._give_up(request)
        self._current, self._task = None, None
        if reply is None:
            return  # a stream, which has ended by now
        self._send(request, reply)
        self._next()

    def _send(self, request: Incoming, reply: Reply) -> None:
        transport = self._transport
        if transport is None:
            return
        # Behind bytes that are no request there is nothing; what was asked before them is answered nevertheless.
        keep = request.keep_alive and not reply.close and not (self._draining and not self._waiting)
        asked = request.head
        version = asked.version if asked is not None else "1.1"
        head = answer_head(reply.status, reply.content_type, reply.headers, len(reply.body), keep=keep, version=version)
        transport.write(head if asked is not None and asked.method == "HEAD" else head + reply.body)
        if not keep:
            self._finish()

    def _finish(self) -> None:
        """The peer may still be sending: an unread byte would turn our answer into a reset."""
        self._broken = self._finished = True
        for request in self._waiting:
            self._give_up(request)
        self._waiting.clear()
        transport = self._transport
        if transport is None:
            return
        if transport.can_write_eof() and not self._half_closed:
            transport.write_eof()
            self._loop.call_later(LINGER_S, transport.close)
        else:
            transport.close()

    # ---- streams ----

    def begin_stream(self, request: Incoming, headers: Headers) -> Http1Stream:
        chunked = request.head is not None and request.head.version == "1.1"
        lines = [*headers, (b"Connection", b"keep-alive" if chunked else b"close")]
        if chunked:
            lines.append((b"Transfer-Encoding", b"chunked"))
        stream = self._stream = Http1Stream(self, chunked)
        if self._transport is not None:
            self._transport.write(stream_head(200, lines))
        return stream

    def begin_raw(self, headers: Headers, receive: Callable[[bytes], None]) -> Http1Stream:
        stream = self._stream = Http1Stream(self, chunked=False)
        if self._transport is not None:
            self._transport.write(stream_head(101, headers))
        self._raw = receive
        early = self._early + self._arrived.rest()
        self._early = b""
        if early:
            self._loop.call_soon(receive, early)
        return stream

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    @property
    def buffered(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def limit_buffer(self, high: int) -> None:
        if self._transport is not None:
            self._transport.set_write_buffer_limits(high=high)

    def pause_reading(self, paused: bool) -> None:
        if self._transport is not None and not self._transport.is_closing():
            if paused:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def end_stream(self, tail: bytes) -> None:
        self._stream = None
        if self._transport is not None:
            if tail:
                self._transport.write(tail)
            self._finish()

    # ---- time ----

    def _arm(self) -> None:
        """A head, or the next piece of a body, must come in time."""
        if self._transport is not None and self._stream is None:
            self._deadline.arm()

    def _late(self) -> None:
        if self._current is not None or self._transport is None:
            return
        if self._incoming is None and not self._head_bytes:
            self._transport.close()  # an idle connection that was kept alive
        else:
            self._refuse_bytes(f"the request did not arrive within {HEAD_S:g} s")
