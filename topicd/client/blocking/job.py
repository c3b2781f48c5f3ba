"""A job as the blocking face hands it out. Promise: what `done` has answered with True is finished for good and never
delivered again; a job whose lease was lost is left to whoever has it now.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from topicd.client.core.held import HeldJob, HeldJobs, Then
from topicd.client.core.jobs import Acked, NackKind
from topicd.client.core.queue_requests import reason_of

if TYPE_CHECKING:
    from types import TracebackType


class Holder(Protocol):
    """Through whom a job goes back: the queue for those that were claimed, the stream for those that were pushed."""

    def _finish(self, job: Job, then: Then, wait: bool) -> bool: ...

    def _finish_all(self, rows: bytes) -> Acked: ...

    def _give_back(self, jobs: Sequence[Job], kind: NackKind, delay_ms: int | None, reason: str) -> bool: ...

    def _keep(self, job: Job, lease_ms: int | None) -> bool: ...


class QueueHolder(Holder, Protocol):
    """The queue, as streams of its jobs see it."""

    def _publish_then(self, job: HeldJob, then: Then) -> None: ...

    def _still_counts(self, seq: int) -> bool: ...


# What is not the job's fault when it ends a program or a loop.
NOT_ITS_FAULT = (KeyboardInterrupt, SystemExit, GeneratorExit)


class Job(HeldJob):
    """A job in hand: a record, and a lease on it. As a context it is done at the end, failed with the exception as its
    reason, unless it was settled before.

    >>> jobs = client.queue("thumbs")
    >>> put = jobs.put({"file": 9})
    >>> job = jobs.claim()[0]
    >>> job.json(), job.deliveries, job.done()
    ({'file': 9}, 1, True)
    """

    __slots__ = ()
    _holder: Holder

    def done(self, *, then: Then = (), wait: bool = True) -> bool:
        """Finishes it. False: the lease was lost, the job is somebody else's or was given up.

        `then` is what it leads to: a list of (topic, list of records), stored before the job is finished, once however
        often the job is delivered. Without `wait` the acknowledgement goes out with others and True only means that
        it was ours as far as was known; whoever iterates `work` is told of losses by `work.lost`.
        """
        return self._holder._finish(self, then, wait)

    def fail(self, reason: str = "", *, delay_ms: int | None = None) -> bool:
        """Gives it back as failed: it counts, and comes again after the queue's backoff, or delay_ms. False: the lease
        was lost."""
        return self._holder._give_back([self], "fail", delay_ms, reason)

    def release(self, *, delay_ms: int | None = None, reason: str = "") -> bool:
        """Gives it back as if it had not been delivered. False: the lease was lost."""
        return self._holder._give_back([self], "release", delay_ms, reason)

    def dead(self, reason: str = "") -> bool:
        """To the dead letters at once. False: the lease was lost."""
        return self._holder._give_back([self], "dead", None, reason)

    def extend(self, lease_ms: int | None = None) -> bool:
        """The deadline becomes now + lease_ms, by default as long as the lease was. False: it was lost."""
        return self._holder._keep(self, lease_ms)

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.settled:
            return
        if error is None:
            self.done()
        elif isinstance(error, NOT_ITS_FAULT):
            self.release()
        else:
            self.fail(reason_of(error))


class Jobs(HeldJobs[Job]):
    """Jobs of one claim: a sequence of `Job`."""

    def done(self) -> Acked:
        """Finishes all of them with one request; `skipped` of the answer were not ours any more."""
        found = self._holder._finish_all(self.rows)
        self.settled()
        acked: Acked = found
        return acked
