"""Reading a stretch of a topic, to its head at most, as fast as this machine allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from topicd.client.core.batch import Batch
from topicd.client.core.history import Reading, worth_yielding
from topicd.client.core.sealed import sealed


def history(
    reading: Reading, read: Callable[[int, int], Batch], socket_of: Callable[[], Path | None]
) -> Iterator[Batch]:
    """`read` fetches so many records from a seq; `socket_of` names the socket that hands out descriptors, None when
    there is none to reach."""
    while not reading.over:
        page = reading.page(read(reading.from_seq, reading.limit))
        if worth_yielding(page):
            yield page
        where = None if reading.over else socket_of()
        if where is not None:
            for batch in sealed(reading.rest, page.topic_id, where):
                reading.segment(batch)
                if len(batch):
                    yield batch
