"""Jobs as they come, for asyncio programs: the same promises as topicd.client.blocking.work. Leases are extended by a
thread, so that a body that keeps the loop busy loses nothing.

Acknowledgements of one turn of the loop are sent together.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Any

from topicd._native import guard
from topicd.client.aio.caller import AioCaller, apart, is_running
from topicd.client.aio.connection import AioConnection, open_connection
from topicd.client.aio.job import NOT_ITS_FAULT_HERE, AsyncJob, AsyncQueueHolder
from topicd.client.blocking.leases import LeaseKeeper
from topicd.client.blocking.work import Unseeing
from topicd.client.core import queue_requests
from topicd.client.core.held import Then
from topicd.client.core.jobs import Acked, NackKind, ack_body, parse_acked, row_pieces
from topicd.client.core.options import span
from topicd.client.core.requests import Request, check_queue, open_any
from topicd.client.core.settling import LEFT
from topicd.client.core.working import WorkFigures, Working, rows_of
from topicd.errors import ConnectionLost, InvalidRequest, TopicdError, WrongShard
from topicd.ipc.protocol import messages
from topicd.ipc.protocol.codec import answer_map, packed
from topicd.ipc.protocol.cutter import Cutter
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.retry import FOREVER_S, Patience
from topicd.ipc.protocol.wire import OP_ACK

_PARTING_S = 2.0  # what is left to say when a loop is gone may keep the program so long
_FIRST_JOBS_S = 0.05  # what waits in a queue is pushed within that


class _Acks:
    """Acknowledgements that travel together."""

    __slots__ = ("answer", "pending", "unasked")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.pending: list[tuple[int, int]] = []
        self.unasked = 0  # of these: nobody waits for the answer
        self.answer: asyncio.Future[Acked] = loop.create_future()
        self.answer.add_done_callback(lambda future: future.cancelled() or future.exception())


class AsyncWork(WorkFigures):
    """Made by `queue.work`; see `topicd.client.blocking.work.Work`. Use it in the loop that it was made in."""

    def __init__(
        self,
        caller: AioCaller,
        queue: AsyncQueueHolder,
        name: str,
        node: str,
        most: int,
        lease_ms: int,
        idle: float | None,
    ) -> None:
        self._keeper: LeaseKeeper | None = None  # first: it ends with this, also if what follows is refused
        self._caller = caller
        self._loop = self._caller.loop
        self._queue = queue
        self._request = messages.Work(topic=name, node=node, max=most, lease_ms=lease_ms or None)
        self._idle = None if idle is None else span("idle", idle)
        self._working: Working[AsyncJob] = Working(AsyncJob, self, name)
        self._connection: AioConnection | None = None
        self._work_id = 0
        self._gathering: _Acks | None = None
        self._under_way: set[asyncio.Future[Acked]] = set()
        self._unanswered: dict[asyncio.Future[Any], bytes] = {}
        self._repeat = b""
        self._waiter: asyncio.Future[None] | None = None
        self._in_hand: AsyncJob | None = None
        self._error: TopicdError | None = None
        self._entered = False
        self._stopping = False
        self._stop_answer: asyncio.Future[Any] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._closed = False

    # ---- jobs ----

    def __aiter__(self) -> AsyncLoop:
        return AsyncLoop(self)

    async def __anext__(self) -> AsyncJob:
        self._in_hand = None
        buffered = self._working.buffered
        while True:
            if self._error is not None:
                await self.close()
                raise self._error
            if self._stopping or self._closed:
                await self._give_rest_back()
                raise StopAsyncIteration
            if buffered:
                job = self._in_hand = buffered.popleft()
                return job
            if self._connection is None:
                await self._connect()
            elif not await self._more():
                self.stop()

    async def _more(self) -> bool:
        """Something has happened, within the time that it may take."""
        self._waiter = waiter = self._loop.create_future()
        if self._idle is None:
            await waiter
            return True
        try:
            async with asyncio.timeout(max(self._idle, _FIRST_JOBS_S)):
                await waiter
        except TimeoutError:
            # While acknowledgements are unanswered the daemon has not said yet what comes in their place.
            return bool(self._unanswered)
        return True

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # ---- the connection ----

    async def _connect(self) -> None:
        # A stream that was there comes back when the daemon does.
        timeout = self._caller.timeout if self._keeper is None else FOREVER_S
        patience = Patience(self._caller.tempo, timeout)
        while not self._closed:
            try:
                await self._open(min(patience.remaining(), self._caller.timeout))
                return
            except TopicdError as exc:
                delay = patience.after(exc)
                if isinstance(exc, ConnectionLost | WrongShard):
                    await self._caller.refresh()
                await asyncio.sleep(delay)

    async def _open(self, timeout: float) -> None:
        if self._caller.closed:
            raise InvalidRequest("the client is closed")
        name = self._request.topic
        connection = AioConnection(self._lost, lambda: None)
        connection.on_input = partial(self._input, connection)
        await open_connection(self._caller, self._caller.shard_map.shard_of(name), connection, timeout)
        try:
            async with asyncio.timeout(timeout):
                opened = await connection.ask(open_any(name, create=True, queue=True))
                check_queue(name, opened.type)
                self._connection = connection
                call = connection.call(Op.WORK, packed(self._request.to_wire()))
                self._work_id = connection.last_id
                _, raw = await call
            self._working.opened(answer_map(raw))
        except BaseException as exc:
            self._connection = None
            connection.abort(ConnectionLost("the stream was not opened"))
            if isinstance(exc, TimeoutError):
                raise ConnectionLost(f"the daemon did not answer within {timeout:g} s") from None
            raise
        if self._keeper is None:
            held, lease_ms = self._working.held, self._working.lease_ms
            self._keeper = LeaseKeeper(self._caller.threads, name, held, lease_ms)
            self._keeper.start()
        if self._repeat:
            again, self._repeat = self._repeat, b""
            self._send(again, None)

    def _input(self, connection: AioConnection, cutter: Cutter) -> None:
        now = self._caller.tempo.monotonic()
        while (arrived := cutter.take()) is not None:
            if connection.expects(arrived.request_id) and arrived.op not in (Op.JOBS, Op.NOTICE):
                connection.answered(arrived)
            else:
                self._working.take(arrived, now)
        self._wake()

    def _lost(self, connection: AioConnection, why: TopicdError) -> None:
        if connection is not self._connection:
            return
        self._connection = None
        self._working.disconnected()
        if not why.retriable:
            self._error = why
        self._wake()

    # ---- acknowledgements ----

    async def _finish(self, job: AsyncJob, then: Then, wait: bool) -> bool:
        job.check_open()
        if then:
            await self._queue._publish_then(job, then)
        acks = self._gather(job)
        ours = not job.lost
        if wait:
            ours = await self._outcome(job, acks)
        else:
            acks.unasked += 1
        job.settled, job.lost = True, not ours
        self._working.held.pop(job.seq, None)
        return ours

    def _gather(self, job: AsyncJob) -> _Acks:
        acks = self._gathering
        if acks is None:
            acks = self._gathering = _Acks(self._loop)
            self._loop.call_soon(self._flush)
        acks.pending.append((job.seq, job.lease))
        return acks

    async def _outcome(self, job: AsyncJob, acks: _Acks) -> bool:
        try:
            return job.seq not in (await asyncio.shield(acks.answer)).skipped
        except ConnectionLost:
            # Over another connection than the stream's: a lease's number is enough.
            if not (await self._queue._finish_all(rows_of([job.key]))).skipped:
                return True
            return await self._queue._still_counts(job.seq)

    def _flush(self) -> None:
        acks, self._gathering = self._gathering, None
        if acks is not None:
            self._send(rows_of(acks.pending), acks)

    def _send(self, rows: bytes, acks: _Acks | None) -> None:
        for piece in row_pieces(rows):
            connection = self._connection
            if connection is None:
                self._repeat += piece
                if acks is not None and not acks.answer.done():
                    acks.answer.set_exception(ConnectionLost("the stream of jobs is not connected"))
                continue
            future = connection.call(OP_ACK, ack_body(self._working.topic_id, piece))
            self._unanswered[future] = piece
            future.add_done_callback(partial(self._answered, acks))

    def _answered(self, acks: _Acks | None, future: asyncio.Future[Any]) -> None:
        rows = self._unanswered.pop(future, b"")
        try:
            _, raw = future.result()
            found = parse_acked(raw, 0, len(raw))
        except (TopicdError, asyncio.CancelledError) as exc:
            if isinstance(exc, TopicdError) and not exc.retriable:
                self._error = exc
                self._not_acknowledged(acks, rows, exc)
            else:
                self._repeat += rows
            if acks is not None and not acks.answer.done():
                acks.answer.set_exception(ConnectionLost(f"acknowledgements were not answered: {exc}"))
            self._wake()
            return
        if acks is not None:
            if found.skipped:
                self._working.not_ours(found.skipped)
            if not acks.answer.done():
                acks.answer.set_result(found)

    def _not_acknowledged(self, acks: _Acks | None, rows: bytes, error: TopicdError) -> None:
        """Refused for good; who waits for it hears it."""
        if acks is None:
            self._working.rows_not_told(rows, error)
        else:
            self._working.not_told(acks.unasked, "finished jobs", error)
            acks.unasked = 0

    async def _finish_all(self, rows: bytes) -> Acked:
        return await self._queue._finish_all(rows)

    async def _give_back(self, jobs: Sequence[AsyncJob], kind: NackKind, delay_ms: int | None, reason: str) -> bool:
        try:
            return await self._queue._give_back(jobs, kind, delay_ms, reason)
        finally:
            for job in jobs:
                if job.settled:
                    self._working.held.pop(job.seq, None)

    async def _keep(self, job: AsyncJob, lease_ms: int | None) -> bool:
        return await self._queue._keep(job, self._working.lease_ms if lease_ms is None else lease_ms)

    # ---- the end ----

    def stop(self) -> None:
        """No more jobs: the loop ends when the job in hand is settled, and what was not begun goes back at once."""
        if self._connection is not None and not self._stopping:
            body = packed(messages.StopWork(work=self._work_id).to_wire())
            self._stop_answer = self._connection.call(Op.STOP_WORK, body)
            self._stop_answer.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._stopping = True
        self._wake()

    async def _give_rest_back(self) -> None:
        """What was pushed and not begun, once nothing more can come."""
        if self._stop_answer is not None:
            await asyncio.wait([self._stop_answer], timeout=self._caller.timeout)
        rest = list(self._working.buffered)
        self._working.buffered.clear()
        if rest and self._connection is not None and not self._closed:
            with contextlib.suppress(TopicdError):
                # Else the end of the connection gives it back.
                await self._give_back(rest, "release", None, "")

    def _left(self, error: BaseException | None, known: bool) -> None:
        """The loop is gone, and nobody can be awaited here. `known`: it is certain whether an exception took it."""
        if self._entered:
            return
        job, self._in_hand = self._in_hand, None
        kind: NackKind = "release"
        reason = ""
        if job is not None and not job.settled and not self._closed:
            job.settled = True
            self._working.held.pop(job.seq, None)
            if not (isinstance(error, NOT_ITS_FAULT_HERE) or (known and error is None)):
                kind, reason = "fail", LEFT if error is None else queue_requests.reason_of(error)
        else:
            job = None
        if is_running(self._loop):
            self._caller.part(self._part(job, kind, reason))
        else:
            self._part_now(job, kind, reason)

    async def _part(self, job: AsyncJob | None, kind: NackKind, reason: str) -> None:
        """What is left to say when nobody waits for it; who asks the client something else comes behind it."""
        self.stop()  # Before: what goes back must not come here again.
        try:
            if job is not None:
                try:
                    async with asyncio.timeout(_PARTING_S):
                        await self._caller.ask(self._parting(job, kind, reason))
                except (TopicdError, TimeoutError) as exc:
                    self._not_told(exc)
            await self._give_rest_back()
            await self.close()
        except asyncio.CancelledError:
            # The loop ends as well: it is kept for a moment, for the last time.
            self._part_now(job, kind, reason)
            raise

    def _parting(self, job: AsyncJob, kind: NackKind, reason: str) -> Request[Any]:
        return queue_requests.nack(self._request.topic, [job.key], kind, delay_ms=None, reason=reason)

    def _part_now(self, job: AsyncJob | None, kind: NackKind, reason: str) -> None:
        """Blocks until it is said: nothing runs in this loop any more."""
        if job is not None:
            caller, request = self._caller.threads, self._parting(job, kind, reason)
            shard = self._caller.shard_map.shard_of(self._request.topic)
            try:
                caller.on_shard(lambda: shard, lambda connection: connection.ask(request), _PARTING_S)
            except TopicdError as exc:
                self._not_told(exc)
        rest = self._end()
        if rest:
            self._finish_in_thread(rest)

    async def close(self) -> None:
        """Waits until what was finished is acknowledged, and gives back the rest. May be called twice."""
        if self._closing is None:
            self._closing = self._loop.create_task(apart(self._close()))
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if self._closed:
            return
        self._stopping = True
        self._flush()
        with contextlib.suppress(TopicdError, TimeoutError):
            async with asyncio.timeout(self._caller.timeout):
                if self._unanswered:
                    await asyncio.wait(list(self._unanswered))
                await asyncio.sleep(0)
                if self._repeat:
                    await self._queue._finish_all(self._repeat)
                    self._repeat = b""
        if rest := self._end():
            await asyncio.to_thread(self._finish_in_thread, rest)

    def _end(self) -> bytes:
        """Nothing is sent or received any more; what was finished and not acknowledged."""
        if self._closed:
            return b""
        if self._gathering is not None:
            self._repeat += rows_of(self._gathering.pending)
            self._gathering = None
        rest, self._repeat = self._repeat + b"".join(self._unanswered.values()), b""
        self._closed = True
        if self._keeper is not None:
            self._keeper.stop()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort(ConnectionLost("the stream of jobs is closed"))
        self._wake()
        return rest

    def _finish_in_thread(self, rows: bytes) -> None:
        caller, topic_id = self._caller.threads, self._working.topic_id
        shard = self._caller.shard_map.shard_of(self._request.topic)
        for piece in row_pieces(rows):
            try:
                caller.on_shard(
                    lambda: shard, partial(_exchange, op=OP_ACK, body=ack_body(topic_id, piece)), _PARTING_S
                )
            except TopicdError as exc:
                self._working.rows_not_told(piece, exc)

    def _not_told(self, error: Exception) -> None:
        """How the job in hand ended. The end of the connection gives it back."""
        self._working.not_told(1, "the job in hand", error if isinstance(error, TopicdError) else None)

    async def __aenter__(self) -> AsyncWork:
        self._entered = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered = False
        job, self._in_hand = self._in_hand, None
        self.stop()  # Before: what goes back must not come here again.
        if job is not None and not job.settled and not self._closed:
            try:
                if error is None or isinstance(error, NOT_ITS_FAULT_HERE):
                    await job.release()
                else:
                    await job.fail(queue_requests.reason_of(error))
            except TopicdError as exc:
                self._not_told(exc)
        await self.close()

    def __del__(self) -> None:
        if self._keeper is not None:
            self._keeper.stop()


def _exchange(connection: Any, op: int, body: bytes) -> None:
    connection.exchange(op, body)


class AsyncLoop:
    """One `async for` over a stream of jobs; see topicd.client.blocking.work.Loop."""

    __slots__ = ("_guard", "_work")

    def __init__(self, work: AsyncWork) -> None:
        self._work = work
        self._guard = Unseeing(work._left) if guard is None else guard(work._left)

    def __aiter__(self) -> AsyncLoop:
        return self

    async def __anext__(self) -> AsyncJob:
        return await self._work.__anext__()
