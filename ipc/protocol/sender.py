"""Pipelined appends over one connection to one shard, without the connection. Feed it answers, send what it
puts out.

The owner tells it `connect`, `disconnect` and the time; it keeps at most `window` batches of a topic and
UNANSWERED of all topics under way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from topicd.errors import FormatError, TopicdError, WrongShard
from topicd.ipc.protocol.codec import (
    ACK_OP,
    APPEND_HEAD,
    APPEND_OP,
    APPEND_REST,
    CONFLICT_FLAG,
    DEDUPED_FLAG,
    ERROR_OP,
    JOIN_UP_TO,
    OTHERS,
    answer_map,
    append_head,
    error_of,
    number,
    packed,
    parse_ack,
)
from topicd.ipc.protocol.cutter import Arrived, Cutter
from topicd.ipc.protocol.messages import Op, OpenTopic
from topicd.ipc.protocol.outbox import OutBatch, TopicOutbox
from topicd.ipc.protocol.wire import ANSWER, FLAG_PERFORMANCE, message
from topicd.limits import MIB

UNANSWERED = 512
FLYING_BYTES = 16 * MIB
OUTPUT_BYTES = 1 * MIB
OPEN_ANSWER = int(Op.OPEN) | ANSWER

Piece = bytes | bytearray


class Sender:
    """The outboxes of all topics that go to one shard."""

    def __init__(self, window: int, *, timed: bool = False) -> None:
        """timed: who writes shall hear how long the log took, and what it waited for because of pressure."""
        self.outboxes: dict[str, TopicOutbox] = {}
        self.connected = False
        self.misplaced = False  # the daemon says a topic is not this shard's
        self.resume_at: float | None = None  # when the first of those that pause, as `output` saw it, may go on
        self._window = window
        self._timed = timed
        self._active: dict[TopicOutbox, None] = {}  # outboxes that have something waiting or under way
        self._ready: deque[TopicOutbox] = deque()
        self._batches: dict[int, OutBatch] = {}  # by request id
        self._opens: dict[int, TopicOutbox] = {}
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

    def attach(self, outbox: TopicOutbox) -> None:
        self.outboxes[outbox.topic] = outbox
        outbox.queued = False
        if not outbox.idle:
            self._active[outbox] = None
            self._queue(outbox)

    def detach(self, outbox: TopicOutbox) -> None:
        """Only while it is idle."""
        del self.outboxes[outbox.topic]
        self._active.pop(outbox, None)

    def detach_all(self) -> list[TopicOutbox]:
        """Only while disconnected: the outboxes go on elsewhere."""
        outboxes = list(self.outboxes.values())
        self.outboxes.clear()
        self._active.clear()
        self._ready.clear()
        self.misplaced = False
        return outboxes

    def submit(self, batch: OutBatch) -> None:
        outbox = batch.outbox
        outbox.waiting.append(batch)
        self._active[outbox] = None
        if not outbox.queued:
            outbox.queued = True
            self._ready.append(outbox)

    def _queue(self, outbox: TopicOutbox) -> None:
        if not outbox.queued:
            outbox.queued = True
            self._ready.append(outbox)

    # ---- the connection ----

    def connect(self) -> None:
        self.connected = True
        self._trouble = None
        for outbox in self._active:
            self._queue(outbox)

    def disconnect(self, why: TopicdError, now: float) -> None:
        self.connected = False
        self._trouble = why
        self._batches.clear()
        self._opens.clear()
        self._flying_bytes = 0
        self.resume_at = None
        for outbox in self._active:
            outbox.disconnected(now)

    def output(self, now: float) -> list[Piece]:
        """What is to be sent now, up to OUTPUT_BYTES; call again once it is sent."""
        pieces: list[Piece] = []
        if not self.connected:
            return pieces
        size = 0
        delayed: list[TopicOutbox] = []
        ready = self._ready
        while ready and size < OUTPUT_BYTES and self._has_room():
            outbox = ready.popleft()
            outbox.queued = False
            if not outbox.topic_id:
                self._open(outbox, now, pieces, delayed)
                continue
            for _ in range(outbox.sendable(self._window, now)):
                size += self._send(outbox, pieces)
                if size >= OUTPUT_BYTES or self._flying_bytes >= FLYING_BYTES or len(self._batches) >= UNANSWERED:
                    break
            if outbox.waiting and (outbox.not_before > now or outbox.sendable(self._window, now)):
                delayed.append(outbox)
        for outbox in delayed:
            self._queue(outbox)
        self.resume_at = min((outbox.not_before for outbox in delayed if outbox.not_before > now), default=None)
        return pieces

    def _has_room(self) -> bool:
        return len(self._batches) < UNANSWERED and self._flying_bytes < FLYING_BYTES

    def _next_id(self) -> int:
        self._request_id = self._request_id % (OTHERS - 1) + 1
        return self._request_id

    def _open(self, outbox: TopicOutbox, now: float, pieces: list[Piece], delayed: list[TopicOutbox]) -> None:
        if now < outbox.not_before:
            delayed.append(outbox)
        elif outbox.waiting and not outbox.opening and not outbox.outstanding:
            outbox.opening = True
            request_id = self._next_id()
            self._opens[request_id] = outbox
            config = {"type": "queue"} if outbox.creates_queue else None
            want = OpenTopic(topic=outbox.topic, create=outbox.creates, config=config)
            pieces.append(message(Op.OPEN, request_id, packed(want.to_wire())))

    def _send(self, outbox: TopicOutbox, pieces: list[Piece]) -> int:
        batch = outbox.send()
        request_id = self._request_id = self._request_id % (OTHERS - 1) + 1
        self._batches[request_id] = batch
        frames = batch.frames
        size = len(frames)
        self._flying_bytes += size
        head = APPEND_HEAD.pack(
            APPEND_REST + size,
            APPEND_OP,
            FLAG_PERFORMANCE if outbox.timed else 0,
            request_id,
            outbox.topic_id,
            outbox.producer_id,
            batch.number,
            batch.count,
        )
        if batch.options:
            place = (request_id, outbox.topic_id, outbox.producer_id, batch.number, batch.count)
            head = append_head(*place, size, options=batch.options)
        if size <= JOIN_UP_TO:
            pieces.append(head + frames)
        else:
            pieces.append(head)
            pieces.append(frames)
        return size

    # ---- answers ----

    def feed(self, cutter: Cutter, now: float, others: Callable[[Arrived], None] | None = None) -> None:
        """Takes every complete message; those with request ids from OTHERS on belong to somebody else on the same
        connection. Raises FormatError when the peer does not speak the protocol."""
        while True:
            if acks := cutter.take_acks():
                self._acked(acks, now)
            arrived = cutter.take()
            if arrived is None:
                return
            if others is not None and arrived.request_id >= OTHERS:
                others(arrived)
            else:
                self._feed_one(arrived, now)

    def _feed_one(self, arrived: Arrived, now: float) -> None:
        if arrived.op == ACK_OP:
            ack = parse_ack(arrived.flags, arrived.buffer, arrived.start, arrived.end)
            if ack.performance is not None and (batch := self._batches.get(arrived.request_id)) is not None:
                batch.performance = ack.performance
            self._acked([(0, ACK_OP, arrived.flags, arrived.request_id, *ack[:3])], now)
        elif arrived.op == ERROR_OP:
            self._failed(arrived.request_id, error_of(arrived.body()), now)
        elif arrived.op == OPEN_ANSWER and arrived.request_id in self._opens:
            outbox = self._opens.pop(arrived.request_id)
            answer = answer_map(arrived.body())
            outbox.opened(number(answer, "topic_id"))
            outbox.timed = self._timed
            self._queue(outbox)
        else:
            raise FormatError(f"the daemon sent op 0x{arrived.op:02x} to a producer")

    def _acked(self, acks: list[tuple[int, ...]], now: float) -> None:
        """As Cutter.take_acks returns them: many in a row for one topic, as a rule."""
        batches = self._batches
        last: TopicOutbox | None = None
        for _length, _op, flags, request_id, first_seq, _count, _head in acks:
            batch = batches.pop(request_id, None)
            if batch is None:
                raise FormatError(f"the daemon acknowledged request {request_id}, which is not under way")
            self._flying_bytes -= batch.size
            outbox = batch.outbox
            if outbox is not last:
                if last is not None:
                    self._go_on(last, now)
                last = outbox
            if flags & CONFLICT_FLAG:
                batch.conflict = True
            outbox.acked(batch, first_seq, flags & DEDUPED_FLAG != 0)
        if last is not None:
            self._go_on(last, now)

    def _go_on(self, outbox: TopicOutbox, now: float) -> None:
        """It has fewer batches under way than before."""
        if outbox.refused and not outbox.outstanding:
            outbox.regroup(now)
        if outbox.waiting and not outbox.queued:
            outbox.queued = True
            self._ready.append(outbox)

    def _failed(self, request_id: int, error: TopicdError, now: float) -> None:
        if request_id == 0:
            raise error
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
        outbox = batch.outbox
        outbox.refuse(batch, error)
        if not outbox.outstanding:
            outbox.regroup(now)
            self._queue(outbox)

    def fail_all(self, error: TopicdError) -> None:
        """Only while disconnected."""
        for outbox in self._active:
            outbox.fail_waiting(error)

    # ---- time ----

    def expire(self, now: float) -> None:
        for outbox in self._active:
            outbox.expire(now, self._trouble)
        for outbox in [outbox for outbox in self._active if outbox.idle]:
            del self._active[outbox]

    def wake_at(self, *, blocked: bool = False) -> float | None:
        """When `output` or `expire` has something to do although nothing arrives, which may be past; None: not before
        something does. `blocked`: the connection takes nothing at present, so that `output` is of no use."""
        times = [deadline for outbox in self._active if (deadline := outbox.next_deadline()) is not None]
        if self.resume_at is not None and not blocked:
            times.append(self.resume_at)
        return min(times) if times else None


def joined(pieces: list[Piece]) -> list[Piece]:
    """Many small pieces as one; large ones are not worth the copy."""
    if len(pieces) <= 2 or sum(map(len, pieces)) > len(pieces) * JOIN_UP_TO:
        return pieces
    return [b"".join(pieces)]
