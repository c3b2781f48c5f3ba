"""The way out of one connection: answers, refusals, pushes and notices, gathered until they are flushed. Promise: one
that does not read is noticed (`write_blocked`), and whoever would write more to it waits.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import msgpack

from topicd._native import core
from topicd._native.interface import Buffer
from topicd.errors import Throttled, TopicdError
from topicd.ipc.protocol.wire import (
    ANSWER,
    APPENDED,
    CLAIMED,
    ENDED,
    FETCHED,
    FLAG_CAUGHT_UP,
    FLAG_CONFLICT,
    FLAG_DEDUPED,
    FLAG_DONE,
    FLAG_PERFORMANCE,
    FLAG_TOMBSTONE,
    HEADER,
    JOB,
    LENGTH_FIELD,
    MIN_LENGTH,
    OP_APPENDED,
    OP_CLAIMED,
    OP_FETCHED,
    OP_NOTICE,
    OP_PUSH,
    PERFORMANCE,
    error_message,
    header,
    map_message,
)
from topicd.limits import KIB
from topicd.shards.delivery.agenda import Agenda
from topicd.shards.delivery.counters import Counters
from topicd.shards.delivery.place import Place
from topicd.shards.delivery.reading.reading import ReadAnswer
from topicd.shards.delivery.sessions.fairness import SHARE
from topicd.shards.delivery.sessions.peer import Peer
from topicd.shards.delivery.topic.flight import InFlight, Waiter
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.delivery.writing.durability import Need

_FLUSH_NOW = 64 * KIB
# An append answer in one go: header and body.
_APPENDED_MESSAGE = struct.Struct(HEADER.format + APPENDED.format[1:])
_APPENDED_LENGTH = MIN_LENGTH + APPENDED.size
# The answer to a claim that finished one job and gets one, up to the record.
_NEXT_JOB = struct.Struct(HEADER.format + CLAIMED.format[1:] + ENDED.format[1:] + JOB.format[1:])
_NEXT_JOB_LENGTH = _NEXT_JOB.size - LENGTH_FIELD
_ANSWER_FLAGS = FLAG_DEDUPED | FLAG_CONFLICT
_NO_PERFORMANCE = PERFORMANCE.pack(0, 0, 0, 0, 0)


def frames_head(
    op: int, request_id: int, topic: Topic, answer: ReadAnswer, flags: int = 0, extra: bytes = b""
) -> bytes:
    """What goes before the frames of an answer or a push."""
    visible, earliest = topic.seqs.visible, topic.floors.earliest
    if answer.next_from >= (visible if answer.settled is None else answer.settled):
        flags |= FLAG_CAUGHT_UP
    fixed = FETCHED.pack(topic.id, answer.next_from, visible, earliest, answer.count, len(extra))
    return header(op, flags, request_id, len(fixed) + len(extra) + answer.bytes) + fixed + extra


class Outbox(Peer):
    def __init__(self, place: Place, agenda: Agenda, counters: Counters) -> None:
        self._place = place
        self._agenda = agenda
        self._counters = counters
        self._transport: asyncio.Transport | None = None
        self._socket = -1  # its descriptor, where what is written goes out as it is
        self._out: list[Any] = []
        self._out_bytes = 0
        self.bytes_out = 0
        self._paused = False
        self.in_flight = 0  # appends that are not answered yet
        self.in_flight_bytes = 0  # about: those that are answered are taken for average ones
        self.over_share = False  # it waits until enough of them is answered
        self.held_ms = 0.0  # for so long it was not read from because of pressure, and nobody was told yet
        self._unread = -1  # bytes that waited for the peer when it was last looked at
        self._unread_since = 0.0
        self._asked = 0  # other requests
        self._answered = 0  # of these
        self._leaving = False  # it sends no more, and goes when it has its answers

    @property
    def gone(self) -> bool:
        """Nobody hears any more."""
        return self._transport is None

    @property
    def write_blocked(self) -> bool:
        return self._paused or self._transport is None or self._out_bytes > self._place.settings.outbox_bytes

    @property
    def free_socket(self) -> int:
        """The descriptor of a socket with nothing before what is written next; -1: there is something, or it takes no
        plain bytes."""
        transport = self._transport
        if transport is None or self._socket < 0 or self._out or self._paused or self._leaving:
            return -1
        if transport.is_closing() or transport.get_write_buffer_size():
            return -1
        return self._socket

    def sent(self, size: int) -> None:
        """So many bytes went to its free socket."""
        self.bytes_out += size

    def close(self) -> None:
        if self._transport is not None:
            self.flush()
            self._transport.close()

    def unread_s(self, now: float) -> float:
        """For how long the peer has taken nothing of what waits for it. To be asked regularly."""
        transport = self._transport
        waiting = transport.get_write_buffer_size() if self._paused and transport is not None else 0
        if not waiting or self._unread < 0 or waiting < self._unread:
            self._unread_since = now
        self._unread = waiting if waiting else -1
        return now - self._unread_since

    def write(self, data: Any) -> None:
        self._out.append(data)
        self._out_bytes += len(data)

    def flush(self) -> None:
        out = self._out
        if not out:
            if self._leaving:
                self._leave()
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
        self.bytes_out += self._out_bytes
        self._out_bytes = 0
        if self._leaving:
            self._leave()

    @property
    def answered_all(self) -> bool:
        """Is every request answered that came?"""
        raise NotImplementedError

    def _leave(self) -> None:
        if self._transport is not None and self.answered_all:
            self._transport.close()

    # ---- answers ----

    def answer(self, op: int, request_id: int, body: dict[str, Any], started_at: float | None = None) -> None:
        """started_at: when the request came, if the answer shall say how long it took."""
        self._answered += 1
        flags = 0
        if started_at is not None:
            flags, total = FLAG_PERFORMANCE, (self._place.clock.monotonic() - started_at) * 1000
            scanned = {"records_scanned": body["examined"]} if "examined" in body else {}
            body = {**body, "performance": {"server_total_ms": total, "throttle_wait_ms": self.held_ms, **scanned}}
            self.held_ms = 0.0
        self.write(map_message(op | ANSWER, request_id, body, flags))
        self._agenda.flush_later(self)

    def refused(self, request_id: int, error: TopicdError) -> None:
        if isinstance(error, Throttled):
            self._counters.throttled += 1
        self._answered += 1
        self.write(error_message(request_id, error))
        self._agenda.flush_later(self)

    def notice(self, request_id: int, body: dict[str, Any]) -> None:
        self.write(map_message(OP_NOTICE, request_id, body))
        self._agenda.flush_later(self)

    # ---- appends ----

    def _answered_appends(self, count: int) -> None:
        left = self.in_flight - count
        self.in_flight_bytes = self.in_flight_bytes * left // self.in_flight if left > 0 else 0
        self.in_flight = left
        if self.over_share and self.in_flight_bytes <= SHARE // 2:
            self.share_freed()

    def appended(self, waiter: Waiter, head: int, entry: InFlight) -> None:
        self._answered_appends(1)
        _, request_id, flags, first_seq, records = waiter
        if flags:
            self._write_appended(waiter, head, self._performance(entry) if flags & FLAG_PERFORMANCE else b"")
        else:
            self._out.append(
                _APPENDED_MESSAGE.pack(_APPENDED_LENGTH, OP_APPENDED, 0, request_id, first_seq, records, head)
            )
            self._out_bytes += _APPENDED_MESSAGE.size
        self._agenda.to_flush.add(self)

    def run_appended(self, request_ids: bytes, first_seq: int, head: int) -> None:
        self._answered_appends(len(request_ids) // 4)
        self.write(core.run_answers(request_ids, first_seq, head))
        self._agenda.to_flush.add(self)

    def deduped(self, waiter: Waiter, head: int) -> None:
        self._answered_appends(1)
        self._write_appended(waiter, head, _NO_PERFORMANCE if waiter.flags & FLAG_PERFORMANCE else b"")
        self._agenda.to_flush.add(self)

    def append_refused(self, request_id: int, error: TopicdError) -> None:
        self._answered_appends(1)
        self._answered -= 1  # of other requests
        self.refused(request_id, error)

    def _write_appended(self, waiter: Waiter, head: int, extra: bytes) -> None:
        flags = waiter.flags & _ANSWER_FLAGS
        fixed = (waiter.request_id, waiter.first_seq, waiter.records, head)
        self.write(_APPENDED_MESSAGE.pack(_APPENDED_LENGTH + len(extra), OP_APPENDED, flags, *fixed) + extra)

    def _performance(self, entry: InFlight) -> bytes:
        total = (self._place.clock.monotonic() - entry.started_at) * 1000
        held, self.held_ms = self.held_ms, 0.0
        if entry.need is Need.PLACED:
            return PERFORMANCE.pack(total + held, total, 0.0, 0, held)
        if entry.direct:
            return PERFORMANCE.pack(total + held, 0.0, total, 0, held)
        window_us, write_us, sync_us = entry.took_us
        sync = sync_us / 1000 if entry.need is Need.SYNCED else 0.0
        return PERFORMANCE.pack(total + held, write_us / 1000, sync, 0, held + window_us / 1000)

    # ---- records ----

    def fetched(self, request_id: int, topic: Topic, answer: ReadAnswer, started_at: float | None) -> None:
        """started_at: when the request came, if the answer shall say how long it took."""
        performance = None
        self._answered += 1
        if started_at is not None:
            performance = {
                "server_total_ms": (self._place.clock.monotonic() - started_at) * 1000,
                "records_scanned": answer.examined,
                "cold_segments_read": answer.cold_segments,
                "throttle_wait_ms": self.held_ms,
            }
            self.held_ms = 0.0
        self._write_frames(OP_FETCHED, request_id, topic, answer, performance)
        self._agenda.flush_later(self)

    def push(self, sub_id: int, topic: Topic, answer: ReadAnswer) -> None:
        self._write_frames(OP_PUSH, sub_id, topic, answer, None)
        if self._out_bytes >= _FLUSH_NOW:
            self.flush()

    def jobs(
        self,
        op: int,
        request_id: int,
        topic_id: int,
        ready: int,
        count: int,
        rows: bytes,
        frames: list[Buffer],
        size: int,
        ended: bytes = b"",
    ) -> None:
        """Jobs that were claimed, or are pushed: their rows, then their frames. `ended`: ENDED of those that a claim
        finished first."""
        if op == OP_CLAIMED:
            self._answered += 1
        fixed = CLAIMED.pack(topic_id, ready, count) + ended
        flags = FLAG_DONE if ended else 0
        self.write(header(op, flags, request_id, len(fixed) + len(rows) + size) + fixed + rows)
        for part in frames:
            self.write(part)
        self._agenda.flush_later(self)

    def next_job(
        self, request_id: int, topic_id: int, ready: int, seq: int, lease: int, deadline: int, frame: Buffer
    ) -> None:
        """`jobs` of a claim that finished one job and gets one, which is delivered for the first time."""
        self._answered += 1
        length = _NEXT_JOB_LENGTH + len(frame)
        self.write(
            _NEXT_JOB.pack(
                *(length, OP_CLAIMED, FLAG_DONE, request_id, topic_id, ready, 1, 1, 0, seq, lease, deadline, 1)
            )
            + frame
        )
        self._agenda.flush_later(self)

    def body(self, op: int, request_id: int, body: bytes) -> None:
        """An answer with a layout of its own."""
        self._answered += 1
        self.write(header(op, 0, request_id, len(body)) + body)
        self._agenda.flush_later(self)

    def _write_frames(
        self, op: int, request_id: int, topic: Topic, answer: ReadAnswer, performance: dict[str, Any] | None
    ) -> None:
        flags, extra = 0, b""
        if answer.tombstone is not None or performance is not None:
            body: dict[str, Any] = {}
            if answer.tombstone is not None:
                flags |= FLAG_TOMBSTONE
                self._counters.tombstones += 1
                body["tombstone"] = answer.tombstone.to_wire()
            if performance is not None:
                flags |= FLAG_PERFORMANCE
                body["performance"] = performance
            extra = msgpack.packb(body)
        self.write(frames_head(op, request_id, topic, answer, flags, extra))
        for part in answer.parts:
            self.write(part)
