"""What becomes of a gap while records are iterated. Promise: none is passed over without its reader hearing of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeAlias

from topicd.client.core.batch import Batch
from topicd.client.core.records import Event, Gap, RecordsMissed
from topicd.errors import InvalidRequest

OnGap: TypeAlias = Literal["raise", "yield"] | Callable[[Gap], Any]


def gap_choice(gaps: bool, on_gap: OnGap) -> OnGap:
    """The two arguments as one: `gaps=True` is the same as on_gap="yield"."""
    if on_gap not in ("yield", "raise") and not callable(on_gap):
        raise InvalidRequest(f"on_gap is raise or a function, not {on_gap!r:.100}")
    if gaps and on_gap not in ("yield", "raise"):
        raise InvalidRequest("gaps=True hands gaps to the loop, on_gap hands them to a function: choose one")
    return "yield" if gaps else on_gap


def shall_yield(on_gap: OnGap, gap: Gap) -> bool:
    if on_gap == "raise":
        raise RecordsMissed(gap)
    if on_gap == "yield":
        return True
    on_gap(gap)
    return False


def events(batch: Batch, on_gap: OnGap) -> Iterator[Event]:
    """The gap before it, if that is wanted, and its records."""
    gap = batch.gap
    if gap is not None and shall_yield(on_gap, gap):
        yield gap
    yield from batch.records
