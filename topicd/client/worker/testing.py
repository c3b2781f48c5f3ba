"""Tasks in process, for tests: arguments travel as they would, nothing else does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from topicd.client.blocking.job import Job
from topicd.client.core.held import Then, held_jobs, merged
from topicd.client.core.jobs import Acked, NackKind, Put
from topicd.client.worker.running import Runner
from topicd.client.worker.tasks import GiveUp, Retry
from topicd.errors import InvalidRequest


@dataclass
class Ran:
    """A job of a test. `outcome` is waiting, done, release, fail or dead; `then` what it led to, by topic."""

    job: Job
    outcome: str = "waiting"
    reason: str = ""
    result: Any = None
    then: dict[str, list[Any]] | None = None


class Testing:
    """Made by `worker.testing()`. `jobs` are all that were put, in order."""

    __test__ = False  # pytest takes it for a test

    def __init__(self, runner: Runner, queue: str, *, run: bool) -> None:
        self.jobs: list[Ran] = []
        self._runner = runner
        self._queue = queue
        self._run = run

    def put(self, task: str, data: bytes) -> Put:
        """A job for a task, which runs at once if it was so asked."""
        seq = len(self.jobs) + 1
        row, record = (seq, seq, 0, 1), (seq, 0, None, task.encode(), None, data)
        (job,) = held_jobs(Job, self, self._queue, 0.0, [row], [record])
        self.jobs.append(Ran(job))
        if self._run:
            self._one(self.jobs[-1])
        return Put(seq)

    def run_all(self) -> None:
        """Runs what waits, also what is put by that."""
        for ran in self.jobs:
            if ran.outcome == "waiting":
                self._one(ran)

    async def run_all_async(self) -> None:
        """The same within a loop."""
        for ran in self.jobs:
            if ran.outcome == "waiting":
                if self._is_async(ran):
                    try:
                        self._ended(ran, await self._runner.run_async(ran.job))
                    except BaseException as exc:
                        self._failed(ran, exc)
                else:
                    self._one(ran)

    def _is_async(self, ran: Ran) -> bool:
        task = self._runner.task_of(ran.job)
        return task is not None and task.is_async

    def _one(self, ran: Ran) -> None:
        try:
            self._ended(ran, self._run_async(ran) if self._is_async(ran) else self._runner.run(ran.job))
        except BaseException as exc:
            self._failed(ran, exc)

    def _failed(self, ran: Ran, error: BaseException) -> None:
        """As a worker ends it. What a task does not raise on purpose is raised where the test can see it."""
        self._runner.failed(ran.job, error)
        if not isinstance(error, Retry | GiveUp):
            raise error

    def _run_async(self, ran: Ran) -> Any:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self._runner.run_async(ran.job))
        raise InvalidRequest("a coroutine function cannot run in a loop that runs: testing(run=False), run_all_async")

    def _ended(self, ran: Ran, result: Any) -> None:
        ran.result = result
        if ran.outcome == "waiting":
            ran.outcome = "done"

    # ---- what jobs go back through: job.Holder ----

    def _of(self, job: Job) -> Ran:
        return self.jobs[job.seq - 1]

    def _finish(self, job: Job, then: Then, wait: bool) -> bool:
        job.check_open()
        job.settled = True
        self._of(job).outcome, self._of(job).then = "done", merged(then)
        return True

    def _finish_all(self, rows: bytes) -> Acked:
        raise InvalidRequest("jobs of a test are finished one by one")

    def _give_back(self, jobs: Sequence[Job], kind: NackKind, delay_ms: int | None, reason: str) -> bool:
        for job in jobs:
            job.check_open()
            job.settled = True
            self._of(job).outcome, self._of(job).reason = kind, reason
        return True

    def _keep(self, job: Job, lease_ms: int | None) -> bool:
        return True
