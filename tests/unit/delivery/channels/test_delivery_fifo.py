"""Row C28: the queue by itself, with a cursor whose writes the test ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.unit.delivery.kit import Rooms, make_topic, publish
from topicd.errors import NeedsRecovery, QueueEmpty, StorageFailed, TopicdError
from topicd.shards.delivery.channels.fifo import TRIM_AFTER, Queue


class Cursor:
    """What would be the file; writes wait until they are let go."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.written: list[int] = []
        self.gate = asyncio.Event()
        self.error: TopicdError | None = None

    async def save(self, next_seq: int) -> None:
        self.begun.append(next_seq)
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        self.written.append(next_seq)


def queue_of(cursor: Cursor, elements: int, next_seq: int | None = 1) -> tuple[Queue, Any]:
    topic = make_topic(durability="fsync")
    publish(topic, [b"%d" % n for n in range(elements)])
    return Queue("jobs", Rooms().reader, cursor.save, next_seq), topic


def test_nobody_gets_an_element_before_the_cursor_is_behind_it() -> None:
    async def work() -> None:
        cursor = Cursor()
        queue, topic = queue_of(cursor, 3)
        pops = [asyncio.ensure_future(queue.pop(topic)) for _ in range(3)]
        await asyncio.sleep(0.01)
        assert not any(pop.done() for pop in pops)
        assert queue.depth(topic) == 0
        cursor.gate.set()
        assert [(await pop).data for pop in pops] == [b"0", b"1", b"2"]
        # The first write was alone; those that came meanwhile shared the second.
        assert cursor.written in ([2, 4], [4])
        with pytest.raises(QueueEmpty):
            await queue.pop(topic)

    asyncio.run(work())


def test_pops_whose_write_fails_are_refused_and_their_elements_stay() -> None:
    async def work() -> None:
        cursor = Cursor()
        cursor.error = StorageFailed("no")
        cursor.gate.set()
        queue, topic = queue_of(cursor, 2)
        found = await asyncio.gather(queue.pop(topic), queue.pop(topic), return_exceptions=True)
        assert all(isinstance(one, StorageFailed) for one in found)
        cursor.error = None
        assert (await queue.pop(topic)).data == b"0"
        assert (await queue.pop(topic)).data == b"1"

    asyncio.run(work())


def test_a_cursor_that_cannot_be_read_needs_recovery_until_it_is_cleared() -> None:
    async def work() -> None:
        cursor = Cursor()
        cursor.gate.set()
        queue, topic = queue_of(cursor, 2, next_seq=None)
        with pytest.raises(NeedsRecovery):
            await queue.pop(topic)
        await queue.clear(topic.seqs.head)
        assert cursor.written == [3]
        with pytest.raises(QueueEmpty):
            await queue.pop(topic)
        publish(topic, [b"new"])
        assert (await queue.pop(topic)).data == b"new"

    asyncio.run(work())


def test_a_clear_that_could_not_be_written_is_refused() -> None:
    async def work() -> None:
        cursor = Cursor()
        cursor.gate.set()
        cursor.error = StorageFailed("no")
        queue, _ = queue_of(cursor, 1, next_seq=None)
        for head in (0, 1):  # also where the cursor would stand where it stood
            with pytest.raises(StorageFailed):
                await queue.clear(head)
        assert queue.broken

    asyncio.run(work())


def test_a_clear_waits_for_pops_under_way() -> None:
    async def work() -> None:
        cursor = Cursor()
        queue, topic = queue_of(cursor, 3)
        pop = asyncio.ensure_future(queue.pop(topic))
        await asyncio.sleep(0.01)
        clear = asyncio.ensure_future(queue.clear(3))
        await asyncio.sleep(0.01)
        assert cursor.begun == [2]  # two at once might end in any order
        cursor.gate.set()
        assert (await pop).data == b"0"
        await clear
        assert (cursor.written, queue.next_seq) == ([2, 4], 4)

    asyncio.run(work())


def test_what_was_popped_is_trimmed_now_and_then() -> None:
    async def work() -> None:
        cursor = Cursor()
        cursor.gate.set()
        queue, topic = queue_of(cursor, TRIM_AFTER + 10)
        trimmed = []
        for _ in range(TRIM_AFTER + 10):
            await queue.pop(topic)
            if below := queue.to_trim(topic):
                trimmed.append(below)
        assert trimmed == [TRIM_AFTER + 1, TRIM_AFTER + 11]

    asyncio.run(work())
