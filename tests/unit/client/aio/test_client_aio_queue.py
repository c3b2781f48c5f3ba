"""A queue through the asyncio face, on both loops."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import topicd.aio
from tests.support.fakequeue import FakeQueue
from tests.support.fakeserver import CUT, MUTE, FakeServer, Request
from tests.unit.client.aio.conftest import Run
from topicd._native import guard
from topicd.errors import Forbidden, InvalidRequest, NotAQueue, StorageFailed, TopicNotFound
from topicd.ipc.protocol.messages import Op


def queue_of(server: FakeServer, name: str = "q") -> FakeQueue:
    found: FakeQueue = server.topics[name].queue
    return found


def test_jobs_are_put_claimed_and_finished(run: Run[Any], server: FakeServer) -> None:
    async def work(client: topicd.aio.AsyncClient) -> None:
        jobs = client.queue("q", node="me")
        first, second = await asyncio.gather(jobs.put({"n": 1}, unique="k"), jobs.put({"n": 2}, unique="k"))
        assert (first.new, second.new, second.seq) == (True, False, first.seq)
        assert (await jobs.put(b"x", key="once")).seq == (await jobs.put(b"x", key="once")).seq
        (job, other) = await jobs.claim(10, wait=0.1)
        assert (job.json(), job.deliveries) == ({"n": 1}, 1)
        assert await job.extend(60_000)
        assert await job.done()
        with pytest.raises(InvalidRequest):
            await job.done()
        assert await other.fail("no luck", delay_ms=0)
        found = await jobs.claim(5)
        assert found.payloads() == [b"x"]
        after = await jobs.claim(done=found)
        assert (len(after), after.finished.acked, after.finished.skipped) == (0, 1, [])
        assert (await jobs.claim(done=found, wait=0.05)).finished.skipped == [found[0].seq]
        assert (await jobs.stats()).acked == 2
        assert queue_of(server).reasons[other.seq] == "no luck"

    run(work)


def test_a_log_is_not_taken_for_a_queue(run: Run[Any], server: FakeServer) -> None:
    async def work(client: topicd.aio.AsyncClient) -> None:
        await client.publish("log", b"x")
        jobs = client.queue("log")
        for use in (jobs.put(b"a"), jobs.claim(), jobs.stats(), jobs.work().__anext__()):
            with pytest.raises(NotAQueue):
                await use

    run(work)
    assert server.payloads("log") == [b"x"]


def test_jobs_are_pushed_as_they_are_finished(run: Run[Any], server: FakeServer) -> None:
    async def work(client: topicd.aio.AsyncClient) -> None:
        jobs = client.queue("q")
        await jobs.put_many([b"%d" % n for n in range(300)])
        seen = []
        stream = jobs.work(max=50, idle=0)
        async for job in stream:
            seen.append(job.data)
            assert await job.done(wait=len(seen) % 100 == 0)
        assert seen == [b"%d" % n for n in range(300)]
        await stream.close()
        assert (await jobs.stats()).acked == 300
        assert stream.lost == 0

    run(work)
    assert [request.op for request in server.requests].count(Op.ACK) < 200


def test_leaving_the_loop_by_an_exception_fails_the_job_with_it(run: Run[Any], server: FakeServer) -> None:
    async def work(client: topicd.aio.AsyncClient) -> None:
        jobs = client.queue("q")
        await jobs.put_many([b"a", b"b"])
        async for job in jobs.work(max=2):
            raise ValueError(f"cannot do {job.data!r}")

    with pytest.raises(ValueError, match="cannot do b'a'"):
        run(work)
    expected = "the loop was left before the job was done" if guard is None else "ValueError: cannot do b'a'"
    assert queue_of(server).reasons[1] == expected
    assert queue_of(server).counts["failed"] == 1


def test_a_context_fails_with_the_reason_and_break_releases(run: Run[Any], server: FakeServer) -> None:
    async def work(client: topicd.aio.AsyncClient) -> None:
        jobs = client.queue("q")
        await jobs.put_many([b"a", b"b"])
        with pytest.raises(ValueError, match="oh"):
            async with jobs.work() as stream:
                async for _ in stream:
                    raise ValueError("oh")
        async with jobs.work(max=2) as stream:
            async for job in stream:
                if job.deliveries == 1:
                    break
                await job.done()
        assert queue_of(server).reasons[1] == "ValueError: oh"
        while queue_of(server).deliveries[2]:
            await asyncio.sleep(0.002)

    run(work)


def test_leaving_the_loop_keeps_nobody_else_from_running(run: Run[Any], server: FakeServer) -> None:
    goes_on, waited = threading.Event(), []

    def slow(request: Request) -> None:
        if request.op == Op.NACK:
            waited.append(goes_on.wait(1.5))

    async def work(client: topicd.aio.AsyncClient) -> None:
        jobs = client.queue("q")
        await jobs.put_many([b"a", b"b"])
        async for job in jobs.work(max=2):
            assert job.data == b"a"
            break
        goes_on.set()  # The daemon has not answered yet.
        stats = await jobs.stats()
        assert (stats.ready, stats.in_flight) == (2, 0)  # What comes behind it sees that it is given back.

    server.fault = slow
    run(work)
    assert waited and all(waited)


def test_a_client_that_is_closed_says_first_what_a_loop_left(run: Run[Any], server: FakeServer) -> None:
    async def work(client: topicd.aio.AsyncClient) -> None:
        jobs = client.queue("q")
        await jobs.put_many([b"a", b"b", b"c"])
        async for job in jobs.work(max=3):
            await job.done(wait=False)
            if job.data == b"b":
                break

    run(work)
    assert queue_of(server).counts["acked"] == 2 and queue_of(server).deliveries == {1: 1, 2: 1, 3: 0}


def test_a_loop_that_ends_with_the_program_is_heard(server: FakeServer) -> None:
    async def main() -> None:
        client = await topicd.aio.connect(server.path, timeout=5)
        jobs = client.queue("q")
        await jobs.put(b"a")
        async for _ in jobs.work():
            raise ValueError("the end")

    with pytest.raises(ValueError, match="the end"):
        asyncio.run(main())
    expected = "the loop was left before the job was done" if guard is None else "ValueError: the end"
    assert queue_of(server).reasons[1] == expected


def test_a_body_that_keeps_the_loop_busy_keeps_its_lease(run: Run[Any], server: FakeServer) -> None:
    async def work(client: topicd.aio.AsyncClient) -> None:
        jobs = client.queue("q")
        await jobs.put(b"a")
        async for job in jobs.work(lease_ms=120, idle=0):
            ends = time.monotonic() + 5
            while not any(request.op == Op.EXTEND for request in server.requests):
                assert time.monotonic() < ends
                time.sleep(0.002)  # the loop has no chance
            assert await job.done()

    run(work)


@pytest.mark.parametrize("fault", [CUT, MUTE])
def test_an_acknowledgement_goes_again_after_a_break(run: Run[Any], server: FakeServer, fault: str) -> None:
    broken = []

    def once(request: Request) -> str | None:
        if request.op == Op.ACK and not broken:
            broken.append(request)
            return fault
        return None

    async def work(client: topicd.aio.AsyncClient) -> None:
        jobs = client.queue("q")
        await jobs.put_many([b"a", b"b"])
        seen = []
        async for job in jobs.work(idle=0.2):
            seen.append((job.data, await job.done()))
        assert seen[0] == (b"a", fault == MUTE)
        assert (b"b", True) in seen
        assert (await jobs.stats()).acked == 2

    server.fault = once
    run(work)


def once_at(op: Op, fault: str) -> Callable[[Request], str | None]:
    broken: list[Request] = []

    def once(request: Request) -> str | None:
        if request.op == op and not broken:
            broken.append(request)
            return fault
        return None

    return once


@pytest.mark.parametrize("fault", [CUT, MUTE])
def test_what_a_claim_brought_is_finished_over_a_break(run: Run[Any], server: FakeServer, fault: str) -> None:
    async def work(client: topicd.aio.AsyncClient) -> None:
        jobs = client.queue("q")
        await jobs.put_many([b"a", b"b", b"c", b"d"])
        [first] = await jobs.claim()
        server.fault = once_at(Op.ACK, fault)
        assert await first.done() is True
        held = await jobs.claim(2)
        server.fault = once_at(Op.ACK, fault)
        assert (await held.done())[:2] == (2, [])
        [last] = await jobs.claim()
        server.fault = once_at(Op.CLAIM, fault)
        assert (await jobs.claim(done=last)).finished[:2] == (1, [])
        assert (last.lost, (await jobs.stats()).acked) == (False, 4)

    run(work)


def test_finished_jobs_of_which_nobody_could_be_told_are_counted(server: FakeServer) -> None:
    async def work() -> None:
        async with await topicd.aio.connect(server.path, timeout=0.3) as client:
            jobs = client.queue("q")
            await jobs.put_many([b"a", b"b", b"c"])
            stream = jobs.work(max=3)
            server.fault = lambda request: CUT if request.op == Op.ACK else None
            for _ in range(2):
                job = await anext(stream)
                await job.done(wait=False)
            await asyncio.to_thread(server.silence)
            await stream.close()
            assert stream.untold == 2

    asyncio.run(work())


def test_a_failure_of_which_nobody_could_be_told_is_counted(server: FakeServer) -> None:
    async def work() -> None:
        async with await topicd.aio.connect(server.path, timeout=0.3) as client:
            jobs = client.queue("q")
            await jobs.put(b"a")
            with pytest.raises(ValueError, match="no luck"):
                async with jobs.work() as stream:
                    await anext(stream)
                    await asyncio.to_thread(server.silence)
                    raise ValueError("no luck")
            assert stream.untold == 1

    asyncio.run(work())


def test_finished_jobs_whose_end_is_refused_for_good_are_counted(run: Run[Any], server: FakeServer) -> None:
    async def work(client: topicd.aio.AsyncClient) -> None:
        jobs = client.queue("q")
        await jobs.put_many([b"a", b"b"])
        stream = jobs.work(max=2)
        job = await anext(stream)
        server.fault = lambda request: Forbidden("not you") if request.op == Op.ACK else None
        await job.done(wait=False)
        with pytest.raises(Forbidden):
            while True:
                await anext(stream)
        assert stream.untold == 1

    run(work)


def test_acknowledgements_that_were_refused_for_now_are_repeated(run: Run[Any], server: FakeServer) -> None:
    broken = []

    def once(request: Request) -> StorageFailed | None:
        if request.op == Op.ACK and not broken:
            broken.append(request)
            return StorageFailed("not now")
        return None

    async def work(client: topicd.aio.AsyncClient) -> None:
        jobs = client.queue("q")
        await jobs.put_many([b"a", b"b", b"c"])
        stream = jobs.work(max=3, idle=0.2)
        async for job in stream:
            await job.done(wait=False)
        await stream.close()
        assert (await jobs.stats()).acked == 3

    server.fault = once
    run(work)


def test_the_loop_goes_on_after_a_restart_and_ends_with_the_queue(run: Run[Any], server: FakeServer) -> None:
    async def work(client: topicd.aio.AsyncClient) -> None:
        jobs = client.queue("q")
        await jobs.put(b"a")
        stream = jobs.work(max=2)
        assert await (await anext(stream)).done()
        await asyncio.get_running_loop().run_in_executor(None, server.restart)
        await jobs.put(b"b")
        job = await anext(stream)
        assert (job.data, await job.done()) == (b"b", True)
        await client.delete_topic("q")
        with pytest.raises(TopicNotFound):
            await anext(stream)

    run(work)


def test_stop_gives_back_what_was_not_begun(run: Run[Any], server: FakeServer) -> None:
    async def work(client: topicd.aio.AsyncClient) -> None:
        jobs = client.queue("q")
        await jobs.put_many([b"a", b"b", b"c"])
        async with jobs.work(max=3) as stream:
            async for job in stream:
                stream.stop()
                await job.done()
            assert not queue_of(server).leases
        assert queue_of(server).deliveries == {1: 1, 2: 0, 3: 0}

    run(work)


def test_what_a_job_leads_to_is_stored_with_it(run: Run[Any], server: FakeServer) -> None:
    async def work(client: topicd.aio.AsyncClient) -> None:
        jobs = client.queue("q")
        await jobs.put(b"a")
        async for job in jobs.work(idle=0):
            assert await job.done(then=[("out", [b"x", b"y"])])

    run(work)
    assert server.payloads("out") == [b"x", b"y"]


def test_a_queue_is_looked_at_and_steered(run: Run[Any]) -> None:
    async def work(client: topicd.aio.AsyncClient) -> None:
        jobs = client.queue("q")
        await jobs.put({"n": 1})
        (seen,) = await jobs.peek()
        assert (seen.state, (await jobs.why(1)).because) == ("ready", ["it is ready"])
        assert (await jobs.pause("lunch")).paused
        assert (await jobs.drain()).draining
        assert (await jobs.resume()).paused is None
        made = await jobs.add_cron("nightly", "0 3 * * *", {"all": True})
        assert await jobs.crons() == [made]
        assert await jobs.remove_cron("nightly")
        with pytest.raises(InvalidRequest, match="dead_letter"):
            [letter async for letter in jobs.dead()]

    run(work)
