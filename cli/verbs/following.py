"""Printing what a watch brings, or several at once."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topicd.cli.show.records import RecordPrinter
    from topicd.client.blocking.watch import Watch
    from topicd.client.core.batch import Batch

WAITING_BATCHES = 16


def follow_on(events: Any, printer: RecordPrinter, limit: int | None) -> None:
    """Prints what a watch brings until limit records came."""
    left = limit
    for batch in events.batches():
        if left is not None and len(batch) >= left:
            printer.records(batch.records[:left])
            return
        printer.batch(batch)
        left = None if left is None else left - len(batch)


class Merged:
    """Several watches as one. Each has a thread that waits; a slow terminal makes them all wait."""

    def __init__(self, watches: list[Watch[Any]]) -> None:
        self._watches = watches
        self._ready: queue.Queue[Batch | BaseException] = queue.Queue(WAITING_BATCHES)

    def batches(self) -> Iterator[Batch]:
        for watch in self._watches:
            threading.Thread(target=self._pump, args=(watch,), daemon=True).start()
        while True:
            found = self._ready.get()
            if isinstance(found, BaseException):
                raise found
            yield found

    def _pump(self, watch: Watch[Any]) -> None:
        try:
            for batch in watch.batches():
                self._ready.put(batch)
        except BaseException as exc:
            self._ready.put(exc)
