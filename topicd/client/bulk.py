"""A list of batches as one call: several under way at once, stored in order, none behind one that is refused."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from topicd.client.engine import Engine
from topicd.client.line import OutBatch
from topicd.client.links import Links
from topicd.client.records import Published
from topicd.client.serial import Encoded

WINDOW = 8


def publish_batches(engine: Engine, topic: str, batches: Iterable[Encoded]) -> Published:
    """At least one batch. Each is asked for when there is room for it, so they need not all exist at once."""
    links = Links(engine, WINDOW, halt=True)
    line = links.line(topic)
    todo, pending, done = iter(batches), deque[OutBatch](), list[OutBatch]()
    ended = False
    try:
        while pending or not ended:
            while not ended and len(pending) < WINDOW:
                batch = next(todo, None)
                ended = batch is None
                if batch is not None:
                    pending.append(OutBatch(line, *batch, engine.tempo.monotonic() + engine.timeout))
                    links.submit(pending[-1])
                    links.turn()
            links.turn()
            while pending and pending[0].done:
                done.append(_stored(pending.popleft(), done))
            if pending:
                links.link_of(line).wait(None)
    finally:
        links.close()
    return published(done)


def _stored(batch: OutBatch, before: list[OutBatch]) -> OutBatch:
    if batch.error is not None:
        batch.error.detail["stored"] = sum(earlier.count for earlier in before)
        raise batch.error
    return batch


def published(done: Sequence[OutBatch]) -> Published:
    first, last = done[0], done[-1]
    return Published(
        first.first_seq,
        last.first_seq + last.count - 1,
        sum(batch.count for batch in done),
        any(batch.deduped for batch in done),
    )
