"""A list of batches as one call: several under way at once, stored in order, none behind one that is refused."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from topicd.client.aio.caller import AioCaller
from topicd.client.aio.routes import AioRoutes, FutureBatch
from topicd.client.core.encode import Encoded
from topicd.client.core.options import BULK_WINDOW
from topicd.client.core.receipts import published, stored
from topicd.client.core.records import Published
from topicd.errors import ConnectionLost


async def publish_batches(caller: AioCaller, topic: str, batches: Iterable[Encoded]) -> Published:
    """At least one batch. Each is asked for when there is room for it, so they need not all exist at once."""
    routes = AioRoutes(caller, BULK_WINDOW, halt=True)
    pending, done = deque[FutureBatch](), list[FutureBatch]()

    async def oldest() -> None:
        batch = pending.popleft()
        await batch.outcome()
        stored(batch, done)
        done.append(batch)

    try:
        for frames, count in batches:
            if len(pending) == BULK_WINDOW:
                await oldest()
            pending.append(routes.append(topic, frames, count))
        while pending:
            await oldest()
    finally:
        await routes.end(ConnectionLost("a batch before this one was refused"))
        for batch in pending:
            await batch.outcome()
    return published(done)
