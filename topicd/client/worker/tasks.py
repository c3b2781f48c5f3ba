"""A function as a task, and how its arguments travel: the job's tag is the task's name, its data the JSON map
{"args": […], "kwargs": {…}}. So anything that can put a job can call a task.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Generic, ParamSpec, Protocol, TypedDict, TypeVar, Unpack

from topicd.client.blocking.job import Job
from topicd.client.core.encode import to_bytes
from topicd.client.core.jobs import OnConflict, Put, Until, job_options
from topicd.client.core.records import default_bytes
from topicd.errors import InvalidRequest

P = ParamSpec("P")
R = TypeVar("R")

_current: ContextVar[Job | None] = ContextVar("topicd_job", default=None)


def current_job() -> Job | None:
    """The job that the task which is running here was called for."""
    return _current.get()


class Retry(Exception):
    """Raised by a task: this delivery failed, the job comes again, after delay_ms or the queue's backoff."""

    def __init__(self, reason: str = "", *, delay_ms: int | None = None) -> None:
        super().__init__(reason)
        self.delay_ms = delay_ms


class GiveUp(Exception):
    """Raised by a task: no further delivery would help; the job goes to the dead letters."""


class PutOptions(TypedDict, total=False):
    """What `queue.put` takes beside the job."""

    delay_ms: int | None
    ready_at: datetime | int | None
    priority: int | None
    group: str | None
    unique: str | None
    until: Until
    unique_ms: int | None
    on_conflict: OnConflict


class Enqueues(Protocol):
    """Where tasks are put: a worker's queue, or nowhere in tests."""

    def enqueue(self, task: str, data: bytes, options: PutOptions) -> Put: ...


class Task(Generic[P, R]):
    """Made by `@worker.task`. Called, it is the function; `enqueue` puts a job that calls it in a worker.

    The options of `@worker.task(...)` are those of `queue.put`, for each job of the task; `options` gives others.
    """

    def __init__(self, home: Enqueues, function: Callable[P, R], name: str, options: PutOptions) -> None:
        job_options(**options)
        self.name = name
        self.function = function
        self.is_async = inspect.iscoroutinefunction(function)
        self._home = home
        self._options = options
        self._signature = inspect.signature(function)
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Put:
        """Puts a job that calls the function with these arguments, which must be JSON."""
        return self._home.enqueue(self.name, self.packed(*args, **kwargs), self._options)

    async def enqueue_async(self, *args: P.args, **kwargs: P.kwargs) -> Put:
        """The same, from a coroutine."""
        data = self.packed(*args, **kwargs)
        return await asyncio.to_thread(self._home.enqueue, self.name, data, self._options)

    def options(self, **options: Unpack[PutOptions]) -> Task[P, R]:
        """The same task with other options: `render.options(delay_ms=5_000).enqueue(9)`."""
        return Task(self._home, self.function, self.name, {**self._options, **options})

    def packed(self, *args: Any, **kwargs: Any) -> bytes:
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as exc:
            raise InvalidRequest(f"task {self.name!r} cannot be called so: {exc}") from None
        return to_bytes({"args": args, "kwargs": kwargs}, default_bytes)

    def unpacked(self, data: bytes) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of a job; raises GiveUp for what can never be called."""
        try:
            found = json.loads(data) if data else {}
            args, kwargs = found.get("args", []), found.get("kwargs", {})
            self._signature.bind(*args, **kwargs)
        except (ValueError, TypeError, AttributeError) as exc:
            raise GiveUp(f"these are no arguments of task {self.name!r}: {exc}") from None
        return args, kwargs


class Middleware:
    """What happens around each task. Subclass it and override what is needed; all of it runs where the task does: in
    its thread, or in the loop for coroutine functions."""

    def before(self, job: Job, task: str) -> None:
        """An exception here is the task's, which is not called then."""

    def after(self, job: Job, task: str, result: Any) -> None:
        """The task has returned; an exception here is the task's."""

    def error(self, job: Job, task: str, error: BaseException) -> None:
        """The task has failed, and the job is about to be given back. An exception here is logged."""
