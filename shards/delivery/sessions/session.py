"""One connection: cuts its bytes into messages, answers them, keeps its outbox bounded. Promise: whatever bytes
arrive, this connection gets answers or is closed, and nobody else notices. Layout: docs/protocol.md.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import time
from typing import TYPE_CHECKING, Any

import msgpack

from topicd._native import core
from topicd.errors import Forbidden, Internal, InvalidRequest, NotReady, Throttled, TopicdError
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import (
    ANSWER,
    APPEND,
    APPENDED,
    BULK_OPS,
    CREDIT,
    FETCHED,
    FLAG_CAUGHT_UP,
    FLAG_COPY,
    FLAG_DEDUPED,
    FLAG_PERFORMANCE,
    FLAG_TOMBSTONE,
    HEADER,
    LENGTH_FIELD,
    MIN_LENGTH,
    OP_APPEND,
    OP_APPENDED,
    OP_CREDIT,
    OP_FETCHED,
    OP_PUSH,
    PERFORMANCE,
    error_message,
    header,
    map_message,
)
from topicd.limits import KIB, MAX_CONTROL_MESSAGE, MAX_MESSAGE, MIB
from topicd.shards.delivery.reading.reading import Answer
from topicd.shards.delivery.reading.subscriptions import LongPoll, Subscription
from topicd.shards.delivery.sessions.call import Call
from topicd.shards.delivery.sessions.dispatch import dispatch
from topicd.shards.delivery.writing.copy_ranges import ranges_of
from topicd.shards.delivery.writing.in_flight import AppendEntry, Waiter
from topicd.shards.delivery.writing.outlet import Need, Outlet
from topicd.tokens import EVERYTHING

if TYPE_CHECKING:
    from topicd.shards.delivery.actor import Actor
    from topicd.shards.delivery.topic.topic import Topic

log = logging.getLogger(__name__)

_BUFFER = 64 * KIB
_FLUSH_NOW = 64 * KIB
_AT_ONCE = 2 * MIB  # a message up to this gets its room as soon as it says how long it is
# One connection keeps the loop so long at most, or for one message; the rest of its messages wait for the next turn.
_TURN_S = 0.002
_FORBIDDEN_LOGGED = 10
# An append answer in one go: header and body.
_APPENDED_MESSAGE = struct.Struct(HEADER.format + APPENDED.format[1:])
_APPENDED_LENGTH = MIN_LENGTH + APPENDED.size
_NO_PERFORMANCE = PERFORMANCE.pack(0, 0, 0, 0, 0)


class Session:
    """An asyncio.BufferedProtocol by its methods; inheriting would keep it from being compiled to a plain struct."""

    def __init__(self, actor: Actor) -> None:
        self.actor = actor
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray(_BUFFER)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._grown_used = False
        self._out: list[Any] = []
        self._out_bytes = 0
        self._paused = False
        self._held = False
        self.greeted = False
        self.needs_token = False
        self.rights = EVERYTHING
        self.forbidden = 0
        self.waiting_since = 0.0  # a message has been incomplete since then; 0.0: none is
        self.in_flight = 0
        self.subscriptions: dict[int, Subscription] = {}
        self.long_polls: set[LongPoll] = set()
        self.peer = ""
        self.outlet: Outlet | None = None  # where its last message went, if that was a plain append

    # ---- transport ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._transport.set_write_buffer_limits(high=self.actor.settings.outbox_bytes)  # type: ignore[union-attr]
        self.waiting_since = self.actor.clock.monotonic()
        refusal = self.actor.admit(self, transport.get_extra_info("socket"))
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
        self.subscriptions.clear()
        self.actor.sessions.discard(self)
        self.actor.checkpointer.waiting.discard(self)

    def eof_received(self) -> None:
        """The peer sends no more; the transport closes."""

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
            for subscription in self.subscriptions.values():
                subscription.resume()

    @property
    def write_blocked(self) -> bool:
        return self._paused or self._transport is None or self._out_bytes > self.actor.settings.outbox_bytes

    def close(self) -> None:
        if self._transport is not None:
            self.flush()
            self._transport.close()

    # ---- input ----

    def get_buffer(self, sizehint: int) -> memoryview:
        if self.outlet is not None:
            self.outlet.rouse()  # who appends one record after the other will go on with it
        if self._end == len(self._buffer):
            self._make_room()
        return self._view[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        self._work()

    def _work(self) -> None:
        try:
            self._cut()
        except TopicdError as exc:
            self.refused(0, exc)
            self.close()
        except Exception:
            log.exception("request failed")
            self.refused(0, Internal("the request failed inside the daemon; its log says why"))
            self.close()
        self.actor.end_turn()
        if self.in_flight == 1:
            self.actor.await_write()

    def _hold(self) -> None:
        """Take nothing more now: others have their turn first, and answers their way out."""
        if not self._held and self._transport is not None:
            self._held = True
            self._transport.pause_reading()
            self.actor.loop.call_soon(self.go_on)

    def go_on(self) -> None:
        """What it was held for is over."""
        self._held = False
        if self._paused or self._transport is None or self._transport.is_closing():
            return
        self._work()
        if not (self._held or self._paused or self._transport is None or self._transport.is_closing()):
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
        """Once a second: a buffer that grew for large messages goes when none has come since."""
        if self._end == 0 and len(self._buffer) > _BUFFER and not self._grown_used:
            self._use(bytearray(_BUFFER))
        self._grown_used = False

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
                self.outlet = None
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
            if reads and start < end and (time.monotonic() >= until or self.write_blocked):
                self._start = start
                self.waiting_since = 0.0
                self._hold()
                return
        if start == end and self.greeted:
            self.waiting_since = 0.0
        elif not self.waiting_since or (start > before and self.greeted):
            self.waiting_since = self.actor.clock.monotonic()
        self._start = start
        if following > len(self._buffer):
            self._make_room(following - start)
        elif start == end:
            self._grown_used = self._grown_used or end > _BUFFER
            self._start = self._end = 0

    def _handle(self, op: int, flags: int, request_id: int, body: memoryview) -> None:
        try:
            if op == OP_APPEND and self.greeted:
                self._append(flags, request_id, body)
            elif op == OP_CREDIT and self.greeted:
                self._credit(body)
            else:
                dispatch(Call(self, op, flags, request_id), body)
        except Forbidden as exc:
            self._log_forbidden(exc)
            self.refused(request_id, exc)
        except TopicdError as exc:
            self.refused(request_id, exc)

    def _log_forbidden(self, error: Forbidden) -> None:
        """A few per connection: whoever has a token must not be able to fill the log with it."""
        self.forbidden += 1
        if self.forbidden <= _FORBIDDEN_LOGGED:
            log.warning("request refused", extra={"reason": error.message})

    def _take_run(self, flags: int, start: int, end: int) -> int:
        """Appends without any peculiarity, all that follow each other at once; the bytes used up."""
        if flags or not self.greeted or self.rights is not EVERYTHING:
            return 0
        used = self.actor.appender.take_run(self, self._view, start, end)
        if used and self.actor.checkpointer.behind:
            self._wait_for_checkpoint()
        return used

    def _append(self, flags: int, request_id: int, body: memoryview) -> None:
        limit = self.actor.settings.max_inflight_per_connection
        if self.in_flight >= limit:
            raise Throttled(
                f"{self.in_flight} writes of this connection are under way, {limit} are allowed",
                limit="max_inflight_per_connection",
                retry_after_ms=20,
            )
        if self.actor.draining:
            raise NotReady("the daemon is stopping", retry_after_ms=500)
        if self.rights is not EVERYTHING:
            self._check_write(flags, body)
        self.in_flight += 1
        try:
            self.actor.appender.append(self, request_id, flags, body)
        except TopicdError:
            self.in_flight -= 1
            raise
        if self.actor.checkpointer.holds_writers:
            self._wait_for_checkpoint()

    def _wait_for_checkpoint(self) -> None:
        """The disk does not keep up with this writer: read nothing more from it until memory is free again."""
        if not self._held and self._transport is not None:
            self._held = True
            self._transport.pause_reading()
            self.actor.checkpointer.waiting.add(self)

    def _check_write(self, flags: int, body: memoryview) -> None:
        by_id = self.actor.topics.by_id
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
    def incomplete_bytes(self) -> int:
        return self._end - self._start

    # ---- output ----

    def write(self, data: Any) -> None:
        self._out.append(data)
        self._out_bytes += len(data)

    def flush(self) -> None:
        out = self._out
        if not out:
            return
        if self._transport is None or self._transport.is_closing():
            out.clear()
        elif len(out) == 1:
            self._transport.write(out[0])
        elif self._out_bytes < _FLUSH_NOW:
            self._transport.write(b"".join(out))
        else:
            self._transport.writelines(out)
        self._out = []
        self._out_bytes = 0

    def answer(self, op: int, request_id: int, body: dict[str, Any]) -> None:
        self.write(map_message(op | ANSWER, request_id, body))
        self.actor.flush_later(self)

    def notice(self, request_id: int, body: dict[str, Any]) -> None:
        self.write(map_message(Op.NOTICE, request_id, body))
        self.actor.flush_later(self)

    def appended(self, waiter: Waiter, head: int, entry: AppendEntry) -> None:
        self.in_flight -= 1
        _, request_id, flags, first_seq, records = waiter
        if flags:
            self._write_appended(waiter, head, self._performance(entry) if flags & FLAG_PERFORMANCE else b"")
        else:
            self._out.append(
                _APPENDED_MESSAGE.pack(_APPENDED_LENGTH, OP_APPENDED, 0, request_id, first_seq, records, head)
            )
            self._out_bytes += _APPENDED_MESSAGE.size
        self.actor.to_flush.add(self)

    def run_appended(self, request_ids: bytes, first_seq: int, head: int) -> None:
        self.in_flight -= len(request_ids) // 4
        self.write(core.run_answers(request_ids, first_seq, head))
        self.actor.to_flush.add(self)

    def deduped(self, waiter: Waiter, head: int) -> None:
        self.in_flight -= 1
        self._write_appended(waiter, head, _NO_PERFORMANCE if waiter.flags & FLAG_PERFORMANCE else b"")
        self.actor.to_flush.add(self)

    def _write_appended(self, waiter: Waiter, head: int, extra: bytes) -> None:
        flags = waiter.flags & FLAG_DEDUPED
        fixed = (waiter.request_id, waiter.first_seq, waiter.records, head)
        self.write(_APPENDED_MESSAGE.pack(_APPENDED_LENGTH + len(extra), OP_APPENDED, flags, *fixed) + extra)

    def _performance(self, entry: AppendEntry) -> bytes:
        total = (self.actor.clock.monotonic() - entry.started_at) * 1000
        synced = entry.need >= Need.SYNCED
        return PERFORMANCE.pack(total, 0.0 if synced else total, total if synced else 0.0, 0, 0.0)

    def refused(self, request_id: int, error: TopicdError) -> None:
        if isinstance(error, Throttled):
            self.actor.throttled_total += 1
        self.write(error_message(request_id, error))
        self.actor.flush_later(self)

    def append_refused(self, request_id: int, error: TopicdError) -> None:
        self.in_flight -= 1
        self.refused(request_id, error)

    def fetched(self, request_id: int, flags: int, topic: Topic, answer: Answer) -> None:
        performance = None
        if flags & FLAG_PERFORMANCE:
            performance = {
                "server_total_ms": 0.0,
                "wal_append_ms": 0.0,
                "fsync_ms": 0.0,
                "records_scanned": answer.examined,
                "throttle_wait_ms": 0.0,
            }
        self._write_frames(OP_FETCHED, request_id, topic, answer, performance)
        self.actor.flush_later(self)

    def push(self, sub_id: int, topic: Topic, answer: Answer) -> None:
        self._write_frames(OP_PUSH, sub_id, topic, answer, None)
        if self._out_bytes >= _FLUSH_NOW:
            self.flush()

    def _write_frames(
        self, op: int, request_id: int, topic: Topic, answer: Answer, performance: dict[str, Any] | None
    ) -> None:
        flags = 0 if answer.next_from < topic.visible else FLAG_CAUGHT_UP
        extra = b""
        if answer.tombstone is not None or performance is not None:
            body: dict[str, Any] = {}
            if answer.tombstone is not None:
                flags |= FLAG_TOMBSTONE
                self.actor.tombstones_total += 1
                body["tombstone"] = answer.tombstone.to_wire()
            if performance is not None:
                flags |= FLAG_PERFORMANCE
                body["performance"] = performance
            extra = msgpack.packb(body)
        fixed = FETCHED.pack(topic.id, answer.next_from, topic.visible, topic.earliest, answer.count, len(extra))
        self.write(header(op, flags, request_id, len(fixed) + len(extra) + answer.bytes) + fixed + extra)
        for part in answer.parts:
            self.write(part)
