"""Long work in short pieces. Promise: whatever the number of topics, one piece keeps the loop for a slice of time, or
for one item if that takes longer; between the pieces requests are served and the heart beats.

The work itself is an iterator that yields wherever it may be interrupted: a shard spreads it over turns of its loop, a
start goes through it at once and shows life at every yield.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

SLICE_S = 0.004

T = TypeVar("T")


def in_slices(items: Iterable[T], do: Callable[[T], object]) -> Iterator[None]:
    """Do it for each; yields whenever a slice of time is used up. The items do not change meanwhile."""
    until = time.monotonic() + SLICE_S
    for item in items:
        do(item)
        if time.monotonic() >= until:
            yield
            until = time.monotonic() + SLICE_S


async def spread(work: Iterator[None], pause_s: float = 0.0) -> None:
    """Others have their turn at every yield, and with a pause the processor, too."""
    for _ in work:
        await asyncio.sleep(pause_s)
