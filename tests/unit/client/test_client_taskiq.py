"""taskiq on a work queue."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("taskiq", reason="taskiq is an optional extra")

from taskiq.receiver import Receiver

from tests.support.fakeserver import FakeServer
from topicd.errors import InvalidRequest
from topicd.integrations.taskiq import TopicdBroker, job_options


def test_tasks_are_kicked_run_and_acknowledged(server: FakeServer) -> None:
    seen: list[int] = []

    async def main() -> None:
        broker = TopicdBroker("tasks", target=server.path)
        broker.is_worker_process = True

        @broker.task(priority=7)
        async def work(n: int) -> None:
            seen.append(n)

        await broker.startup()
        for n in range(3):
            await work.kiq(n)
        assert server.topics["tasks"].queue.options[1] == {"priority": 7}
        finish = asyncio.Event()
        listening = asyncio.create_task(Receiver(broker, max_async_tasks=10).listen(finish))
        async with asyncio.timeout(10):
            while server.topics["tasks"].queue.counts["acked"] < 3:
                await asyncio.sleep(0.005)
        finish.set()
        await asyncio.wait_for(listening, 10)
        await broker.shutdown()

    asyncio.run(main())
    assert sorted(seen) == [0, 1, 2]


def test_what_was_not_finished_goes_back(server: FakeServer) -> None:
    async def main() -> None:
        broker = TopicdBroker("tasks", target=server.path)

        @broker.task
        async def work(n: int) -> None: ...

        await broker.startup()
        await work.kiq(1)
        messages: Any = broker.listen()
        await anext(messages)
        assert server.topics["tasks"].queue.leases
        await broker.shutdown()
        async with asyncio.timeout(10):
            while server.topics["tasks"].queue.leases:
                await asyncio.sleep(0.005)
        await messages.aclose()

    asyncio.run(main())


def test_what_no_task_can_take_fails_and_is_not_dropped(server: FakeServer) -> None:
    async def main() -> None:
        broker = TopicdBroker("tasks", target=server.path)

        @broker.task
        async def work(n: int) -> None: ...

        await broker.startup()
        jobs = broker._queue()
        await jobs.put(b"not of taskiq")
        await work.kicker().with_task_id("1").kiq(1)
        await jobs.put(server.topics["tasks"].records[1].data.replace(b":work", b":another"))
        messages: Any = broker.listen()
        async with asyncio.timeout(10):
            assert b":work" in (await anext(messages)).data
            queue = server.topics["tasks"].queue
            following = asyncio.ensure_future(anext(messages))
            while queue.counts["failed"] < 2:
                await asyncio.sleep(0.005)
        assert queue.reasons[1].startswith("it is no message of taskiq")
        assert "there is no task" in queue.reasons[3] and queue.counts["acked"] == 0
        following.cancel()
        await broker.shutdown()

    asyncio.run(main())


def test_labels_become_options() -> None:
    assert job_options({"delay": "1.5", "priority": 3, "group": "g", "x": 1}) == {
        "delay_ms": 1500,
        "priority": 3,
        "group": "g",
    }
    with pytest.raises(InvalidRequest):
        job_options({"priority": "high"})


def test_a_broker_that_was_not_started_says_so() -> None:
    broker = TopicdBroker("tasks")
    with pytest.raises(InvalidRequest, match="startup"):
        broker._queue()
