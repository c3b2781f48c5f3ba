"""Workers and asyncio streams of jobs against a real daemon: told to stop, out of time, and with shards that die."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

import topicd
import topicd.aio
from tests.support.daemon import LIVELY, Daemon, wait_until
from topicd.ipc.control import process_name
from topicd.ipc.shardboot import DELIVERY, WAL
from topicd.placement import delivery_shard

LEASE_MS = 600_000  # nobody waits for a lease here
# Says what it begins, and ends a job when the file of its number is there; async or plain by the job's tag.
PROGRAM = """
import asyncio, faulthandler, sys, time
faulthandler.dump_traceback_later(50)  # should it hang
from pathlib import Path
import topicd

worker = topicd.Worker(sys.argv[2], concurrency=4, target=sys.argv[1], lease_ms=600_000, grace=float(sys.argv[4]))
place = Path(sys.argv[3])

def begun(n):
    sys.stdout.write(f"{n}\\n")
    sys.stdout.flush()

@worker.task
def plain(n: int) -> None:
    begun(n)
    while not (place / str(n)).exists():
        time.sleep(0.01)

@worker.task
async def waiting(n: int) -> None:
    begun(n)
    while not (place / str(n)).exists():
        await asyncio.sleep(0.01)

worker.run()
print("left", flush=True)
"""


class Hand:
    """A worker in a process of its own."""

    def __init__(self, daemon: Daemon, queue: str, place: Path, grace: float = 60.0) -> None:
        self.place = place
        argv = [sys.executable, "-c", PROGRAM, str(daemon.run.socket), queue, str(place), str(grace)]
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)

    def begun(self, count: int) -> set[int]:
        """The next so many jobs that it begins."""
        assert self.process.stdout is not None
        return {int(self.process.stdout.readline()) for _ in range(count)}

    def finish(self, numbers: set[int]) -> None:
        for number in numbers:
            (self.place / str(number)).touch()

    def left(self) -> list[str]:
        rest, _ = self.process.communicate(timeout=60)
        assert self.process.returncode == 0
        return rest.splitlines()


@pytest.fixture
def hand(module_daemon: Daemon, tmp_path: Path) -> Iterator[Callable[..., Hand]]:
    made: list[Hand] = []

    def make(queue: str, **how: Any) -> Hand:
        made.append(Hand(module_daemon, queue, tmp_path, **how))
        return made[-1]

    yield make
    for one in made:
        one.process.kill()
        one.process.communicate()


def put(jobs: topicd.Queue, count: int, task: str) -> None:
    for n in range(count):
        jobs.put({"args": [n]}, tag=task)


@pytest.mark.parametrize("task", ["plain", "waiting"])
def test_a_worker_told_to_stop_takes_no_more_finishes_and_gives_the_rest_back(
    module_daemon: Daemon, hand: Callable[..., Hand], task: str
) -> None:
    name = f"told-{task}"
    with module_daemon.client() as client:
        jobs = client.queue(name)
        put(jobs, 10, task)
        one = hand(name)
        begun = one.begun(4)
        assert jobs.stats().in_flight == 4
        one.process.send_signal(signal.SIGTERM)
        # Its stream ends at once, while what it has begun goes on.
        wait_until(lambda: jobs.stats().workers == 0, "the stream to be stopped")
        one.finish(set(list(begun)[:2]))
        wait_until(lambda: jobs.stats().acked == 2, "the two that are finished")
        found = jobs.stats()
        assert (found.in_flight, found.ready) == (2, 6)
        one.finish(begun)
        assert one.left() == ["left"]
        found = jobs.stats()
        assert (found.acked, found.in_flight, found.ready, found.failed) == (4, 0, 6, 0)


@pytest.mark.parametrize("task", ["plain", "waiting"])
def test_what_a_worker_does_not_finish_in_time_is_everybodys_at_once(
    module_daemon: Daemon, hand: Callable[..., Hand], task: str
) -> None:
    name = f"late-{task}"
    with module_daemon.client() as client:
        jobs = client.queue(name)
        put(jobs, 4, task)
        one = hand(name, grace=0.2)
        one.begun(4)
        one.process.send_signal(signal.SIGTERM)
        assert one.left() == ["left"]
        assert sorted(job.deliveries for job in jobs.claim(10)) == [1, 1, 1, 1], "as if they had not been delivered"


def test_a_killed_worker_gives_its_jobs_to_the_next_one(module_daemon: Daemon, hand: Callable[..., Hand]) -> None:
    with module_daemon.client() as client:
        jobs = client.queue("killed")
        put(jobs, 4, "plain")
        first = hand("killed")
        begun = first.begun(4)
        first.process.kill()
        second = hand("killed")
        assert second.begun(4) == begun
        second.finish(begun)
        wait_until(lambda: jobs.stats().acked == 4, "all to be done")
        second.process.send_signal(signal.SIGTERM)
        assert second.left() == ["left"]


# ---- asyncio ----


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(tmp_path, wal_shards=2, delivery_shards=2, **LIVELY) as running:
        yield running


@pytest.mark.parametrize(
    ("victim", "loop"),
    [(DELIVERY, asyncio.run), (WAL, uvloop.run), ("all", asyncio.run)],
    ids=["delivery", "wal on uvloop", "all"],
)
def test_an_asyncio_stream_goes_on_when_the_daemon_does(mortal: Daemon, loop: Callable[..., Any], victim: str) -> None:
    """Nothing that was answered as done comes back; everything is done in the end."""
    shard = delivery_shard("jobs", 2)

    def strike() -> None:
        if victim == "all":
            mortal.kill_all()
            mortal.start().wait_ready()
            return
        process = process_name(victim, shard)
        mortal.wait_replaced(process, mortal.kill(process))

    async def main() -> None:
        async with await topicd.aio.connect(mortal.run.socket, timeout=60) as client:
            jobs = client.queue("jobs")
            await jobs.configure(durability="fsync", lease_ms=LEASE_MS)
            await jobs.put_many([b"%d" % n for n in range(60)])
            done: set[int] = set()
            seen: list[int] = []
            async for job in jobs.work(max=8):
                assert job.seq not in done, "it was answered as done"
                seen.append(job.seq)
                if len(seen) == 20:
                    await asyncio.get_running_loop().run_in_executor(None, strike)
                if await job.done():
                    done.add(job.seq)
                if len(done) == 60:
                    break
            stats = await jobs.stats()
            assert (stats.ready, stats.in_flight, stats.acked) == (0, 0, 60)
            assert len(seen) - len(done) <= 8, "only what was in hand is delivered again"

    loop(main())


def test_jobs_of_a_claim_that_was_given_up_are_everybodys_at_once(module_daemon: Daemon) -> None:
    """Who stops waiting (a timeout, a cancelled task) has told nobody: the daemon hands jobs to him all the same."""

    async def work() -> None:
        async with topicd.aio.connect(module_daemon.run.socket) as client:
            jobs = client.queue("given-up")
            await jobs.configure(lease_ms=LEASE_MS)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await jobs.claim(2, wait=60)
            assert (await jobs.stats()).claims == 1
            await jobs.put_many([b"a", b"b", b"c"])
            found = await jobs.claim(1, wait=20)
            found = [*found, *await jobs.claim(2, wait=20)]
            assert sorted(job.data for job in found) == [b"a", b"b", b"c"]
            stats = await jobs.stats()
            assert (stats.claims, stats.in_flight, stats.released) == (0, 3, 2)

    asyncio.run(work())


def test_what_can_never_run_does_not_stop_a_worker(module_daemon: Daemon, hand: Callable[..., Hand]) -> None:
    """Without dead letters what is given up fails: held on to, four of them would be all that this worker ever has."""
    with topicd.connect(module_daemon.run.socket) as client:
        jobs = client.queue("never")
        jobs.put_many([b"not json"] * 5, tag="plain")
        jobs.put({"args": [7]}, tag="plain")
        worker = hand("never")
        assert worker.begun(1) == {7}
        worker.finish({7})
        wait_until(lambda: jobs.stats().acked == 1, "the good one to be done")
        assert jobs.stats().failed >= 5
