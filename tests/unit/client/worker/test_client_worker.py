"""Functions as tasks: enqueued, run, finished, failed, stopped, and run in process by tests."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

import topicd
from tests.support.fakequeue import FakeQueue
from tests.support.fakeserver import FakeServer
from topicd.client.worker.running import Runner
from topicd.errors import InvalidRequest, StorageFailed


def queue_of(server: FakeServer) -> FakeQueue:
    found: FakeQueue = server.topics["q"].queue
    return found


@pytest.fixture
def worker(client: topicd.Client) -> topicd.Worker:
    return topicd.Worker("q", concurrency=4, client=client)


def test_tasks_run_in_threads_and_in_a_loop(worker: topicd.Worker, server: FakeServer) -> None:
    seen: list[Any] = []

    @worker.task
    def render(file: int, *, size: str = "s") -> None:
        seen.append((file, size, threading.current_thread().name))

    @worker.task(name="fetch-it", priority=7)
    async def fetch(url: str) -> None:
        await asyncio.sleep(0)
        seen.append((url, threading.current_thread().name))

    assert render.enqueue(9, size="l").new
    assert fetch.enqueue("u").seq == 2
    assert queue_of(server).options[2] == {"priority": 7}
    worker.run(idle=0.2)
    assert sorted(map(str, seen)) == ["('u', 'topicd tasks')", "(9, 'l', 'topicd task 1')"]
    assert queue_of(server).counts["acked"] == 2


def test_a_task_is_still_the_function(worker: topicd.Worker) -> None:
    @worker.task
    def double(n: int) -> int:
        """Twice."""
        return 2 * n

    assert double(4) == 8
    assert double.__doc__ == "Twice."


def test_arguments_that_do_not_fit_are_refused_when_they_are_enqueued(worker: topicd.Worker) -> None:
    @worker.task
    def render(file: int) -> None: ...

    with pytest.raises(InvalidRequest, match="render"):
        render.enqueue()  # type: ignore[call-arg]
    with pytest.raises(InvalidRequest, match="serialised"):
        render.enqueue(object())  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="already"):
        worker.task(name="render")(lambda: None)
    with pytest.raises(InvalidRequest):
        worker.task(priority=11)(lambda: None)
    with pytest.raises(InvalidRequest, match="no tasks"):
        topicd.Worker("q").run()


def test_what_a_task_raises_becomes_of_its_job(worker: topicd.Worker, server: FakeServer) -> None:
    worker.queue.configure(dead_letter="q.dead")

    @worker.task
    def plain() -> None:
        raise ValueError("oh")

    @worker.task
    async def later() -> None:
        raise topicd.Retry("busy", delay_ms=60_000)

    @worker.task
    def never() -> None:
        raise topicd.GiveUp("hopeless")

    plain.enqueue()
    later.enqueue()
    never.enqueue()
    worker.queue.put(b"{}", tag="unknown")
    worker.queue.put(b"not json", tag="plain")
    worker.run(idle=0.3)
    queue = queue_of(server)
    assert queue.reasons[1] == "ValueError: oh"
    assert (queue.reasons[2], queue.delayed[2] > server.now_ms) == ("busy", True)
    assert queue.reasons[3] == "hopeless"
    assert "no task 'unknown' here, only later, never, plain" in queue.reasons[4]
    assert "no arguments of task 'plain'" in queue.reasons[5]
    assert queue.counts["dead_lettered"] == 2


def test_what_is_given_up_without_dead_letters_fails_and_takes_no_place(
    client: topicd.Client, server: FakeServer
) -> None:
    worker = topicd.Worker("q", concurrency=1, client=client)
    ran: list[int] = []

    @worker.task
    def work(n: int) -> None:
        if not n:
            raise topicd.GiveUp("hopeless")
        ran.append(n)

    worker.queue.put(b"not json", tag="work")
    work.enqueue(0)
    work.enqueue(1)
    worker.run(idle=0.3)
    queue = queue_of(server)
    assert ran == [1]
    assert "no arguments of task 'work'" in queue.reasons[1]
    assert (queue.reasons[2], queue.counts["failed"]) == ("hopeless", 2)
    assert queue.delayed[2] > server.now_ms


@pytest.mark.parametrize("error", [ValueError("oh"), topicd.Retry("later"), topicd.GiveUp("never")])
def test_a_job_whose_end_cannot_be_told_is_held_no_longer(client: topicd.Client, error: Exception) -> None:
    """Else its lease would be extended as long as the process lives, and nobody would ever get it."""
    worker = topicd.Worker("q", client=client)
    worker.queue.put(b"a")
    (job,) = worker.queue.claim()

    class Deaf:
        def _give_back(self, *_: object) -> bool:
            raise StorageFailed("the disk is full")

    job._holder = Deaf()  # type: ignore[assignment]
    Runner({}, ()).failed(job, error)
    assert job.settled


def test_middleware_is_around_each_task(client: topicd.Client, server: FakeServer) -> None:
    said: list[str] = []

    class Saying(topicd.Middleware):
        def __init__(self, name: str) -> None:
            self.name = name

        def before(self, job: topicd.Job, task: str) -> None:
            said.append(f"{self.name} before {task}")

        def after(self, job: topicd.Job, task: str, result: Any) -> None:
            said.append(f"{self.name} after {result}")

        def error(self, job: topicd.Job, task: str, error: BaseException) -> None:
            said.append(f"{self.name} error {error}")

    worker = topicd.Worker("q", client=client, concurrency=1, middleware=[Saying("a")])
    worker.use(Saying("b"))

    @worker.task
    def work(n: int) -> int:
        if n > 1:
            raise topicd.GiveUp("much")
        return n

    work.enqueue(1)
    work.enqueue(2)
    worker.run(idle=0.2)
    assert said == [
        *("a before work", "b before work", "b after 1", "a after 1"),
        *("a before work", "b before work", "b error much", "a error much"),
    ]


def test_a_task_knows_its_job(worker: topicd.Worker, server: FakeServer) -> None:
    @worker.task
    def work() -> None:
        job = topicd.current_job()
        assert job is not None
        job.done(then=[("out", [f"of {job.seq}"])])

    assert topicd.current_job() is None
    work.enqueue()
    worker.run(idle=0.2)
    assert server.payloads("out") == [b"of 1"]
    assert queue_of(server).counts["acked"] == 1


def test_no_more_than_its_concurrency_run_at_once(worker: topicd.Worker, server: FakeServer) -> None:
    now, most = 0, 0
    lock = threading.Lock()

    @worker.task
    def work() -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.005)
        with lock:
            now -= 1

    for _ in range(30):
        work.enqueue()
    worker.run(idle=0.2)
    assert 2 <= most <= 4
    assert queue_of(server).counts["acked"] == 30


def test_stop_finishes_what_runs_and_gives_back_the_rest(client: topicd.Client, server: FakeServer) -> None:
    worker = topicd.Worker("q", client=client, concurrency=1)
    begun, go_on = threading.Event(), threading.Event()

    @worker.task
    def work(n: int) -> None:
        begun.set()
        go_on.wait(10)

    for n in range(3):
        work.enqueue(n)
    thread = threading.Thread(target=worker.run)
    thread.start()
    assert begun.wait(10)
    worker.stop()
    go_on.set()
    thread.join(10)
    queue = queue_of(server)
    assert not thread.is_alive()
    assert queue.counts["acked"] == 1
    assert not queue.leases
    assert [seq for seq, count in queue.deliveries.items() if count] == [1]


def test_what_is_not_finished_in_time_is_given_back(client: topicd.Client, server: FakeServer) -> None:
    worker = topicd.Worker("q", client=client, concurrency=1, grace=0.05)
    begun, go_on = threading.Event(), threading.Event()

    @worker.task
    def work() -> None:
        begun.set()
        go_on.wait(10)

    work.enqueue()
    thread = threading.Thread(target=worker.run)
    thread.start()
    assert begun.wait(10)
    worker.stop()
    thread.join(10)
    assert not thread.is_alive()
    ends = time.monotonic() + 5
    while queue_of(server).leases:
        assert time.monotonic() < ends
        time.sleep(0.002)
    go_on.set()


PROGRAM = """
import sys, time, topicd
worker = topicd.Worker("q", concurrency=2, target=sys.argv[1])
@worker.task
def work(n: int) -> None:
    sys.stdout.write("begun\\n")
    sys.stdout.flush()
    time.sleep(0.3)
worker.run()
print("left", flush=True)
"""


def test_sigterm_ends_a_worker_politely(client: topicd.Client, server: FakeServer) -> None:
    jobs = client.queue("q")
    for n in range(5):
        jobs.put({"args": [n]}, tag="work")
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(server.path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    assert process.stdout.readline() == "begun\n"
    os.kill(process.pid, signal.SIGTERM)
    rest, _ = process.communicate(timeout=20)
    assert (rest.splitlines()[-1], process.returncode) == ("left", 0)
    queue = queue_of(server)
    assert queue.counts["acked"] == 2 + rest.count("begun")
    assert not queue.leases
    assert queue.counts["failed"] == 0


# ---- tests of those who use it ----


def test_tasks_run_in_process_in_tests(worker: topicd.Worker, server: FakeServer) -> None:
    @worker.task
    def double(n: int) -> int:
        return 2 * n

    @worker.task
    async def slowly(n: int) -> int:
        await asyncio.sleep(0)
        return n

    with worker.testing() as ran:
        assert double.enqueue(4).seq == 1
        slowly.enqueue(5)
    assert [(one.job.tag, one.outcome, one.result) for one in ran.jobs] == [
        ("double", "done", 8),
        ("slowly", "done", 5),
    ]
    assert not server.topics


def test_errors_are_raised_where_the_task_was_enqueued(worker: topicd.Worker) -> None:
    @worker.task
    def work(how: str) -> None:
        if how == "bug":
            raise ValueError("oh")
        if how == "then":
            job = topicd.current_job()
            assert job
            job.done(then=[("out", [1])])
        else:
            raise topicd.Retry("later")

    with worker.testing() as ran:
        with pytest.raises(ValueError, match="oh"):
            work.enqueue("bug")
        work.enqueue("retry")
        work.enqueue("then")
    assert [(one.outcome, one.reason) for one in ran.jobs] == [
        ("fail", "ValueError: oh"),
        ("fail", "later"),
        ("done", ""),
    ]
    assert ran.jobs[2].then == {"out": [1]}


def test_tasks_may_wait_until_they_are_told(worker: topicd.Worker) -> None:
    seen = []

    @worker.task
    def first() -> None:
        seen.append("first")
        second.enqueue()

    @worker.task
    async def second() -> None:
        seen.append("second")

    with worker.testing(run=False) as ran:
        first.enqueue()
        assert seen == []
        asyncio.run(ran.run_all_async())
    assert seen == ["first", "second"]


@pytest.mark.parametrize("run", [True, False])
def test_middleware_hears_of_errors_in_tests_as_it_does_from_a_worker(worker: topicd.Worker, run: bool) -> None:
    heard: list[tuple[str, str]] = []

    class Listener(topicd.Middleware):
        def error(self, job: topicd.Job, task: str, error: BaseException) -> None:
            heard.append((task, str(error)))

    worker.use(Listener())

    @worker.task
    def plain() -> None:
        raise topicd.Retry("later")

    @worker.task
    async def waiting() -> None:
        raise topicd.GiveUp("never")

    with worker.testing(run=run) as ran:
        plain.enqueue()
        waiting.enqueue()
        if not run:
            asyncio.run(ran.run_all_async())
    assert heard == [("plain", "later"), ("waiting", "never")]
    assert [(one.outcome, one.reason) for one in ran.jobs] == [("fail", "later"), ("dead", "never")]
