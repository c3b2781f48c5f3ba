"""Jobs as they come, for blocking programs. Promise: each is delivered until it is finished; while it is in hand its
lease goes on, and when this ends, however it ends, the daemon has back at once what was not finished.

The thread that iterates also receives. Acknowledgements that nobody waits for are sent together: when there is nothing
else to do, when many have gathered, or when the oldest has waited for half a millisecond.
"""

from __future__ import annotations

import contextlib
import select
import threading
from collections import deque
from collections.abc import Callable, Sequence
from threading import get_ident
from types import TracebackType

from topicd._native import guard
from topicd.client.blocking.caller import Caller
from topicd.client.blocking.connection import Connection
from topicd.client.blocking.forksafe import track
from topicd.client.blocking.job import NOT_ITS_FAULT, Job, QueueHolder
from topicd.client.blocking.leases import LeaseKeeper
from topicd.client.core.held import Then
from topicd.client.core.jobs import Acked, NackKind, ack_body, row_pieces
from topicd.client.core.options import span
from topicd.client.core.queue_requests import reason_of
from topicd.client.core.requests import check_queue, open_any
from topicd.client.core.settling import LEFT
from topicd.client.core.working import WorkFigures, Working, rows_of
from topicd.errors import ConnectionLost, InvalidRequest, TopicdError
from topicd.ipc.protocol import messages
from topicd.ipc.protocol.codec import answer_map, packed
from topicd.ipc.protocol.cutter import Arrived
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.retry import FOREVER_S, Patience
from topicd.ipc.protocol.wire import ANSWER, OP_ACK, message

GATHER = 64  # acknowledgements
GATHER_S = 0.0005


class Work(WorkFigures):
    """Made by `queue.work`. Iterate it in one thread; jobs may be finished in any, and `stop` may come from any."""

    def __init__(
        self, caller: Caller, queue: QueueHolder, name: str, node: str, most: int, lease_ms: int, idle: float | None
    ) -> None:
        self._keeper: LeaseKeeper | None = None  # first: it ends with this, also if what follows is refused
        self._caller = caller
        self._queue = queue
        self._request = messages.Work(topic=name, node=node, max=most, lease_ms=lease_ms or None)
        self._idle = None if idle is None else span("idle", idle)
        self._working: Working[Job] = Working(Job, self, name)
        self._connection: Connection | None = None
        self._work_id = 0
        self._stop_id = 0
        self._stopped = False  # nothing more will be pushed
        self._pending: deque[tuple[int, int]] = deque()
        self._pending_since = 0.0
        self._repeat = b""
        self._sending = threading.Lock()
        self._reader = 0
        self._in_hand: Job | None = None
        self._entered = False
        self._stopping = False
        self._closed = False
        track(self)

    def forked(self) -> None:
        self._closed = True
        if self._connection is not None:
            self._connection.abandon()

    # ---- jobs ----

    def __iter__(self) -> Loop:
        return Loop(self)

    def __next__(self) -> Job:
        self._reader = get_ident()
        self._in_hand = None
        working, buffered = self._working, self._working.buffered
        while True:
            if self._stopping or self._closed:
                self._give_rest_back()
                raise StopIteration
            if self._pending and (not buffered or self._gathered()):
                self._flush()
            if buffered:
                job = self._in_hand = buffered.popleft()
                return job
            if self._connection is None or self._connection.closed:
                self._connect()
                continue
            # While acknowledgements are unanswered the daemon has not said yet what comes in their place.
            if self._idle is not None and not working.sent and not self._comes_within(self._idle):
                self._stopping = True
                continue
            self._receive(working)

    def _gathered(self) -> bool:
        return len(self._pending) >= GATHER or self._caller.tempo.monotonic() - self._pending_since > GATHER_S

    def _comes_within(self, seconds: float) -> bool:
        connection = self._connection
        if connection is None or connection.cutter.pending:
            return True
        # Whatever is there is pushed with the answer to WORK or right behind it.
        poll = select.poll()  # select takes no descriptor above 1023
        poll.register(connection.sock, select.POLLIN)
        found = poll.poll(max(seconds, 0.05) * 1000)
        return bool(found)

    def _receive(self, working: Working[Job]) -> None:
        """Blocks for one message, then takes along what has arrived behind it."""
        connection = self._connection
        if connection is None:
            raise ConnectionLost("not connected")
        try:
            arrived: Arrived | None = connection.receive()
            now = self._caller.tempo.monotonic()
            while arrived is not None:
                if not working.take(arrived, now):
                    self._answered(arrived)
                arrived = connection.cutter.take()
        except ConnectionLost:
            self._drop(connection)
            if not self._closed and not self._stopping:
                self._connect()
        except TopicdError:
            self.close()
            raise

    def _answered(self, arrived: Arrived) -> None:
        if arrived.request_id == self._stop_id:
            self._stopped = True

    # ---- the connection ----

    def _connect(self) -> None:
        # A stream that was there comes back when the daemon does.
        timeout = self._caller.timeout if self._keeper is None else FOREVER_S
        patience = Patience(self._caller.tempo, timeout)
        while not (self._closed or self._stopping):
            try:
                self._open(min(patience.remaining(), self._caller.timeout))
                return
            except TopicdError as exc:
                patience.pause(exc)

    def _open(self, timeout: float) -> None:
        if self._caller.closed:
            raise InvalidRequest("the client is closed")
        name = self._request.topic
        connection = self._caller.dial(self._caller.shard_map.shard_of(name), timeout)
        try:
            opened = connection.ask(open_any(name, create=True, queue=True))
            check_queue(name, opened.type)
            request_id = connection.next_id()
            connection.send(message(Op.WORK, request_id, packed(self._request.to_wire())))
            arrived = connection.answer(request_id, Op.WORK | ANSWER)
            self._working.opened(answer_map(arrived.body()))
        except BaseException:
            connection.close()
            raise
        connection.set_timeout(None)
        self._work_id = request_id
        self._connection = connection
        if self._keeper is None:
            held, lease_ms = self._working.held, self._working.lease_ms
            self._keeper = LeaseKeeper(self._caller, name, held, lease_ms, self._flush)
            self._keeper.start()
        if self._repeat:
            again, self._repeat = self._repeat, b""
            self._send_rows(again, repeated=True)

    def _drop(self, connection: Connection) -> None:
        connection.close()
        if connection is self._connection:
            self._connection = None
            self._repeat += self._working.disconnected()

    # ---- acknowledgements ----

    def _flush(self) -> None:
        """Sends what has gathered. Several threads may: who finds it being done leaves it to who does it."""
        while self._pending and self._sending.acquire(blocking=False):
            try:
                self._send_rows(rows_of(self._gathered_rows()))
            finally:
                self._sending.release()

    def _gathered_rows(self) -> list[tuple[int, int]]:
        """Taken one by one: other threads add to them meanwhile."""
        found = []
        with contextlib.suppress(IndexError):
            while True:
                found.append(self._pending.popleft())
        return found

    def _send_rows(self, rows: bytes, *, repeated: bool = False, awaited: bool = False) -> int:
        """The id of the last request. Rows that could not be sent are sent over the next connection."""
        connection, request_id = self._connection, 0
        for piece in row_pieces(rows):
            if connection is None:
                self._repeat += piece
                continue
            request_id = connection.next_id()
            self._working.sent[request_id] = (piece, repeated)
            if awaited:
                self._working.awaited.add(request_id)
            with contextlib.suppress(ConnectionLost):
                # A broken connection shows at the next receive.
                connection.send(message(OP_ACK, request_id, ack_body(self._working.topic_id, piece)))
        return request_id

    def _finish(self, job: Job, then: Then, wait: bool) -> bool:
        job.check_open()
        if then:
            self._queue._publish_then(job, then)
        if wait:
            ours = self._finish_now(job)
        else:
            if not self._pending:
                self._pending_since = self._caller.tempo.monotonic()
            self._pending.append((job.seq, job.lease))
            ours = not job.lost
            if get_ident() != self._reader:
                self._flush()
        job.settled, job.lost = True, not ours
        self._working.held.pop(job.seq, None)
        return ours

    def _finish_now(self, job: Job) -> bool:
        connection = self._connection
        if get_ident() != self._reader or connection is None:
            return self._finish_apart(job, repeated=connection is None)
        self._flush()
        with self._sending:
            request_id = self._send_rows(rows_of([job.key]), awaited=True)
        try:
            while request_id not in self._working.answers:
                if self._connection is not connection:
                    return self._finish_apart(job, repeated=True)
                self._receive(self._working)
            return not self._working.answers.pop(request_id).skipped
        finally:
            self._working.awaited.discard(request_id)

    def _finish_apart(self, job: Job, *, repeated: bool) -> bool:
        """Over another connection than the stream's: a lease's number is enough."""
        if not self._queue._finish_all(rows_of([job.key])).skipped:
            return True
        return repeated and self._queue._still_counts(job.seq)

    def _finish_all(self, rows: bytes) -> Acked:
        return self._queue._finish_all(rows)

    def _give_back(self, jobs: Sequence[Job], kind: NackKind, delay_ms: int | None, reason: str) -> bool:
        try:
            return self._queue._give_back(jobs, kind, delay_ms, reason)
        finally:
            for job in jobs:
                if job.settled:
                    self._working.held.pop(job.seq, None)

    def _keep(self, job: Job, lease_ms: int | None) -> bool:
        return self._queue._keep(job, self._working.lease_ms if lease_ms is None else lease_ms)

    # ---- the end ----

    def stop(self) -> None:
        """No more jobs: the loop ends when the job in hand is settled, and what was not begun goes back at once. From
        any thread; not from a signal handler, which should leave it to a thread."""
        self._stopping = True
        self._stop()

    def _stop(self) -> None:
        connection = self._connection
        if connection is None or self._stop_id:
            return
        with self._sending:
            self._stop_id = connection.next_id()
            body = packed(messages.StopWork(work=self._work_id).to_wire())
            with contextlib.suppress(ConnectionLost):
                connection.send(message(Op.STOP_WORK, self._stop_id, body))

    def _give_rest_back(self) -> None:
        """What was pushed and not begun, once nothing more can come."""
        connection = self._connection
        self._stop()
        if connection is not None and not self._closed:
            connection.set_timeout(self._caller.timeout)
            while not self._stopped and self._connection is connection:
                self._receive(self._working)
        rest = list(self._working.buffered)
        self._working.buffered.clear()
        if rest and self._connection is not None and not self._closed:
            with contextlib.suppress(TopicdError):
                # Else the end of the connection gives it back.
                self._give_back(rest, "release", None, "")

    def _left(self, error: BaseException | None, known: bool) -> None:
        """The loop is gone. `known`: it is certain whether an exception took it."""
        job, self._in_hand = self._in_hand, None
        if self._entered and not known:
            self._in_hand = job
            return
        if job is not None and not job.settled and not self._closed:
            if not self._entered:
                self._stop()  # Before: it must not come back here.
            try:
                if isinstance(error, NOT_ITS_FAULT) or (known and error is None):
                    job.release()
                else:
                    job.fail(LEFT if error is None else reason_of(error))
            except TopicdError as exc:
                self._working.not_told(1, "the job in hand", exc)
        if not self._entered:
            self.close()

    def close(self) -> None:
        """Waits until what was finished is acknowledged, and gives back the rest. May be called twice."""
        if self._closed:
            return
        error: TopicdError | None = None
        try:
            self._settle()
        except TopicdError as exc:
            error = exc
        self._closed = True
        if self._keeper is not None:
            self._keeper.stop()
        if self._connection is not None:
            self._connection.close()
        rest = self._working.disconnected() + rows_of(self._gathered_rows()) + self._repeat
        self._repeat = b""
        if rest and error is None:
            # Closed from a thread that cannot receive the answers.
            try:
                self._queue._finish_all(rest)
                return
            except TopicdError as exc:
                error = exc
        self._working.rows_not_told(rest, error)

    def _settle(self) -> None:
        """Sends what is finished and waits for the answers."""
        self._stop()
        self._flush()
        connection = self._connection
        if get_ident() != self._reader or connection is None or connection.closed:
            self._settle_apart()
            return
        connection.set_timeout(self._caller.timeout)
        self._stopping = True
        while self._working.sent and self._connection is connection:
            self._receive(self._working)
        self._settle_apart()

    def _settle_apart(self) -> None:
        again, self._repeat = self._repeat, b""
        if self._connection is None or self._connection.closed:
            again += self._working.disconnected() + rows_of(self._gathered_rows())
        if again:
            try:
                self._queue._finish_all(again)
            except TopicdError:
                self._repeat = again
                raise

    def __enter__(self) -> Work:
        self._entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered = False
        self._left(error, True)

    def __del__(self) -> None:
        if self._keeper is not None:
            self._keeper.stop()


class Unseeing:
    """Without the C core: that a loop has gone, but not what took it."""

    __slots__ = ("_gone",)

    def __init__(self, gone: Callable[[BaseException | None, bool], None]) -> None:
        self._gone = gone

    def __del__(self) -> None:
        self._gone(None, False)


class Loop:
    """One `for` over a stream of jobs. When it goes, the job in hand goes back: failed if an exception took the loop,
    released if `break` did."""

    __slots__ = ("_guard", "_work")

    def __init__(self, work: Work) -> None:
        self._work = work
        self._guard = Unseeing(work._left) if guard is None else guard(work._left)

    def __iter__(self) -> Loop:
        return self

    def __next__(self) -> Job:
        return self._work.__next__()
