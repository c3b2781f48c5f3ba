"""Pipelined appends over one connection to one shard, without the connection. Feed it answers, send what it
puts out.

The owner tells it `connected`, `disconnected` and the time; it keeps at most `window` batches of a topic and
UNANSWERED of all topics under way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from topicd.client.inbox import Arrived, Inbox
from topicd.client.line import Line, OutBatch
from topicd.client.wire import (
    ACK_OP,
    APPEND_HEAD,
    APPEND_OP,
    APPEND_REST,
    DEDUPED_FLAG,
    ERROR_OP,
    OTHERS,
    answer_map,
    error_of,
    number,
    packed,
    parse_ack,
)
from topicd.errors import FormatError, TopicdError, WrongShard
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import ANSWER, message
from topicd.limits import KIB, MIB

UNANSWERED = 512
FLYING_BYTES = 16 * MIB
OUTPUT_BYTES = 1 * MIB
JOIN_UP_TO = 8 * KIB
OPEN_ANSWER = int(Op.OPEN) | ANSWER

Piece = bytes | bytearray


class Appender:
    def __init__(self, window: int) -> None:
        self.lines: dict[str, Line] = {}
        self.connected = False
        self.misplaced = False  # the daemon says a topic is not this shard's
        self.troubled = False  # something was refused: `wake_at` may be sooner than it was
        self._window = window
        self._active: dict[Line, None] = {}  # lines that have something waiting or under way
        self._ready: deque[Line] = deque()
        self._batches: dict[int, OutBatch] = {}  # by request id
        self._opens: dict[int, Line] = {}
        self._flying_bytes = 0
        self._request_id = 0
        self._trouble: TopicdError | None = None

    @property
    def idle(self) -> bool:
        return not self._active

    @property
    def ready(self) -> bool:
        """`output` may have something."""
        return bool(self._ready)

    def attach(self, line: Line) -> None:
        self.lines[line.topic] = line
        line.queued = False
        if not line.idle:
            self._active[line] = None
            self._queue(line)

    def detach(self, line: Line) -> None:
        """Only while it is idle."""
        del self.lines[line.topic]
        self._active.pop(line, None)

    def detach_all(self) -> list[Line]:
        """Only while disconnected: the lines go on elsewhere."""
        lines = list(self.lines.values())
        self.lines.clear()
        self._active.clear()
        self._ready.clear()
        self.misplaced = False
        return lines

    def submit(self, batch: OutBatch) -> None:
        line = batch.line
        line.waiting.append(batch)
        self._active[line] = None
        if not line.queued:
            line.queued = True
            self._ready.append(line)

    def _queue(self, line: Line) -> None:
        if not line.queued:
            line.queued = True
            self._ready.append(line)

    # ---- the connection ----

    def connect(self) -> None:
        self.connected = True
        self._trouble = None
        for line in self._active:
            self._queue(line)

    def disconnect(self, why: TopicdError, now: float) -> None:
        self.connected = False
        self._trouble = why
        self._batches.clear()
        self._opens.clear()
        self._flying_bytes = 0
        for line in self._active:
            line.disconnected(now)

    def output(self, now: float) -> list[Piece]:
        """What is to be sent now, up to OUTPUT_BYTES; call again once it is sent."""
        pieces: list[Piece] = []
        if not self.connected:
            return pieces
        size = 0
        delayed: list[Line] = []
        ready = self._ready
        while ready and size < OUTPUT_BYTES and self._has_room():
            line = ready.popleft()
            line.queued = False
            if not line.topic_id:
                self._open(line, now, pieces, delayed)
                continue
            for _ in range(line.sendable(self._window, now)):
                size += self._send(line, pieces)
                if size >= OUTPUT_BYTES or self._flying_bytes >= FLYING_BYTES or len(self._batches) >= UNANSWERED:
                    break
            if line.waiting and (line.not_before > now or line.sendable(self._window, now)):
                delayed.append(line)
        for line in delayed:
            self._queue(line)
        return pieces

    def _has_room(self) -> bool:
        return len(self._batches) < UNANSWERED and self._flying_bytes < FLYING_BYTES

    def _next_id(self) -> int:
        self._request_id = self._request_id % (OTHERS - 1) + 1
        return self._request_id

    def _open(self, line: Line, now: float, pieces: list[Piece], delayed: list[Line]) -> None:
        if now < line.not_before:
            delayed.append(line)
        elif line.waiting and not line.opening and not line.outstanding:
            line.opening = True
            request_id = self._next_id()
            self._opens[request_id] = line
            pieces.append(message(Op.OPEN, request_id, packed({"topic": line.topic, "create": True})))

    def _send(self, line: Line, pieces: list[Piece]) -> int:
        batch = line.send()
        request_id = self._request_id = self._request_id % (OTHERS - 1) + 1
        self._batches[request_id] = batch
        frames = batch.frames
        size = len(frames)
        self._flying_bytes += size
        head = APPEND_HEAD.pack(
            APPEND_REST + size,
            APPEND_OP,
            0,
            request_id,
            line.topic_id,
            line.producer_id,
            batch.number,
            batch.count,
        )
        if size <= JOIN_UP_TO:
            pieces.append(head + frames)
        else:
            pieces.append(head)
            pieces.append(frames)
        return size

    # ---- answers ----

    def feed(self, inbox: Inbox, now: float, others: Callable[[Arrived], None] | None = None) -> None:
        """Takes every complete message; those with request ids from OTHERS on belong to somebody else on the same
        connection. Raises FormatError when the peer does not speak the protocol."""
        while True:
            acks = inbox.take_acks()
            for _length, _op, flags, request_id, first_seq, _count, _head in acks:
                self._acked(request_id, flags, first_seq, now)
            arrived = inbox.take()
            if arrived is None:
                return
            if others is not None and arrived.request_id >= OTHERS:
                others(arrived)
            else:
                self._feed_one(arrived, now)

    def _feed_one(self, arrived: Arrived, now: float) -> None:
        if arrived.op == ACK_OP:
            ack = parse_ack(arrived.flags, arrived.buffer, arrived.start, arrived.end)
            self._acked(arrived.request_id, arrived.flags, ack.first_seq, now)
        elif arrived.op == ERROR_OP:
            self._failed(arrived.request_id, error_of(arrived.body()), now)
        elif arrived.op == OPEN_ANSWER and arrived.request_id in self._opens:
            line = self._opens.pop(arrived.request_id)
            line.opened(number(answer_map(arrived.body()), "topic_id"))
            self._queue(line)
        else:
            raise FormatError(f"the daemon sent op 0x{arrived.op:02x} to a producer")

    def _acked(self, request_id: int, flags: int, first_seq: int, now: float) -> None:
        batch = self._batches.pop(request_id, None)
        if batch is None:
            raise FormatError(f"the daemon acknowledged request {request_id}, which is not under way")
        self._flying_bytes -= batch.size
        line = batch.line
        line.acked(batch, first_seq, flags & DEDUPED_FLAG != 0)
        if line.refused and not line.outstanding:
            line.regroup(now)
        if line.waiting and not line.queued:
            line.queued = True
            self._ready.append(line)

    def _failed(self, request_id: int, error: TopicdError, now: float) -> None:
        if request_id == 0:
            raise error
        self.troubled = True
        if isinstance(error, WrongShard):
            self.misplaced = True
        opening = self._opens.pop(request_id, None)
        if opening is not None:
            opening.opening = False
            if error.retriable:
                opening.delay(error, now)
                self._queue(opening)
            else:
                opening.fail_waiting(error)
            return
        batch = self._batches.pop(request_id, None)
        if batch is None:
            raise FormatError(f"the daemon refused request {request_id}, which is not under way: {error}")
        self._flying_bytes -= batch.size
        line = batch.line
        line.refuse(batch, error)
        if not line.outstanding:
            line.regroup(now)
            self._queue(line)

    def fail_all(self, error: TopicdError) -> None:
        """Only while disconnected."""
        for line in self._active:
            line.fail_waiting(error)

    # ---- time ----

    def expire(self, now: float) -> None:
        for line in self._active:
            line.expire(now, self._trouble)
        for line in [line for line in self._active if line.idle]:
            del self._active[line]

    def wake_at(self, now: float) -> float | None:
        """When `output` or `expire` has something to do although nothing arrives; None: not before
        something does."""
        times: list[float] = []
        for line in self._active:
            deadline = line.next_deadline()
            if deadline is not None:
                times.append(deadline)
                if self.connected and line.not_before > now:
                    times.append(line.not_before)
        return min(times) if times else None
