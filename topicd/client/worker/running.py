"""One task run for one job, and what becomes of the job. Promise: every job that was begun ends done, given back, or,
if the process dies, released by the end of its connection.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from topicd.client.blocking.job import Job
from topicd.client.core.queue_requests import reason_of
from topicd.client.worker.tasks import GiveUp, Middleware, Retry, Task, _current
from topicd.errors import Conflict, TopicdError

log = logging.getLogger(__name__)


class Runner:
    def __init__(self, tasks: Mapping[str, Task[..., Any]], middleware: Sequence[Middleware]) -> None:
        self._tasks = tasks
        self._middleware = middleware

    def task_of(self, job: Job) -> Task[..., Any] | None:
        """By the job's tag; without one, the only task there is."""
        if not job.tag and len(self._tasks) == 1:
            return next(iter(self._tasks.values()))
        return self._tasks.get(job.tag or "")

    def run(self, job: Job) -> Any:
        """Of a plain function: runs it and returns its result, or raises what it raised."""
        task, args, kwargs = self._begin(job)
        with _as_current(job):
            self._before(job, task)
            result = task.function(*args, **kwargs)
            self._after(job, task, result)
        return result

    async def run_async(self, job: Job) -> Any:
        """The same of a coroutine function."""
        task, args, kwargs = self._begin(job)
        with _as_current(job):
            self._before(job, task)
            result = await task.function(*args, **kwargs)
            self._after(job, task, result)
        return result

    def _begin(self, job: Job) -> tuple[Task[..., Any], list[Any], dict[str, Any]]:
        task = self.task_of(job)
        if task is None:
            raise LookupError(f"there is no task {job.tag!r} here, only {', '.join(sorted(self._tasks)) or 'none'}")
        return (task, *task.unpacked(job.data))

    def _before(self, job: Job, task: Task[..., Any]) -> None:
        for middleware in self._middleware:
            middleware.before(job, task.name)

    def _after(self, job: Job, task: Task[..., Any], result: Any) -> None:
        for middleware in reversed(self._middleware):
            middleware.after(job, task.name, result)

    # ---- the job's end ----

    def done(self, job: Job) -> None:
        """The task has returned."""
        if not job.settled:
            self._settle(job, lambda: job.done(wait=False))

    def failed(self, job: Job, error: BaseException) -> None:
        """The task has raised."""
        for middleware in reversed(self._middleware):
            try:
                middleware.error(job, job.tag or "", error)
            except Exception:
                log.exception("middleware failed", extra={"queue": job.queue, "seq": job.seq})
        if job.settled:
            return
        if isinstance(error, Retry):
            self._settle(job, lambda: job.fail(str(error), delay_ms=error.delay_ms))
        elif isinstance(error, GiveUp):
            self._settle(job, lambda: _given_up(job, str(error)))
        elif isinstance(error, Exception):
            log.warning("task failed", exc_info=error, extra={"queue": job.queue, "seq": job.seq, "task": job.tag})
            self._settle(job, lambda: job.fail(reason_of(error)))
        else:
            self._settle(job, job.release)

    def _settle(self, job: Job, how: Callable[[], bool]) -> None:
        try:
            if not how():
                log.warning("the job had been taken away", extra={"queue": job.queue, "seq": job.seq})
        except TopicdError as exc:
            job.settled = True  # Its lease ends, extended by nobody, and it is delivered again.
            log.warning("the job's end could not be told", extra={"queue": job.queue, "seq": job.seq, "why": str(exc)})

    def whole(self, job: Job) -> None:
        """Runs the plain function of a job, and ends the job."""
        try:
            self.run(job)
        except BaseException as exc:
            self.failed(job, exc)
        else:
            self.done(job)

    def whole_async(self, job: Job, elsewhere: Callable[[Callable[[], None]], Any]) -> Coroutine[Any, Any, None]:
        """The same of a coroutine function; `elsewhere` runs what blocks."""

        async def run() -> None:
            try:
                await self.run_async(job)
            except BaseException as exc:
                error = exc
                await elsewhere(lambda: self.failed(job, error))
            else:
                self.done(job)

        return run()


def _given_up(job: Job, reason: str) -> bool:
    try:
        return job.dead(reason)
    except Conflict as exc:
        # A queue without dead letters: it counts as failed and comes again, but it keeps no place here.
        log.warning("the job comes again", extra={"queue": job.queue, "seq": job.seq, "why": str(exc)})
        return job.fail(reason)


@contextmanager
def _as_current(job: Job) -> Iterator[None]:
    token = _current.set(job)
    try:
        yield
    finally:
        _current.reset(token)
