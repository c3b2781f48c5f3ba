"""A list of batches as one call: several under way at once, stored in order, none behind one that is refused."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from topicd.client.blocking.caller import Caller
from topicd.client.blocking.routes import DrivenRoutes
from topicd.client.core.encode import Encoded
from topicd.client.core.options import BULK_WINDOW
from topicd.client.core.receipts import published, stored
from topicd.client.core.records import Published
from topicd.ipc.protocol.outbox import OutBatch


def publish_batches(caller: Caller, topic: str, batches: Iterable[Encoded]) -> Published:
    """At least one batch. Each is asked for when there is room for it, so they need not all exist at once."""
    routes = DrivenRoutes(caller, BULK_WINDOW, halt=True)
    outbox = routes.outbox(topic)
    todo, pending, done = iter(batches), deque[OutBatch](), list[OutBatch]()
    ended = False
    try:
        while pending or not ended:
            while not ended and len(pending) < BULK_WINDOW:
                batch = next(todo, None)
                ended = batch is None
                if batch is not None:
                    pending.append(OutBatch(outbox, *batch, caller.tempo.monotonic() + caller.timeout))
                    routes.submit(pending[-1])
                    routes.turn()
            routes.turn()
            while pending and pending[0].done:
                done.append(stored(pending.popleft(), done))
            if pending:
                routes.link_of(outbox).wait(None)
    finally:
        routes.close()
    return published(done)
