"""A job as the asyncio face hands it out: the same promises as topicd.client.blocking.job."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from topicd.client.blocking.job import NOT_ITS_FAULT
from topicd.client.core.held import HeldJob, HeldJobs, Then
from topicd.client.core.jobs import Acked, NackKind
from topicd.client.core.queue_requests import reason_of

if TYPE_CHECKING:
    from types import TracebackType

# Who is cancelled is not to blame either.
NOT_ITS_FAULT_HERE = (*NOT_ITS_FAULT, asyncio.CancelledError)


class AsyncHolder(Protocol):
    """Through whom a job goes back: the queue for those that were claimed, the stream for those that were pushed."""

    async def _finish(self, job: AsyncJob, then: Then, wait: bool) -> bool: ...

    async def _finish_all(self, rows: bytes) -> Acked: ...

    async def _give_back(self, jobs: Sequence[AsyncJob], kind: NackKind, delay_ms: int | None, reason: str) -> bool: ...

    async def _keep(self, job: AsyncJob, lease_ms: int | None) -> bool: ...


class AsyncQueueHolder(AsyncHolder, Protocol):
    """The queue, as streams of its jobs see it."""

    async def _publish_then(self, job: HeldJob, then: Then) -> None: ...

    async def _still_counts(self, seq: int) -> bool: ...


class AsyncJob(HeldJob):
    """A job in hand; see `topicd.Job`."""

    __slots__ = ()
    _holder: AsyncHolder

    async def done(self, *, then: Then = (), wait: bool = True) -> bool:
        """Finishes it; see `topicd.Job.done`."""
        return await self._holder._finish(self, then, wait)

    async def fail(self, reason: str = "", *, delay_ms: int | None = None) -> bool:
        """Gives it back as failed; see `topicd.Job.fail`."""
        return await self._holder._give_back([self], "fail", delay_ms, reason)

    async def release(self, *, delay_ms: int | None = None, reason: str = "") -> bool:
        """Gives it back as if it had not been delivered. False: the lease was lost."""
        return await self._holder._give_back([self], "release", delay_ms, reason)

    async def dead(self, reason: str = "") -> bool:
        """To the dead letters at once. False: the lease was lost."""
        return await self._holder._give_back([self], "dead", None, reason)

    async def extend(self, lease_ms: int | None = None) -> bool:
        """The deadline becomes now + lease_ms, by default as long as the lease was. False: it was lost."""
        return await self._holder._keep(self, lease_ms)

    async def __aenter__(self) -> AsyncJob:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.settled:
            return
        if error is None:
            await self.done()
        elif isinstance(error, NOT_ITS_FAULT_HERE):
            await self.release()
        else:
            await self.fail(reason_of(error))


class AsyncJobs(HeldJobs[AsyncJob]):
    """Jobs of one claim: a sequence of `AsyncJob`."""

    async def done(self) -> Acked:
        """Finishes all of them with one request; `skipped` of the answer were not ours any more."""
        found: Acked = await self._holder._finish_all(self.rows)
        self.settled()
        return found
