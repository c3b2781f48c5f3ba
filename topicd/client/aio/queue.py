"""A work queue as the asyncio face sees it: the same promises as topicd.client.blocking.queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from topicd.client.aio.bulk import publish_batches
from topicd.client.aio.caller import AioCaller
from topicd.client.aio.job import AsyncJob, AsyncJobs
from topicd.client.aio.operations import AsyncOperations
from topicd.client.aio.work import AsyncWork
from topicd.client.core import queue_requests, requests
from topicd.client.core.encode import Serializer, encode_list, encode_one, to_bytes
from topicd.client.core.held import Finishing, HeldJob, Then, held_keys
from topicd.client.core.jobs import (
    Acked,
    Claimed,
    NackKind,
    OnConflict,
    Put,
    Until,
    ack_body,
    bounded,
    claim_body,
    job_options,
    lease_of,
    leased_rows,
    packed_options,
    parse_acked,
    parse_claimed,
    row_pieces,
    worker_name,
)
from topicd.client.core.queue_answers import (
    DeadLetter,
    Extended,
    JobState,
    Nacked,
    Peeked,
    QueueMode,
    QueueStats,
    Redriven,
    Schedule,
    Steered,
)
from topicd.client.core.records import Published
from topicd.client.core.settling import (
    DONE_STATES,
    Redriving,
    all_acked,
    dead_letters_of,
    encoded_then,
    holder_of,
    key_pieces,
    of_queue,
    wait_times,
)
from topicd.errors import TopicdError, TopicNotFound
from topicd.identity import job_producer
from topicd.ipc.protocol.codec import append_body, checked_key
from topicd.ipc.protocol.wire import FLAG_DONE, OP_ACK, OP_APPEND, OP_CLAIM
from topicd.limits import CLAIM_MAX, PRIORITY_DEFAULT
from topicd.model import TopicConfig, check_topic_name


class AsyncQueue:
    """Made by `client.queue`; see `topicd.Queue`."""

    def __init__(self, client: AsyncOperations, name: str, *, node: str, serialize: Serializer) -> None:
        self.name = check_topic_name(name)
        self.node = node
        self._worker = worker_name(node)
        self._client = client
        self._serialize = serialize

    @property
    def _caller(self) -> AioCaller:
        return self._client.caller

    # ---- making ----

    async def configure(self, **config: Any) -> TopicConfig:
        """Creates the queue or changes the given fields; returns the whole configuration."""
        return await self._caller.ask(requests.configure(self.name, of_queue(config)))

    async def create(self) -> int:
        """Creates the queue with defaults if there is none; its id."""
        return await self._caller.queue_id(self.name)

    # ---- putting ----

    async def put(
        self,
        data: Any,
        *,
        tag: str | bytes | None = None,
        meta: dict[str, Any] | None = None,
        key: str | bytes | None = None,
        delay_ms: int | None = None,
        ready_at: datetime | int | None = None,
        priority: int | None = None,
        group: str | None = None,
        unique: str | None = None,
        until: Until = "done",
        unique_ms: int | None = None,
        on_conflict: OnConflict = "drop",
    ) -> Put:
        """Puts one job into the queue and returns where it is; see `topicd.Queue.put`. Any number may be awaited at
        once."""
        given = job_options(
            delay_ms=delay_ms,
            ready_at=ready_at,
            priority=priority,
            group=group,
            unique=unique,
            until=until,
            unique_ms=unique_ms,
            on_conflict=on_conflict,
        )
        options = packed_options(given, 1)
        frames = encode_one(data, tag, self._client.node, meta, self._serialize)
        if key is not None:
            batch = requests.append(frames, 1, key=checked_key(key), options=options)
            answer = await self._caller.append_alone(self.name, batch, queue=True)
            return Put(answer.first_seq, not answer.conflict)
        done = await self._caller.append_jobs(self.name, frames, 1, options)
        return Put(done.first_seq, not done.conflict)

    async def put_many(
        self,
        jobs: Sequence[Any],
        *,
        tag: str | bytes | None = None,
        delay_ms: int | None = None,
        ready_at: datetime | int | None = None,
        priority: int | None = None,
        group: str | None = None,
    ) -> Published:
        """Puts a list of jobs with the same options for all of them; see `topicd.Queue.put_many`."""
        options = job_options(delay_ms=delay_ms, ready_at=ready_at, priority=priority, group=group)
        batches = encode_list(jobs, tag, None, self._client.node, self._serialize)
        if len(batches) > 1 and not options:
            await self.create()
            return await publish_batches(self._caller, self.name, batches)
        first = last = count = 0
        for frames, jobs_in_it in batches:
            try:
                done = await self._caller.append_jobs(
                    self.name, frames, jobs_in_it, packed_options(options, jobs_in_it)
                )
            except TopicdError as exc:
                if count:
                    exc.detail["stored"] = count
                raise
            first, last = first or done.first_seq, done.first_seq + jobs_in_it - 1
            count += jobs_in_it
        return Published(first, last, count)

    # ---- taking ----

    async def claim(
        self, max: int = 1, *, wait: float = 0.0, lease_ms: int | None = None, done: Any = None
    ) -> AsyncJobs:
        """Up to `max` jobs, each leased to this worker; `done` finishes jobs with the same request. See
        `topicd.Queue.claim`."""
        most, lease = bounded("max", max, 1, CLAIM_MAX), lease_of(lease_ms)
        ending = None if done is None else Finishing(done)
        waits = wait_times(self._caller.tempo, wait)
        found = await self._await_jobs(most, lease, next(waits), ending)
        for wait_ms in waits if not found.count else ():
            found = (await self._await_jobs(most, lease, wait_ms, None))._replace(finished=found.finished)
            if found.count:
                break
        return AsyncJobs(AsyncJob, self, self.name, self._caller.tempo.monotonic(), found)

    async def _await_jobs(self, most: int, lease: int, wait_ms: int, ending: Finishing | None) -> Claimed:
        """Whoever gives up waiting leaves no jobs behind: those that come to him all the same go back at once."""
        if not wait_ms:
            return await self._claim(most, lease, wait_ms, ending)
        asked = asyncio.ensure_future(self._claim(most, lease, wait_ms, ending))
        try:
            return await asyncio.shield(asked)
        except asyncio.CancelledError:
            asked.add_done_callback(self._nobody_waits)
            raise

    def _nobody_waits(self, asked: asyncio.Future[Claimed]) -> None:
        if asked.cancelled() or asked.exception() is not None or not asked.result().count:
            return
        held = [(seq, lease) for seq, lease, *_ in asked.result().rows()]
        self._caller.part(self._release(held))

    async def _release(self, held: list[tuple[int, int]]) -> None:
        await self.nack(held, "release")

    async def _claim(self, most: int, lease: int, wait_ms: int, ending: Finishing | None) -> Claimed:
        rows, flags = (b"", 0) if ending is None else (ending.rows, FLAG_DONE)
        body = partial(claim_body, most=most, lease_ms=lease, wait_ms=wait_ms, node=self._worker, rows=rows)
        again: list[None] = []
        _, raw = await self._caller.with_topic(
            *(self.name, OP_CLAIM, body),
            flags=flags,
            wait=wait_ms / 1000,
            create=True,
            queue=True,
            again=lambda: again.append(None),
        )
        found = parse_claimed(raw, 0, len(raw), done=bool(flags))
        if ending is not None:
            if again and found.finished.skipped:
                found = found._replace(finished=await self._counted(found.finished))
            ending.answered(found.finished)
        return found

    def work(self, max: int = 1, *, lease_ms: int | None = None, idle: float | None = None) -> AsyncWork:
        """Jobs as they come, up to `max` of them here at once; iterate it with `async for`. See `topicd.Queue.work`."""
        most, lease = bounded("max", max, 1, CLAIM_MAX), lease_of(lease_ms)
        return AsyncWork(self._caller, self, self.name, self.node, most, lease, idle)

    # ---- giving back ----

    async def ack(self, jobs: Any) -> Acked:
        """Finishes jobs: `AsyncJob`s, (seq, lease) pairs, or seqs that this worker holds. `skipped` were not held."""
        keys = held_keys(jobs)
        node = b"" if all(lease for _, lease in keys) else self._worker
        return all_acked([await self._ack(piece, node) for piece in row_pieces(leased_rows(keys))])

    async def nack(
        self, jobs: Any, kind: NackKind = "fail", *, delay_ms: int | None = None, reason: str = ""
    ) -> Nacked:
        """Gives jobs back; see `topicd.Queue.nack`."""
        total = Nacked(0, [], [])
        for some in key_pieces(held_keys(jobs)):
            request = queue_requests.nack(
                self.name, some, kind, delay_ms=delay_ms, reason=reason, node=holder_of(some, self.node)
            )
            found = await self._caller.ask(request)
            total = Nacked(total.nacked + found.nacked, total.skipped + found.skipped, total.dead + found.dead)
        return total

    async def extend(self, jobs: Any, lease_ms: int | None = None) -> Extended:
        """The deadlines become now + lease_ms (the queue's, if not given); `skipped` are not held any more."""
        length = (await self.stats()).config.lease_ms if lease_ms is None else lease_ms
        total = Extended(0, [], {})
        for some in key_pieces(held_keys(jobs)):
            request = queue_requests.extend(self.name, some, length, node=holder_of(some, self.node))
            found = await self._caller.ask(request)
            total = Extended(
                total.extended + found.extended, total.skipped + found.skipped, {**total.deadlines, **found.deadlines}
            )
        return total

    async def _ack(self, rows: bytes, node: bytes = b"") -> Acked:
        body = partial(ack_body, rows=rows, node=node)
        again: list[None] = []
        _, raw = await self._caller.with_topic(self.name, OP_ACK, body, queue=True, again=lambda: again.append(None))
        found = parse_acked(raw, 0, len(raw))
        return await self._counted(found) if again and found.skipped else found

    async def _counted(self, found: Acked) -> Acked:
        """What was sent again, because the first time was not answered, may have counted the first time."""
        done = {seq for seq in found.skipped if await self._still_counts(seq)}
        left = [seq for seq in found.skipped if seq not in done]
        return found._replace(acked=found.acked + len(done), skipped=left)

    # ---- of jobs that were claimed here: see job.AsyncHolder ----

    async def _finish(self, job: AsyncJob, then: Then, wait: bool) -> bool:
        """For jobs of this queue."""
        job.check_open()
        if then:
            await self._publish_then(job, then)
        ours = not (await self._ack(leased_rows([job.key]))).skipped
        job.settled, job.lost = True, not ours
        return ours

    async def _finish_all(self, rows: bytes) -> Acked:
        """For jobs of this queue."""
        return all_acked([await self._ack(piece) for piece in row_pieces(rows)])

    async def _give_back(self, jobs: Sequence[AsyncJob], kind: NackKind, delay_ms: int | None, reason: str) -> bool:
        """For jobs of this queue."""
        for job in jobs:
            job.check_open()
        found = await self.nack(jobs, kind, delay_ms=delay_ms, reason=reason)
        for job in jobs:
            job.settled, job.lost = True, job.seq in found.skipped
        return not found.skipped

    async def _keep(self, job: AsyncJob, lease_ms: int | None) -> bool:
        """For jobs of this queue."""
        job.check_open()
        found = await self.extend(job, lease_ms)
        if job.seq in found.deadlines:
            job.deadline, job.held_at = found.deadlines[job.seq], self._caller.tempo.monotonic()
        job.lost = bool(found.skipped)
        return not job.lost

    async def _publish_then(self, job: HeldJob, then: Then) -> None:
        """Stores what a job leads to, once, whoever does it how often."""
        batches = encoded_then(then, self._client.node, self._serialize)
        producer = job_producer(await self.create())
        for topic, (frames, count) in batches.items():

            def body(topic_id: int, frames: bytearray = frames, count: int = count) -> bytes:
                return append_body(topic_id, producer, job.seq, count) + frames

            await self._caller.with_topic(topic, OP_APPEND, body, create=True)

    async def _still_counts(self, seq: int) -> bool:
        """Of a job whose acknowledgement was sent and not answered: it is finished."""
        return (await self._caller.ask(queue_requests.why(self.name, seq))).state in DONE_STATES

    # ---- looking ----

    async def stats(self) -> QueueStats:
        """The queue's counters."""
        return await self._caller.ask(queue_requests.stats(self.name))

    async def peek(self, state: str = "any", *, from_seq: int = 0, limit: int = 100) -> Peeked:
        """Jobs as they are, without taking them: of any state, or ready, delayed, in_flight or done."""
        return await self._caller.ask(queue_requests.peek(self.name, state, from_seq, limit))

    async def why(self, seq: int | None = None) -> JobState:
        """Why a job does not run, or without a seq: why the queue's next one does not. `because` has the sentences."""
        return await self._caller.ask(queue_requests.why(self.name, seq))

    # ---- steering ----

    async def pause(self, reason: str = "") -> QueueMode:
        """Hands nothing out until it is resumed; jobs can be put and finished."""
        return await self._caller.ask(queue_requests.pause(self.name, reason))

    async def resume(self) -> QueueMode:
        """Neither paused nor draining, whoever began it."""
        return await self._caller.ask(queue_requests.resume(self.name))

    async def drain(self, reason: str = "") -> QueueMode:
        """Takes nothing in until it is resumed; what is there is handed out."""
        return await self._caller.ask(queue_requests.drain(self.name, reason))

    async def retry(self, seqs: Sequence[int]) -> Steered:
        """Jobs that wait for a time are ready at once. Up to 1,000 seqs; `skipped` do not wait for a time."""
        return await self._caller.ask(queue_requests.steer(self.name, seqs, "ready"))

    async def delete(self, seqs: Sequence[int]) -> Steered:
        """Deletes jobs that wait, for good. Up to 1,000 seqs; `skipped` are held, or not there."""
        return await self._caller.ask(queue_requests.steer(self.name, seqs, "delete"))

    # ---- dead letters ----

    async def dead(self, *, from_seq: int = 0, limit: int | None = None) -> AsyncIterator[DeadLetter]:
        """The dead letters of this queue, oldest first."""
        topic, left, at = dead_letters_of(await self.stats()), limit, from_seq
        while left is None or left > 0:
            try:
                page = await self._client.fetch(topic, at)
            except TopicNotFound:
                return  # no job has died yet
            for record in page:
                letter = DeadLetter(record)
                if letter.queue == self.name and (left is None or left > 0):
                    left = None if left is None else left - 1
                    yield letter
            at = page.next_from_seq
            if page.caught_up:
                return

    async def redrive(self, seqs: Sequence[int] | None = None) -> Redriven:
        """Dead letters back into the queue, each once: those of these seqs, or all."""
        return await self._redrive(seqs, discard=False)

    async def discard(self, seqs: Sequence[int] | None = None) -> Redriven:
        """Deletes dead letters for good: those of these seqs, or all of this queue."""
        return await self._redrive(seqs, discard=True)

    async def _redrive(self, seqs: Sequence[int] | None, *, discard: bool) -> Redriven:
        todo = Redriving(dead_letters_of(await self.stats()), self.name, seqs, discard=discard)
        while (request := todo.next()) is not None:
            try:
                todo.answered(await self._caller.ask(request))
            except TopicNotFound as exc:
                todo.refused(exc)
        return todo.total

    # ---- schedules ----

    async def add_cron(
        self,
        name: str,
        schedule: str,
        data: Any = b"",
        *,
        timezone: str = "UTC",
        tag: str = "",
        priority: int = PRIORITY_DEFAULT,
        group: str = "",
    ) -> Schedule:
        """A job at each time that five fields name; see `topicd.Queue.add_cron`."""
        raw = to_bytes(data, self._serialize)
        request = queue_requests.add_cron(
            self.name, name, schedule, raw, timezone=timezone, tag=tag, priority=priority, group=group
        )
        await self.create()
        return await self._caller.ask(request)

    async def remove_cron(self, name: str) -> bool:
        """Ends a schedule; False: there was none of that name."""
        return await self._caller.ask(queue_requests.remove_cron(self.name, name))

    async def crons(self) -> list[Schedule]:
        """The schedules of this queue, by name."""
        return await self._caller.ask(queue_requests.list_cron(self.name))
