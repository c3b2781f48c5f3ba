"""A work queue as the blocking face sees it: put, claim, finish, look, steer. Decisions: docs/adr/0013-queues.md.

Promise: a job that was put is delivered until somebody finishes it, gives it up or it runs out of deliveries; one that
was finished is never delivered again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from topicd._native import claim_next
from topicd._native.interface import Next
from topicd.client.blocking.bulk import publish_batches
from topicd.client.blocking.caller import Caller
from topicd.client.blocking.connection import Connection
from topicd.client.blocking.job import Job, Jobs
from topicd.client.blocking.operations import Operations
from topicd.client.blocking.work import Work
from topicd.client.core import queue_requests, requests
from topicd.client.core.encode import Serializer, encode_list, encode_one, to_bytes
from topicd.client.core.held import Finishing, HeldJob, Then, held_keys
from topicd.client.core.jobs import (
    Acked,
    Claimed,
    NackKind,
    OnConflict,
    OneClaimed,
    Put,
    Until,
    ack_body,
    bounded,
    claim_body,
    job_options,
    lease_of,
    leased_rows,
    next_request,
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
from topicd.ipc.protocol.codec import Appended, checked_key
from topicd.ipc.protocol.cutter import Arrived
from topicd.ipc.protocol.wire import FLAG_DONE, OP_ACK, OP_CLAIM
from topicd.limits import CLAIM_MAX, PRIORITY_DEFAULT
from topicd.model import TopicConfig, check_topic_name


class Queue:
    """Made by `client.queue`; safe to use from many threads. The queue is created when something is first put into it
    or claimed from it, or by `configure`.

    >>> jobs = client.queue("thumbs")
    >>> put = jobs.put({"file": 9}, delay_ms=5_000, priority=7)
    >>> jobs.stats().delayed
    1
    """

    def __init__(self, client: Operations, name: str, *, node: str, serialize: Serializer) -> None:
        self.name = check_topic_name(name)
        self.node = node
        self._worker = worker_name(node)
        self._client = client
        self._serialize = serialize
        self._next_request: tuple[int, bytes] = (0, b"")  # of the topic with this id

    @property
    def _caller(self) -> Caller:
        return self._client.caller

    # ---- making ----

    def configure(self, **config: Any) -> TopicConfig:
        """Creates the queue or changes the given fields; returns the whole configuration.

        >>> client.queue("thumbs").configure(lease_ms=60_000).lease_ms
        60000
        """
        return self._caller.ask(requests.configure(self.name, of_queue(config)))

    def create(self) -> int:
        """Creates the queue with defaults if there is none; its id."""
        return self._caller.with_topic(self.name, lambda _, topic_id: topic_id, create=True, queue=True)

    # ---- putting ----

    def put(
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
        """Puts one job into the queue and returns where it is.

        It may be claimed after delay_ms, or from ready_at on (a datetime or ms). `priority` is 0 to 9, 9 goes first, 4
        is the default. Groups are served in turn, each within its limits. While a job with the key `unique` is there
        (`until` it is done, has started, or for `unique_ms`), a second one is dropped, replaces it or only sets its
        time anew, as `on_conflict` says; `put.new` tells. `key` is an idempotency key as in `publish`.

        >>> jobs = client.queue("thumbs")
        >>> first, second = jobs.put(b"a", unique="file:9"), jobs.put(b"b", unique="file:9")
        >>> second.new, second.seq == first.seq
        (False, True)
        """
        options = job_options(
            delay_ms=delay_ms,
            ready_at=ready_at,
            priority=priority,
            group=group,
            unique=unique,
            until=until,
            unique_ms=unique_ms,
            on_conflict=on_conflict,
        )
        frames = encode_one(data, tag, self._client.node, meta, self._serialize)
        named = b"" if key is None else checked_key(key)
        answer = self._caller.append(self.name, frames, 1, named, options=packed_options(options, 1))
        return Put(answer.first_seq, not answer.conflict)

    def put_many(
        self,
        jobs: Sequence[Any],
        *,
        tag: str | bytes | None = None,
        delay_ms: int | None = None,
        ready_at: datetime | int | None = None,
        priority: int | None = None,
        group: str | None = None,
    ) -> Published:
        """Puts a list of jobs, as `publish_many` takes it, with the same options for all of them. Up to 10,000 jobs
        and 64 MiB are one batch: all of it is stored or nothing.

        >>> client.queue("thumbs").put_many([b"a", b"b", b"c"], priority=7).count
        3
        """
        options = job_options(delay_ms=delay_ms, ready_at=ready_at, priority=priority, group=group)
        batches = encode_list(jobs, tag, None, self._client.node, self._serialize)
        if len(batches) > 1 and not options:
            self.create()
            return publish_batches(self._caller, self.name, batches)
        first = last = count = 0
        for frames, jobs_in_it in batches:
            answer = self._append(frames, jobs_in_it, packed_options(options, jobs_in_it), count)
            first, last = first or answer.first_seq, answer.first_seq + answer.stored - 1
            count += jobs_in_it
        return Published(first, last, count)

    def _append(self, frames: bytearray, count: int, options: bytes, before: int) -> Appended:
        try:
            return self._caller.append(self.name, frames, count, options=options)
        except TopicdError as exc:
            if before:
                exc.detail["stored"] = before
            raise

    # ---- taking ----

    def claim(self, max: int = 1, *, wait: float = 0.0, lease_ms: int | None = None, done: Any = None) -> Jobs:
        """Up to `max` jobs, each leased to this worker for lease_ms (the queue's, if not given); perhaps none. `wait`
        is how long to wait for a first one. Leases are not extended by themselves: `job.extend`, or `work`.

        `done` finishes jobs with the same request, as `ack` does, before it takes others: a loop over single jobs
        takes half the time. `finished` of the answer says what became of them.

        >>> jobs = client.queue("thumbs")
        >>> put = jobs.put_many([b"a", b"b"])
        >>> [job] = jobs.claim()
        >>> following = jobs.claim(done=job)
        >>> [job.data for job in following], following.finished.acked
        ([b'b'], 1)
        """
        if wait == 0 and lease_ms is None and type(done) is Job and max == 1 and type(max) is int and claim_next:
            return self._claim_next(done)
        most, lease = bounded("max", max, 1, CLAIM_MAX), lease_of(lease_ms)
        ending = None if done is None else Finishing(done)
        if wait == 0:
            found = self._claim(most, lease, 0, ending)
        else:
            waits = wait_times(self._caller.tempo, wait)
            found = self._claim(most, lease, next(waits), ending)
            for wait_ms in waits if not found.count else ():
                found = self._claim(most, lease, wait_ms, None)._replace(finished=found.finished)
                if found.count:
                    break
        return Jobs(Job, self, self.name, self._caller.tempo.monotonic(), found)

    def _claim(self, most: int, lease: int, wait_ms: int, ending: Finishing | None) -> Claimed:
        rows, flags = (b"", 0) if ending is None else (ending.rows, FLAG_DONE)

        sent = 0

        def attempt(connection: Connection, topic_id: int) -> Claimed:
            nonlocal sent
            sent += 1
            body = claim_body(topic_id, most, lease, wait_ms, self._worker, rows)
            buffer, start, end = connection.exchange_small(OP_CLAIM, body, flags)
            raw = bytes(memoryview(buffer)[start:end])
            return parse_claimed(raw, 0, len(raw), done=bool(flags))

        caller = self._caller
        timeout = caller.timeout + wait_ms / 1000 if wait_ms else caller.timeout
        found = caller.with_queue(self.name, attempt, create=True, timeout=timeout)
        if ending is not None:
            if sent > 1 and found.finished.skipped:
                found = found._replace(finished=self._counted(found.finished))
            ending.answered(found.finished)
        return found

    def _claim_next(self, job: Job) -> Jobs:
        """`claim(done=job)`, where every microsecond counts."""
        job.check_open()
        caller, sent = self._caller, 0

        def attempt(connection: Connection, topic_id: int) -> Next | Claimed:
            nonlocal sent
            sent += 1
            known, request = self._next_request
            if known != topic_id:
                request = next_request(topic_id, self._worker)
                self._next_request = (topic_id, request)
            answer = connection.next_job(request, job.seq, job.lease)
            if not isinstance(answer, Arrived):
                return answer
            body = answer.body()
            return parse_claimed(body, 0, len(body), done=True)

        found = caller.with_queue(self.name, attempt, create=True)
        job.settled = True
        if not isinstance(found, Claimed):
            job.lost = False
            return Jobs(Job, self, self.name, caller.tempo.monotonic(), OneClaimed(found))
        if sent > 1 and found.finished.skipped:
            found = found._replace(finished=self._counted(found.finished))
        job.lost = bool(found.finished.skipped)
        return Jobs(Job, self, self.name, caller.tempo.monotonic(), found)

    def work(self, max: int = 1, *, lease_ms: int | None = None, idle: float | None = None) -> Work:
        """Jobs as they come, up to `max` of them here at once; iterate it. Leases are extended while the process lives,
        and what is here is given back at once when it ends.

        Leaving the loop by an exception fails the job in hand with it as the reason; by `break`, the job is released.
        With `idle` the loop ends when no job has come for so many seconds.

        >>> jobs = client.queue("thumbs")
        >>> put = jobs.put_many([b"a", b"b"])
        >>> for job in jobs.work(max=8, idle=0):
        ...     print(job.data, job.done())
        b'a' True
        b'b' True
        """
        most, lease = bounded("max", max, 1, CLAIM_MAX), lease_of(lease_ms)
        return Work(self._caller, self, self.name, self.node, most, lease, idle)

    # ---- giving back ----

    def ack(self, jobs: Any) -> Acked:
        """Finishes jobs: `Job`s, (seq, lease) pairs, or seqs that this worker holds. `skipped` were not held."""
        keys = held_keys(jobs)
        node = b"" if all(lease for _, lease in keys) else self._worker
        return all_acked([self._ack(piece, node) for piece in row_pieces(leased_rows(keys))])

    def nack(self, jobs: Any, kind: NackKind = "fail", *, delay_ms: int | None = None, reason: str = "") -> Nacked:
        """Gives jobs back: `release` as if they had not been delivered, `fail` counted and after the backoff (or
        delay_ms), `dead` to the dead letters."""
        total = Nacked(0, [], [])
        for some in key_pieces(held_keys(jobs)):
            request = queue_requests.nack(
                self.name, some, kind, delay_ms=delay_ms, reason=reason, node=holder_of(some, self.node)
            )
            found = self._caller.ask(request)
            total = Nacked(total.nacked + found.nacked, total.skipped + found.skipped, total.dead + found.dead)
        return total

    def extend(self, jobs: Any, lease_ms: int | None = None) -> Extended:
        """The deadlines become now + lease_ms (the queue's, if not given); `skipped` are not held any more."""
        length = self.stats().config.lease_ms if lease_ms is None else lease_ms
        total = Extended(0, [], {})
        for some in key_pieces(held_keys(jobs)):
            request = queue_requests.extend(self.name, some, length, node=holder_of(some, self.node))
            found = self._caller.ask(request)
            total = Extended(
                total.extended + found.extended, total.skipped + found.skipped, {**total.deadlines, **found.deadlines}
            )
        return total

    def _ack(self, rows: bytes, node: bytes = b"") -> Acked:
        sent = 0

        def attempt(connection: Connection, topic_id: int) -> Acked:
            nonlocal sent
            sent += 1
            return parse_acked(*connection.exchange_small(OP_ACK, ack_body(topic_id, rows, node)))

        found = self._caller.with_queue(self.name, attempt, create=False)
        return self._counted(found) if sent > 1 and found.skipped else found

    def _counted(self, found: Acked) -> Acked:
        """What was sent again, because the first time was not answered, may have counted the first time."""
        done = {seq for seq in found.skipped if self._still_counts(seq)}
        left = [seq for seq in found.skipped if seq not in done]
        return found._replace(acked=found.acked + len(done), skipped=left)

    # ---- of jobs that were claimed here: see job.Holder ----

    def _finish(self, job: Job, then: Then, wait: bool) -> bool:
        """For jobs of this queue."""
        job.check_open()
        if then:
            self._publish_then(job, then)
        ours = not self._ack(leased_rows([job.key])).skipped
        job.settled, job.lost = True, not ours
        return ours

    def _finish_all(self, rows: bytes) -> Acked:
        """For jobs of this queue."""
        return all_acked([self._ack(piece) for piece in row_pieces(rows)])

    def _give_back(self, jobs: Sequence[Job], kind: NackKind, delay_ms: int | None, reason: str) -> bool:
        """For jobs of this queue."""
        for job in jobs:
            job.check_open()
        found = self.nack(jobs, kind, delay_ms=delay_ms, reason=reason)
        for job in jobs:
            job.settled, job.lost = True, job.seq in found.skipped
        return not found.skipped

    def _keep(self, job: Job, lease_ms: int | None) -> bool:
        """For jobs of this queue."""
        job.check_open()
        found = self.extend(job, lease_ms)
        if job.seq in found.deadlines:
            job.deadline, job.held_at = found.deadlines[job.seq], self._caller.tempo.monotonic()
        job.lost = bool(found.skipped)
        return not job.lost

    def _publish_then(self, job: HeldJob, then: Then) -> None:
        """Stores what a job leads to, once, whoever does it how often."""
        batches = encoded_then(then, self._client.node, self._serialize)
        producer = job_producer(self.create())
        for topic, (frames, count) in batches.items():

            def attempt(connection: Connection, topic_id: int, frames: bytearray = frames, count: int = count) -> None:
                connection.append(topic_id, producer, job.seq, count, frames)

            self._caller.with_topic(topic, attempt, create=True)

    def _still_counts(self, seq: int) -> bool:
        """Of a job whose acknowledgement was sent and not answered: it is finished."""
        return self._caller.ask(queue_requests.why(self.name, seq)).state in DONE_STATES

    # ---- looking ----

    def stats(self) -> QueueStats:
        """The queue's counters."""
        return self._caller.ask(queue_requests.stats(self.name))

    def peek(self, state: str = "any", *, from_seq: int = 0, limit: int = 100) -> Peeked:
        """Jobs as they are, without taking them: of any state, or ready, delayed, in_flight or done."""
        return self._caller.ask(queue_requests.peek(self.name, state, from_seq, limit))

    def why(self, seq: int | None = None) -> JobState:
        """Why a job does not run, or without a seq: why the queue's next one does not. `because` has the sentences."""
        return self._caller.ask(queue_requests.why(self.name, seq))

    # ---- steering ----

    def pause(self, reason: str = "") -> QueueMode:
        """Hands nothing out until it is resumed; jobs can be put and finished."""
        return self._caller.ask(queue_requests.pause(self.name, reason))

    def resume(self) -> QueueMode:
        """Neither paused nor draining, whoever began it."""
        return self._caller.ask(queue_requests.resume(self.name))

    def drain(self, reason: str = "") -> QueueMode:
        """Takes nothing in until it is resumed; what is there is handed out."""
        return self._caller.ask(queue_requests.drain(self.name, reason))

    def retry(self, seqs: Sequence[int]) -> Steered:
        """Jobs that wait for a time are ready at once. Up to 1,000 seqs; `skipped` do not wait for a time."""
        return self._caller.ask(queue_requests.steer(self.name, seqs, "ready"))

    def delete(self, seqs: Sequence[int]) -> Steered:
        """Deletes jobs that wait, for good. Up to 1,000 seqs; `skipped` are held, or not there."""
        return self._caller.ask(queue_requests.steer(self.name, seqs, "delete"))

    # ---- dead letters ----

    def dead(self, *, from_seq: int = 0, limit: int | None = None) -> Iterator[DeadLetter]:
        """The dead letters of this queue, oldest first."""
        topic, left, at = dead_letters_of(self.stats()), limit, from_seq
        while left is None or left > 0:
            try:
                page = self._client.fetch(topic, at)
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

    def redrive(self, seqs: Sequence[int] | None = None) -> Redriven:
        """Dead letters back into the queue, each once: those of these seqs, or all."""
        return self._redrive(seqs, discard=False)

    def discard(self, seqs: Sequence[int] | None = None) -> Redriven:
        """Deletes dead letters for good: those of these seqs, or all of this queue."""
        return self._redrive(seqs, discard=True)

    def _redrive(self, seqs: Sequence[int] | None, *, discard: bool) -> Redriven:
        todo = Redriving(dead_letters_of(self.stats()), self.name, seqs, discard=discard)
        while (request := todo.next()) is not None:
            try:
                todo.answered(self._caller.ask(request))
            except TopicNotFound as exc:
                todo.refused(exc)
        return todo.total

    # ---- schedules ----

    def add_cron(
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
        """A job at each time that five fields name (minute, hour, day, month, weekday), put by the daemon itself, once
        for each time whatever restarts. A schedule of that name is replaced."""
        raw = to_bytes(data, self._serialize)
        request = queue_requests.add_cron(
            self.name, name, schedule, raw, timezone=timezone, tag=tag, priority=priority, group=group
        )
        self.create()
        return self._caller.ask(request)

    def remove_cron(self, name: str) -> bool:
        """Ends a schedule; False: there was none of that name."""
        return self._caller.ask(queue_requests.remove_cron(self.name, name))

    def crons(self) -> list[Schedule]:
        """The schedules of this queue, by name."""
        return self._caller.ask(queue_requests.list_cron(self.name))
