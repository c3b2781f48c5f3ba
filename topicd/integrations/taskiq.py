"""A taskiq broker on a work queue: `broker = TopicdBroker("tasks")`, and everything else of taskiq as it is. Needs
`pip install topicd[taskiq]`.

Promise: at least once. A task's message is acknowledged when taskiq says so, by default when it has run; one whose
worker dies is delivered again at once; one that no task here can take fails, where taskiq would drop it. Labels of a
task become options of its job: `delay` (seconds), `priority` (0 to 9), `group`, `unique`.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from taskiq import AckableMessage, AsyncBroker, BrokerMessage

from topicd.aio import AsyncClient, AsyncJob, AsyncQueue, AsyncWork, connect
from topicd.errors import InvalidRequest

log = logging.getLogger(__name__)

LABELS = "taskiq"  # in the meta of a job


class TopicdBroker(AsyncBroker):
    """`queue` is created when it is first used. `max_jobs` is how many messages a worker has in hand at once; it should
    be at least taskiq's `--max-async-tasks`. `target` and `token` are as in `topicd.connect`."""

    def __init__(
        self,
        queue: str,
        *,
        target: str | os.PathLike[str] | None = None,
        token: str | None = None,
        max_jobs: int = 100,
        lease_ms: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._name = queue
        self._target = target
        self._token = token
        self._max_jobs = max_jobs
        self._lease_ms = lease_ms
        self._client: AsyncClient | None = None
        self._work: AsyncWork | None = None

    async def startup(self) -> None:
        """Connects."""
        await super().startup()
        if self._client is None:
            self._client = await connect(self._target, token=self._token)

    async def shutdown(self) -> None:
        """Gives back what was not finished, and closes the connection."""
        if self._work is not None:
            await self._work.close()
            self._work = None
        if self._client is not None:
            await self._client.close()
            self._client = None
        await super().shutdown()

    def _queue(self) -> AsyncQueue:
        if self._client is None:
            raise InvalidRequest("the broker was not started: await broker.startup()")
        return self._client.queue(self._name)

    async def kick(self, message: BrokerMessage) -> None:
        """Puts a task's message; returns when it is stored."""
        meta = {LABELS: json.dumps({"id": message.task_id, "labels": message.labels}, default=str)}
        await self._queue().put(message.message, tag=message.task_name, meta=meta, **job_options(message.labels))

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Messages as they come, each with the function that finishes its job."""
        self._work = work = self._queue().work(max=self._max_jobs, lease_ms=self._lease_ms)
        # Not by a loop of its own: jobs are finished long after the next one was asked for.
        try:
            while True:
                try:
                    job = await work.__anext__()
                except StopAsyncIteration:
                    return
                if why := self._unfit(job):
                    log.warning("a job fails", extra={"queue": self._name, "seq": job.seq, "why": why})
                    await job.fail(why)
                    continue
                yield AckableMessage(data=job.data, ack=_finishing(job))
        finally:
            await work.close()

    def _unfit(self, job: AsyncJob) -> str:
        """Why no task can take it; empty: one can."""
        try:
            name = self.formatter.loads(message=job.data).task_name
        except Exception as exc:
            return f"it is no message of taskiq: {type(exc).__name__}"
        return "" if self.find_task(name) is not None else f"there is no task {name!r} here"


def _finishing(job: AsyncJob) -> Callable[[], Awaitable[None]]:
    async def ack() -> None:
        if not job.settled:
            await job.done()

    return ack


def job_options(labels: dict[str, Any]) -> dict[str, Any]:
    """Labels that mean something to a queue."""
    options: dict[str, Any] = {}
    try:
        if labels.get("delay") is not None:
            options["delay_ms"] = round(float(labels["delay"]) * 1000)
        if labels.get("priority") is not None:
            options["priority"] = int(labels["priority"])
    except (TypeError, ValueError) as exc:
        raise InvalidRequest(f"the labels delay and priority are numbers: {exc}") from None
    for name in ("group", "unique"):
        if labels.get(name):
            options[name] = str(labels[name])
    return options
