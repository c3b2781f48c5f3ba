"""Reading a stretch of a topic, to its head at most, as fast as this machine allows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from functools import partial
from pathlib import Path

from topicd.client.aio.shared import AioShared
from topicd.client.core.batch import Batch
from topicd.client.core.history import Reading, worth_yielding
from topicd.client.core.sealed import sealed


async def history(
    shared: AioShared,
    reading: Reading,
    read: Callable[[int, int], Awaitable[Batch]],
    socket_of: Callable[[], Path | None],
) -> AsyncIterator[Batch]:
    """`read` fetches so many records from a seq; `socket_of` names the socket that hands out descriptors, None when
    there is none to reach. Files are read and checked in another thread, so that the loop goes on meanwhile."""
    while not reading.over:
        page = reading.page(await read(reading.from_seq, reading.limit))
        if worth_yielding(page):
            yield page
        where = None if reading.over else socket_of()
        if where is None:
            continue
        async for batch in _in_thread(shared, sealed(reading.rest, page.topic_id, where)):
            reading.segment(batch)
            if len(batch):
                yield batch


async def _in_thread(shared: AioShared, segments: Generator[Batch, None, None]) -> AsyncIterator[Batch]:
    step: asyncio.Future[Batch | None] | None = None
    try:
        while True:
            step = shared.in_thread(lambda: next(segments, None))
            batch = await asyncio.shield(step)
            if batch is None:
                return
            yield batch
    finally:
        if step is not None:
            # A step whose reader was cancelled goes on in its thread.
            step.add_done_callback(partial(_end, segments))


def _end(segments: Generator[Batch, None, None], step: asyncio.Future[Batch | None]) -> None:
    if not step.cancelled():
        step.exception()  # told to the reader, or to nobody if that was cancelled
    segments.close()
