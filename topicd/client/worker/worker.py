"""`topicd.Worker`: runs the tasks of a queue, several at once. Promise: after SIGTERM or SIGINT it takes no more jobs,
gives back at once what it has not begun, finishes what it has, and leaves; what is not finished within the time of
grace is given back.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar, Unpack, cast, overload

from topicd.client.blocking.client import Client, connect
from topicd.client.blocking.job import Job
from topicd.client.blocking.queue import Queue
from topicd.client.blocking.work import Work
from topicd.client.core.jobs import Put, bounded
from topicd.client.core.options import span
from topicd.client.worker.running import Runner
from topicd.client.worker.tasks import Middleware, PutOptions, Task
from topicd.client.worker.testing import Testing
from topicd.errors import InvalidRequest
from topicd.limits import CLAIM_MAX
from topicd.model import check_topic_name

P = ParamSpec("P")
R = TypeVar("R")
log = logging.getLogger(__name__)
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Worker:
    """Tasks of one queue. Made once per program, used by those who enqueue and by those who work.

    Plain functions run in threads, coroutine functions in one loop; `concurrency` is how many jobs are in hand at once,
    of both together. `target` and `token` are as in `topicd.connect`, which is called when the daemon is first needed.
    """

    def __init__(
        self,
        queue: str,
        *,
        concurrency: int = 8,
        target: str | os.PathLike[str] | None = None,
        token: str | None = None,
        client: Client | None = None,
        middleware: Sequence[Middleware] = (),
        lease_ms: int | None = None,
        grace: float = 30.0,
        node: str | None = None,
    ) -> None:
        self.queue_name = check_topic_name(queue)
        self.concurrency = bounded("concurrency", concurrency, 1, CLAIM_MAX)
        self.tasks: dict[str, Task[..., Any]] = {}
        self._middleware = list(middleware)
        self._lease_ms = lease_ms
        self._grace = span("grace", grace)
        self._node = node
        self._target, self._token = target, token
        self._given = client
        self._client: Client | None = None
        self._connecting = threading.Lock()
        self._testing: Testing | None = None
        self._work: Work | None = None
        self._stopping = False

    # ---- tasks ----

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...

    @overload
    def task(
        self, *, name: str | None = None, **options: Unpack[PutOptions]
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...

    def task(  # type: ignore[misc]  # options by name are any keywords to the type checker
        self, function: Callable[..., Any] | None = None, /, *, name: str | None = None, **options: Any
    ) -> Any:
        """Declares a function as a task, under its own name or `name`; options are those of `queue.put`."""

        def declare(function: Callable[P, R]) -> Task[P, R]:
            called = name or function.__name__
            if called in self.tasks:
                raise InvalidRequest(f"there is a task {called!r} already")
            made: Task[P, R] = Task(self, function, called, cast(PutOptions, options))
            self.tasks[called] = made
            return made

        return declare if function is None else declare(function)

    def use(self, middleware: Middleware) -> None:
        """Adds what happens around each task; the first that was added is the outermost."""
        self._middleware.append(middleware)

    def enqueue(self, task: str, data: bytes, options: PutOptions) -> Put:
        """Puts a job for a task by its name; `task.enqueue` is the typed way."""
        if self._testing is not None:
            return self._testing.put(task, data)
        return self.queue.put(data, tag=task, **options)

    @property
    def queue(self) -> Queue:
        """Its queue."""
        with self._connecting:
            client = self._given or self._client
            if client is None:
                client = self._client = connect(self._target, token=self._token)
        return client.queue(self.queue_name, node=self._node)

    @contextmanager
    def testing(self, *, run: bool = True) -> Iterator[Testing]:
        """Within it nothing is sent: tasks that are enqueued run in this thread at once, and what they raise is raised
        by `enqueue`; without `run` they wait for `run_all`."""
        self._testing = Testing(Runner(self.tasks, self._middleware), self.queue_name, run=run)
        try:
            yield self._testing
        finally:
            self._testing = None

    # ---- running ----

    def run(self, *, idle: float | None = None) -> None:
        """Works until it is stopped, by a signal if this is the main thread, or by `stop`; with `idle`, until no job
        has come for so many seconds."""
        if not self.tasks:
            raise InvalidRequest("the worker has no tasks: declare them with @worker.task")
        self._stopping = False
        runner = Runner(self.tasks, self._middleware)
        work = self._work = self.queue.work(max=self.concurrency, lease_ms=self._lease_ms, idle=idle)
        crew = Crew(runner, self.concurrency)
        log.info("worker serves", extra={"queue": self.queue_name, "tasks": sorted(self.tasks)})
        try:
            with _signals(self.stop):
                while not self._stopping:
                    try:
                        job = next(work)
                    except StopIteration:
                        break
                    crew.give(job)
                work.stop()
                with suppress(StopIteration):
                    next(work)  # Gives back what was not begun.
                if not crew.wait(self._grace):
                    log.warning("tasks are given back unfinished", extra={"queue": self.queue_name})
        finally:
            work.close()
            crew.end()
            self._work = None

    def stop(self) -> None:
        """Takes no more jobs; `run` returns when those in hand are finished. From any thread."""
        self._stopping = True
        if self._work is not None:
            self._work.stop()

    def close(self) -> None:
        """Closes the connection that it made. May be called twice."""
        client, self._client = self._client, None
        if client is not None:
            client.close()


@contextmanager
def _signals(stop: Callable[[], None]) -> Iterator[None]:
    """The first signal stops, the second interrupts. A thread hears the first: this one may be about to receive, where
    a handler in Python would have to wait until something comes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen: list[int] = []

    def handle(number: int, frame: Any) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)

    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    ear, mouth = socket.socketpair()
    mouth.setblocking(False)
    others = signal.set_wakeup_fd(mouth.fileno(), warn_on_full_buffer=False)
    listener = threading.Thread(target=_listen, args=(ear, others, stop), name="topicd stop", daemon=True)
    listener.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(others)
        for number, handler in before.items():
            signal.signal(number, handler)
        mouth.close()
        listener.join()
        ear.close()


def _listen(ear: socket.socket, others: int, stop: Callable[[], None]) -> None:
    """Each signal is a byte, written the moment it comes, whatever the other threads do."""
    while numbers := ear.recv(64):
        if others >= 0:
            with suppress(OSError):
                os.write(others, numbers)
        if not set(numbers).isdisjoint(_SIGNALS):
            stop()


class Crew:
    """Threads for plain functions and a loop for coroutine functions, each made when it is first needed. The threads
    are daemons: one that never ends does not keep the process."""

    def __init__(self, runner: Runner, most: int) -> None:
        self._runner = runner
        self._most = most
        self._todo: SimpleQueue[Job | None] = SimpleQueue()
        self._threads = 0
        self._idle = 0
        self._busy = 0
        self._changed = threading.Condition()
        self._loop: asyncio.AbstractEventLoop | None = None

    def give(self, job: Job) -> None:
        """Begins it; there are never more than `most`, because no more are pushed."""
        task = self._runner.task_of(job)
        with self._changed:
            self._busy += 1
        if task is not None and task.is_async:
            self._begin_async(job)
            return
        with self._changed:
            if self._idle == 0 and self._threads < self._most:
                self._threads += 1
                name = f"topicd task {self._threads}"
                threading.Thread(target=self._serve, name=name, daemon=True).start()
            else:
                self._idle -= 1
        self._todo.put(job)

    def _serve(self) -> None:
        while (job := self._todo.get()) is not None:
            self._runner.whole(job)
            with self._changed:
                self._idle += 1
                self._over()

    def _over(self) -> None:
        self._busy -= 1
        if not self._busy:
            self._changed.notify_all()

    def _begin_async(self, job: Job) -> None:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="topicd tasks", daemon=True).start()
        future = asyncio.run_coroutine_threadsafe(self._runner.whole_async(job, asyncio.to_thread), self._loop)
        future.add_done_callback(self._ended)

    def _ended(self, _: object) -> None:
        with self._changed:
            self._over()

    def wait(self, seconds: float) -> bool:
        """Until nothing is under way; False: the time was over before."""
        ends = time.monotonic() + seconds
        with self._changed:
            while self._busy:
                if not self._changed.wait(max(0.0, ends - time.monotonic())):
                    return not self._busy
        return True

    def end(self) -> None:
        for _ in range(self._threads):
            self._todo.put(None)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
