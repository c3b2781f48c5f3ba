"""Which records a reader wants, and how much of each."""

from __future__ import annotations

from typing import NamedTuple

from topicd.model import TagMatch


class ReadFilter(NamedTuple):
    match: TagMatch | None = None
    nodes: tuple[bytes, ...] = ()  # never to be received
    metadata_only: bool = False
    committed: bool = False  # nothing of a commit before all of it is there


NO_FILTER = ReadFilter()
