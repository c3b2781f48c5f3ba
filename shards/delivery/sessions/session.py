"""The bytes that come in on one connection, cut into messages. Promise: whatever bytes arrive, this connection gets
answers or is closed, and nobody else notices. Layout: docs/protocol.md.
"""

from __future__ import annotations

import asyncio
import logging
import time

from topicd.errors import Forbidden, Internal, InvalidRequest, Throttled, TopicdError
from topicd.ipc.protocol.wire import (
    APPEND,
    BULK_OPS,
    CREDIT,
    FLAG_COPY,
    HEADER,
    LENGTH_FIELD,
    MIN_LENGTH,
    OP_APPEND,
    OP_CREDIT,
)
from topicd.ipc.shardboot import DELIVERY
from topicd.limits import KIB, MAX_CONTROL_MESSAGE, MAX_MESSAGE, MIB
from topicd.shards.delivery.parts import Parts
from topicd.shards.delivery.sessions.call import Call
from topicd.shards.delivery.sessions.connection import Connection
from topicd.shards.delivery.sessions.dispatch import dispatch
from topicd.shards.delivery.sessions.fairness import PIECE, QUANTUM, RECENT_S, SHARE, Pace
from topicd.shards.delivery.sessions.strangers import Guest
from topicd.shards.delivery.writing.copy_ranges import ranges_of
from topicd.tokens import EVERYTHING

log = logging.getLogger(__name__)

_BUFFER = 64 * KIB
_IDLE_BUFFER = 2 * KIB  # of a connection that has said little, or nothing of late; a HELLO may be twice as long
_HELLO_MAX = 8 * KIB
_AT_ONCE = 2 * MIB  # a message up to this gets its room as soon as it says how long it is
# One connection keeps the loop so long at most, or for one message; the rest of its messages wait for the next turn.
_TURN_S = 0.002
_FORBIDDEN_LOGGED = 10


class Session(Connection):
    """An asyncio.BufferedProtocol by its methods; inheriting would keep it from being compiled to a plain struct."""

    def __init__(self, parts: Parts, guest: Guest | None = None) -> None:
        super().__init__(parts.place, parts.agenda, parts.counters)
        self._parts = parts
        self.guest = guest
        self._buffer = bytearray(_IDLE_BUFFER)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._grown_used = False
        self._heard = False
        self._held = False
        self._forbidden = 0
        self._held_at = 0.0  # because of pressure, since then
        self._left = QUANTUM  # bytes of its turn
        self._fairness = parts.fairness
        self._pace = Pace()  # of what it writes
        self._began = 0.0  # with what came last, if it writes much
        self._taken = 0  # of what it writes, since it was held last
        self._asking = Pace()  # of all that goes in and out, when it asks for something else
        self._moved = 0  # of that, when it did so last
        self._asked_at = 0.0  # for little

    # ---- transport ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._transport.set_write_buffer_limits(high=self._place.settings.outbox_bytes)  # type: ignore[union-attr]
        self.waiting_since = self._place.clock.monotonic()
        sock = transport.get_extra_info("socket")
        if transport.get_extra_info("sslcontext") is None:
            self._socket = sock.fileno()
        refusal = self._parts.connections.admit(self, sock)
        if refusal is not None:
            self.refused(0, refusal)
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._out.clear()
        for poll in list(self.long_polls):
            poll.cancel()
        for subscription in self.subscriptions.values():
            subscription.close()
            self._parts.patterns.discard(subscription)
        self.subscriptions.clear()
        for taker in list(self.takers.values()):
            taker.cancel()
        self.takers.clear()
        self._parts.connections.forget(self)
        self._parts.pressure.forget(self)
        self._fairness.forget(self)

    def eof_received(self) -> bool:
        """The peer sends no more. It may wait for answers yet; TLS has no such half of a connection."""
        transport = self._transport
        if transport is None or transport.get_extra_info("sslcontext") is not None:
            return False
        self._leaving = True
        self.waiting_since = self._place.clock.monotonic()
        return not self.answered_all

    def pause_writing(self) -> None:
        # The peer does not read: take no more requests from it, push nothing more to it.
        self._paused = True
        self.waiting_since = 0.0
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._paused = False
        if self._transport is not None:
            self._hold()
            subscriptions = self.subscriptions
            for sub_id in list(subscriptions)[:1]:
                subscriptions[sub_id] = subscriptions.pop(sub_id)  # who was first is last now
            for subscription in subscriptions.values():
                subscription.resume()
            for taker in list(self.takers.values()):
                taker.resume()

    # ---- input ----

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._end == len(self._buffer):
            self._make_room()
        return self._view[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        self.bytes_in += nbytes
        self._heard = True
        if self._fairness.heard(self):
            self._left = min(QUANTUM, self._left + QUANTUM)
        self._left -= nbytes
        self._work()
        if self._left <= 0:
            self._give_way()

    def _work(self) -> None:
        self._began = self._fairness.now() if self._pace.much or self._asking.much else 0.0
        try:
            self._cut()
        except TopicdError as exc:
            self.refused(0, exc)
            self.close()
        except Exception:
            log.exception("request failed")
            self.refused(0, Internal("the request failed inside the daemon; its log says why"))
            self.close()
        self._parts.turn.heard(lone=self.in_flight == 1)
        if self.in_flight == 1:
            self._parts.turn.await_write()

    def _give_way(self) -> None:
        """Its turn is over, if anybody else wants one."""
        if self._fairness.contended:
            self._hold()
        else:
            self._left = QUANTUM

    def cut_off(self, error: TopicdError, after_s: float) -> bool:
        transport = self._transport
        if transport is None or transport.is_closing():
            return False
        self.refused(0, error)
        self.close()
        self._parts.loop.call_later(after_s, transport.abort)
        return True

    def turn_away(self, request_id: int, error: TopicdError, after_s: float) -> None:
        if self._transport is None:
            return
        self._held = True
        self._transport.pause_reading()

        def close() -> None:
            self.refused(request_id, error)
            self.close()

        self._parts.loop.call_later(after_s, close)

    def _hold(self) -> None:
        """Take nothing more now: others have their turn first, and answers their way out."""
        if not self._held and self._transport is not None:
            self._held = True
            self._transport.pause_reading()
            self._parts.loop.call_soon(self.go_on)

    def go_on(self) -> None:
        """What it was held for is over."""
        self._held = False
        if self._held_at:
            self.held_ms += (self._fairness.now() - self._held_at) * 1_000
            self._held_at = 0.0
        if self._left <= 0 and self._transport is not None:
            self._left += QUANTUM
            if self._left <= 0 and self._fairness.contended:
                self._hold()  # it had the turns of others, too
                return
        if self._paused or self._transport is None or self._transport.is_closing():
            return
        if self._pace.much and self._parts.pressure.holds_writers:
            self._wait_for_checkpoint()  # it had its pause, and memory is full
            return
        self._work()
        if self._leaving:
            self.flush()
        elif not (self._held or self._paused or self._transport is None or self._transport.is_closing()):
            self._transport.resume_reading()

    def _make_room(self, message: int = 0) -> None:
        """Bring the incomplete message to the front of a buffer that holds it, or at least twice what is there of it:
        a length that is only claimed costs nothing."""
        held = self._end - self._start
        wanted = min(max(_BUFFER, message), max(_AT_ONCE, 2 * held))
        if wanted <= len(self._buffer) and (self._start or held < len(self._buffer)):
            self._view[:held] = self._view[self._start : self._end]
        else:
            grown = bytearray(max(wanted, min(2 * held, MAX_MESSAGE + LENGTH_FIELD)))
            grown[:held] = self._view[self._start : self._end]
            self._use(grown)
        self._start, self._end = 0, held

    def _use(self, buffer: bytearray) -> None:
        self._view.release()
        self._buffer = buffer
        self._view = memoryview(buffer)

    def relax(self) -> None:
        """Once a second: a buffer that grew for large messages goes when none has come since, and nearly all of it when
        nothing has."""
        if self._end == 0:
            room = _BUFFER if self._heard else _IDLE_BUFFER
            if len(self._buffer) > room and not self._grown_used:
                self._use(bytearray(room))
        self._grown_used = self._heard = False

    def _cut(self) -> None:
        view = self._view
        before = start = following = self._start
        end = self._end
        until = 0.0
        while end - start >= HEADER.size:
            length, op, flags, request_id = HEADER.unpack_from(view, start)
            allowed = MAX_MESSAGE if op in BULK_OPS else MAX_CONTROL_MESSAGE
            if not MIN_LENGTH <= length <= allowed:
                raise InvalidRequest(f"message length {length} for op 0x{op:02x} is outside {MIN_LENGTH} to {allowed}")
            following = start + LENGTH_FIELD + length
            if following > end:
                break
            if op == OP_APPEND and (used := self._take_run(flags, start, end)):
                start += used
            else:
                until = until or time.monotonic() + _TURN_S
                body = view[start + HEADER.size : following]
                self._handle(op, flags, request_id, body)
                body.release()
                start = following
            if self._transport is None:
                return
            if self._held:
                self._start = start
                self.waiting_since = 0.0
                return
            # Appends are cheap and bounded by what may be under way; anything else may read megabytes.
            reads = op != OP_APPEND or flags & FLAG_COPY
            if reads and self._asking.much and self._pauses():
                self._start = start
                self.waiting_since = 0.0
                return
            if reads and start < end and (time.monotonic() >= until or self.write_blocked):
                self._start = start
                self.waiting_since = 0.0
                self._hold()
                return
        if start == end and self.greeted:
            self.waiting_since = 0.0
        elif not self.waiting_since or (start > before and self.greeted):
            self.waiting_since = self._place.clock.monotonic()
        self._start = start
        if following > len(self._buffer):
            if following - start > _HELLO_MAX and not self.greeted:
                raise InvalidRequest("the first message must be HELLO")
            self._make_room(following - start)
        elif start == end:
            self._grown_used = self._grown_used or end > _BUFFER
            self._start = self._end = 0
            if end == len(self._buffer) and end < _BUFFER:
                self._use(bytearray(_BUFFER))

    def _handle(self, op: int, flags: int, request_id: int, body: memoryview) -> None:
        self._asked += 1
        try:
            if op == OP_APPEND and self.greeted:
                self._append(flags, request_id, body)
                self._asked -= 1  # it is counted as one in flight
            elif op == OP_CREDIT and self.greeted:
                self._credit(body)
                self._asked -= 1  # it has no answer
            else:
                if self.greeted:
                    self._note_asking()
                dispatch(Call(self._parts, self, op, flags, request_id), body)
        except Forbidden as exc:
            self._log_forbidden(exc)
            self.refused(request_id, exc)
        except TopicdError as exc:
            self.refused(request_id, exc)

    def _log_forbidden(self, error: Forbidden) -> None:
        """A few per connection: whoever has a token must not be able to fill the log with it."""
        self._forbidden += 1
        if self._forbidden <= _FORBIDDEN_LOGGED:
            log.warning("request refused", extra={"reason": error.message})

    def _take_run(self, flags: int, start: int, end: int) -> int:
        """Appends without any peculiarity, all that follow each other at once; the bytes used up."""
        if flags or not self.greeted or self.rights is not EVERYTHING:
            return 0
        parts = self._parts
        room = self._place.settings.max_inflight_per_connection - self.in_flight
        used, count = parts.appender.take_run(self, room, self._view, start, end)
        if used:
            self.in_flight += count
            self.in_flight_bytes += used
            self._took(used)
            if parts.pressure.behind:
                self._wait_for_checkpoint()
        return used

    def _append(self, flags: int, request_id: int, body: memoryview) -> None:
        limit = self._place.settings.max_inflight_per_connection
        if self.in_flight >= limit:
            raise Throttled(
                f"{self.in_flight} writes of this connection are under way, {limit} are allowed",
                limit="max_inflight_per_connection",
                retry_after_ms=20,
            )
        if self.rights is not EVERYTHING:
            self._check_write(flags, body)
        size = len(body)
        # Before it is taken: it may be answered at once.
        self.in_flight += 1
        self.in_flight_bytes += size
        try:
            self._parts.appender.append(self, request_id, flags, body, keeps=self.keeps)
        except TopicdError:
            self.in_flight -= 1
            self.in_flight_bytes -= size
            raise
        self._took(size)
        if self._parts.pressure.holds_writers:
            self._wait_for_checkpoint()

    def _note_asking(self) -> None:
        """Whoever asks for little shall not wait for those who write much."""
        before, self._moved = self._moved, self.bytes_in + self.bytes_out
        fairness = self._fairness
        now = fairness.now()
        if self._asking.is_modest(self._moved - before, now):
            self._asks_little(now)

    def _asks_little(self, now: float) -> None:
        again = now - self._asked_at < RECENT_S and not (self.trusted and self.client.startswith(DELIVERY))
        self._asked_at = now
        self._fairness.asked_little(self, now, again=again)

    def _took(self, size: int) -> None:
        """So much of it is under way; beyond its share it waits, if somebody who asks for little is there."""
        fairness = self._fairness
        now = fairness.now()
        if self._pace.is_modest(size, now):
            self._asks_little(now)
        elif not self._held and fairness.has_others(self, now):
            self._taken += size
            whole = self._taken > PIECE and not self.trusted and fairness.leaves(self, now)
            if not whole and self.in_flight_bytes <= SHARE:
                return
            if self._parts.board.refusing:
                return  # it shall be told
            transport = self._transport
            if transport is not None:
                self._held = self.over_share = True
                self._held_at = now
                self._began = self._began or now
                fairness.holding.add(self)
                transport.pause_reading()
                if not self.in_flight:
                    self.share_freed()  # its class is answered at once

    def share_freed(self) -> None:
        if self.over_share:
            self.over_share = False
            self._fairness.holding.discard(self)
            self._taken = 0
            pause = self._pause()
            if pause > 0.0:
                self._parts.loop.call_later(pause, self.go_on)
            else:
                self._parts.loop.call_soon(self.go_on)

    def _pause(self) -> float:
        """For so long it lets others go first. Not one with requests of many clients, as the gateway's: some of these
        ask for little."""
        if self.trusted or not self._began or self._parts.board.refusing:
            return 0.0
        return self._fairness.pause(self, self._began)

    def _pauses(self) -> bool:
        """It had its answer, and reads much."""
        pause, transport = self._pause(), self._transport
        if not pause or transport is None:
            return False
        self._held = True
        self._held_at = self._fairness.now()
        transport.pause_reading()
        self._parts.loop.call_later(pause, self.go_on)
        return True

    def _wait_for_checkpoint(self) -> None:
        """The disk does not keep up with this writer: read nothing more from it until memory is free again."""
        if not self._held and self._transport is not None:
            self._held = True
            self._held_at = self._fairness.now()
            self._transport.pause_reading()
            self._parts.pressure.hold(self)

    def _check_write(self, flags: int, body: memoryview) -> None:
        by_id = self._parts.catalog.by_id
        topic = by_id.get(int.from_bytes(body[:8], "little"))
        self.rights.require("write", topic.name if topic is not None else None)
        if flags & FLAG_COPY:
            for topic_id, _, _ in ranges_of(body[APPEND.size :]):
                source = by_id.get(topic_id)
                self.rights.require("read", source.name if source is not None else None)

    def _credit(self, body: memoryview) -> None:
        if len(body) != CREDIT.size:
            raise InvalidRequest(f"CREDIT has {CREDIT.size} bytes of body, not {len(body)}")
        sub_id, credit = CREDIT.unpack(body)
        subscription = self.subscriptions.get(sub_id)
        if subscription is not None:
            subscription.grant(credit)

    @property
    def answered_all(self) -> bool:
        return self.in_flight == 0 and self._asked <= self._answered and not self._held

    @property
    def incomplete_bytes(self) -> int:
        return self._end - self._start
