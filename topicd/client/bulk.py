"""A list of batches as one call: several under way at once, stored in order, none behind one that is refused."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from topicd.client.engine import Engine
from topicd.client.line import OutBatch
from topicd.client.links import Links
from topicd.client.records import Published
from topicd.client.serial import Encoded

WINDOW = 8


def publish_batches(engine: Engine, topic: str, batches: list[Encoded]) -> Published:
    links = Links(engine, WINDOW, halt=True)
    line = links.line(topic)
    todo, pending, done = deque(batches), deque[OutBatch](), list[OutBatch]()
    try:
        while todo or pending:
            while todo and len(pending) < WINDOW:
                frames, count = todo.popleft()
                pending.append(OutBatch(line, frames, count, engine.tempo.monotonic() + engine.timeout))
                links.submit(pending[-1])
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
