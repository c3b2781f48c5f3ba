"""Cleartext HTTP/2 with prior knowledge on one connection; frames are the h2 library's. Promise: as http1, for up to
MAX_STREAMS requests at once. A peer that resets more than it lets finish, or does not answer pings, is sent away.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings

from topicd.gateway.web.http2_outgoing import WRITE_HIGH, Outgoing
from topicd.gateway.web.http2_stream import Http2Stream, allowed
from topicd.gateway.web.messages import (
    BODILESS,
    LINGER_S,
    Application,
    BodyRoom,
    Head,
    Headers,
    Reply,
    collect,
    consumed,
)
from topicd.gateway.web.slices import Slices
from topicd.gateway.web.turns import Turns
from topicd.limits import KIB, MIB

STREAM_WINDOW = 1 * MIB
CONNECTION_WINDOW = 4 * MIB
MAX_STREAMS = 1024
PING_S = 20.0
_IDLE_TALK = 100  # resets and frames that ask for nothing, beyond what was answered, before the peer is sent away
_FORGIVEN_PER_S = 10
_BEGUN_AT_ONCE = 4  # of requests that had to wait: their answers shall be seen before more are begun
_BEGUN_AGAIN_S = 0.01
_FIRST = 256  # of what comes: so much is looked at at once, at first
_FIRST_WINDOW = 65_535
_TALK = (h2.events.PingReceived, h2.events.RemoteSettingsChanged, h2.events.PriorityUpdated)


class Http2(asyncio.Protocol):
    def __init__(self, app: Application, room: BodyRoom, turns: Turns, ended: Callable[[Any], None]) -> None:
        self._app = app
        self._turns = turns
        self._room = room
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        config = h2.config.H2Configuration(client_side=False, header_encoding=None)
        self._h2 = h2.connection.H2Connection(config=config)
        self._transport: asyncio.Transport | None = None
        self._peer = ""
        self._streams: dict[int, Http2Stream] = {}
        self._out = Outgoing(self._h2, self)
        self._flushing = False
        self._arrived = Slices(_FIRST)
        self._later: deque[Http2Stream] = deque()  # requests that are not begun before answers are taken
        self._beginning = False
        self._idle_talk = 0.0
        self._talked_at = 0.0
        self.closing = False
        self._draining = False
        self._ping: asyncio.TimerHandle | None = None
        self._pong_due = False
        self._heard = False
        self.paused = False

    # ---- transport ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        transport.set_write_buffer_limits(high=WRITE_HIGH)  # type: ignore[attr-defined]
        peer = transport.get_extra_info("peername")
        self._peer = str(peer[0]) if isinstance(peer, tuple) and peer else ""
        codes = h2.settings.SettingCodes
        self._h2.local_settings = h2.settings.Settings(
            client=False,
            initial_values={
                codes.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
                codes.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
                codes.MAX_HEADER_LIST_SIZE: 64 * KIB,
                codes.ENABLE_CONNECT_PROTOCOL: 0,
            },
        )
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(CONNECTION_WINDOW - _FIRST_WINDOW)
        self.send()
        self._ping = self._loop.call_later(PING_S, self._beat)

    def data_received(self, data: bytes) -> None:
        if self.closing:
            return
        self._heard = True
        busy = bool(self._arrived)
        self._arrived.put(data)
        if not busy:
            self._turns.begin(self._work)

    def _work(self, until: float) -> bool:
        """What came, slice by slice. Frames are cheap to send and dear to understand: when its time is over it is the
        turn of others, and nothing more is read until all is done."""
        transport, now = self._transport, time.perf_counter()
        while self._arrived and not self.closing:
            self._understand(self._arrived.take())
            before, now = now, time.perf_counter()
            self._arrived.took(now - before)
            if now >= until:
                break
        if self.closing:
            self._arrived.rest()
        elif transport is not None and not transport.is_closing():
            if self._arrived:
                transport.pause_reading()
            else:
                transport.resume_reading()
        self._pump()
        return bool(self._arrived)

    def _understand(self, data: bytes) -> None:
        try:
            events = self._h2.receive_data(data)
        except h2.exceptions.ProtocolError:
            self._leave()
            return
        except Exception:
            # hpack and hyperframe have errors of their own for garbage.
            self._close()
            return
        for event in events:
            self._take(event)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.closing = True
        if self._ping is not None:
            self._ping.cancel()
        for stream in list(self._streams.values()):
            self.drop(stream)
        self._ended(self)

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        self._pump()
        for stream in list(self._streams.values()):
            if stream.streaming and stream.writable:
                stream.on_writable()

    def shutdown(self) -> None:
        self._draining = True
        if not self._streams:
            self._goodbye(h2.errors.ErrorCodes.NO_ERROR)

    # ---- what comes ----

    def _take(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.RequestReceived):
            self._begin(event)
        elif isinstance(event, h2.events.DataReceived):
            self._data(event)
        elif isinstance(event, h2.events.StreamEnded):
            self._complete(event.stream_id)
        elif isinstance(event, h2.events.StreamReset):
            self._reset(event.stream_id)
        elif isinstance(event, h2.events.PingAckReceived):
            self._pong_due = False
        elif isinstance(event, _TALK):
            self._bother()
        elif isinstance(event, h2.events.ConnectionTerminated):
            self._close()

    def _begin(self, event: h2.events.RequestReceived) -> None:
        number = int(event.stream_id or 0)
        stream = self._streams[number] = Http2Stream(self, number)
        headers: dict[bytes, bytes] = {}
        for name, value in event.headers or ():
            collect(headers, bytes(name), bytes(value))
        if b"host" not in headers and b":authority" in headers:
            headers[b"host"] = headers[b":authority"]
        method = headers.get(b":method", b"").decode("latin-1")
        stream.without_body = method == "HEAD"
        head = Head(method, headers.get(b":path", b"/"), headers, "2", self._peer)
        verdict = self._app.begin(head)
        if isinstance(verdict, Reply):
            stream.reply = verdict
        else:
            stream.accepted = verdict
            length = headers.get(b"content-length", b"")
            if length.isdigit() and int(length) > verdict.body_limit:
                self._turn_down(stream, self._app.too_large(verdict.body_limit))
        if stream.reply is not None and event.stream_ended is None:
            self._complete(number)  # its body is not worth reading

    def _data(self, event: h2.events.DataReceived) -> None:
        number, piece = int(event.stream_id or 0), bytes(event.data or b"")
        if not piece and event.stream_ended is None:
            self._bother()
        if event.flow_controlled_length:
            self._h2.acknowledge_received_data(event.flow_controlled_length, number)
        stream = self._streams.get(number)
        if stream is None or stream.accepted is None or stream.task is not None:
            return
        stream.size += len(piece)
        if stream.size > stream.accepted.body_limit:
            self._turn_down(stream, self._app.too_large(stream.accepted.body_limit))
            self._complete(number)
        elif not self._room.take(len(piece)):
            self._turn_down(stream, self._app.crowded())
            self._complete(number)
        else:
            stream.body.append(piece)

    def _complete(self, number: int) -> None:
        stream = self._streams.get(number)
        if stream is None or stream.task is not None:
            return
        if not self._later and self._out.may_begin(stream):
            self._start(stream)
        else:
            self._later.append(stream)

    def _start(self, stream: Http2Stream) -> None:
        stream.task = self._loop.create_task(self._serve(stream))
        stream.task.add_done_callback(consumed)

    def _reset(self, number: int | None) -> None:
        stream = self._streams.get(int(number or 0))
        if stream is None or not stream.streaming:  # to leave a stream of events is how one ends it
            self._bother()
        if stream is not None:
            self.drop(stream)

    def _bother(self) -> None:
        """Something came that costs us more than the peer."""
        now = self._loop.time()
        self._idle_talk = max(0.0, self._idle_talk - (now - self._talked_at) * _FORGIVEN_PER_S) + 1
        self._talked_at = now
        if self._idle_talk > _IDLE_TALK:
            self._goodbye(h2.errors.ErrorCodes.ENHANCE_YOUR_CALM)

    # ---- refusals ----

    def _turn_down(self, stream: Http2Stream, reply: Reply) -> None:
        self._give_up(stream)
        stream.reply = reply

    def _give_up(self, stream: Http2Stream) -> None:
        if stream.accepted is not None:
            self._room.give_back(sum(map(len, stream.body)))
            stream.body = []
            accepted, stream.accepted = stream.accepted, None
            accepted.over()

    def drop(self, stream: Http2Stream) -> None:
        self._streams.pop(stream.number, None)
        self._give_up(stream)
        self._out.let_go(stream)
        if not stream.gone.done():
            stream.gone.set_result(None)
        if stream.task is not None:
            stream.task.cancel()

    # ---- answers ----

    async def _serve(self, stream: Http2Stream) -> None:
        reply = stream.reply
        try:
            if reply is None and stream.accepted is not None:
                reply = await stream.accepted.run(b"".join(stream.body), stream)
            elif reply is not None and reply.delay:
                await asyncio.sleep(reply.delay)
        finally:
            self._give_up(stream)
            self.keep(stream)
        if reply is None or stream.number not in self._streams:
            return
        length = b"%d" % len(reply.body)
        headers = [(b":status", b"%d" % reply.status)]
        if reply.status not in BODILESS:
            headers += [(b"content-type", reply.content_type), (b"content-length", length)]
        headers += allowed(reply.headers)
        ends = stream.without_body or not reply.body
        self.send_headers(stream, headers, end=ends)
        if not ends:
            self.hold(stream, reply.body)
            stream.ended = True
        self.flush_soon(stream)
        self._idle_talk = max(0.0, self._idle_talk - 1)

    def send_headers(self, stream: Http2Stream, headers: Headers, *, end: bool) -> None:
        if stream.number not in self._streams:
            return
        try:
            self._h2.send_headers(stream.number, headers, end_stream=end)
        except h2.exceptions.ProtocolError:
            self.drop(stream)
            return
        if end:
            self.forget(stream)
        self.send()

    def reset(self, stream: Http2Stream) -> None:
        if stream.number in self._streams:
            self._h2.reset_stream(stream.number, h2.errors.ErrorCodes.CANCEL)
            self.send()
            self.forget(stream)

    def forget(self, stream: Http2Stream) -> None:
        self._streams.pop(stream.number, None)
        self._out.let_go(stream)
        if not stream.gone.done():
            stream.gone.set_result(None)
        if self._draining and not self._streams:
            self._goodbye(h2.errors.ErrorCodes.NO_ERROR)

    # ---- what waits ----

    @property
    def full(self) -> bool:
        return self._out.full

    def hold(self, stream: Http2Stream, data: bytes) -> None:
        self._out.hold(stream, data)

    async def promise(self, stream: Http2Stream, size: int) -> None:
        await self._out.promise(stream, size)

    def keep(self, stream: Http2Stream) -> None:
        self._out.keep(stream)

    def flush_soon(self, stream: Http2Stream) -> None:
        if stream.number in self._streams:
            self._out.pending[stream.number] = stream
            if not self._flushing:
                self._flushing = True
                self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        self._pump()

    def _pump(self) -> None:
        if self._out.pump():
            self._room_again()
        if self._later:
            self._begin_later()

    def _begin_later(self) -> None:
        begun = 0
        while self._later and not self.closing and begun < _BEGUN_AT_ONCE:
            stream = self._later[0]
            if stream.number in self._streams:
                if not self._out.may_begin(stream):
                    return
                self._start(stream)
                begun += 1
            self._later.popleft()
        if self._later and not self.closing and not self._beginning:
            self._beginning = True
            self._loop.call_later(_BEGUN_AGAIN_S, self._begin_again)

    def _begin_again(self) -> None:
        self._beginning = False
        self._begin_later()

    def _room_again(self) -> None:
        for stream in list(self._streams.values()):
            if stream.streaming and stream.writable:
                stream.on_writable()

    def send(self) -> None:
        data = self._h2.data_to_send()
        if data and self._transport is not None:
            self._transport.write(data)

    # ---- life ----

    def _beat(self) -> None:
        self._ping = None
        if self._transport is None:
            return
        if self._pong_due and not self._heard:
            self._close()
            return
        if self._out.stuck:
            self._goodbye(h2.errors.ErrorCodes.FLOW_CONTROL_ERROR)  # it asks and does not take the answers
            return
        self._heard = False
        self._pong_due = True
        self._h2.ping(b"topicd\0\0")
        self.send()
        self._ping = self._loop.call_later(PING_S, self._beat)

    def _goodbye(self, code: h2.errors.ErrorCodes) -> None:
        if not self.closing and self._transport is not None:
            self._h2.close_connection(error_code=code)
            self._leave()

    def _leave(self) -> None:
        """Behind what was said. The peer may still be sending: an unread byte would turn our last frame into a
        reset."""
        self.closing = True
        transport = self._transport
        if transport is None:
            return
        self.send()
        for stream in list(self._streams.values()):
            self.drop(stream)
        if transport.can_write_eof():
            transport.write_eof()
            self._loop.call_later(LINGER_S, transport.close)
        else:
            transport.close()

    def _close(self) -> None:
        self.closing = True
        if self._transport is not None:
            self._transport.close()
