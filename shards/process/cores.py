"""Which core a shard runs on where shards are pinned. Promise: best effort: what the system does not allow is told and
changes nothing; threads that are made later stay on the same core.
"""

from __future__ import annotations

import logging
import os

from topicd.ipc.shardboot import DELIVERY

log = logging.getLogger(__name__)


def pin(kind: str, index: int, delivery_shards: int) -> None:
    """To one of those that this process may use: delivery shards one after the other, then the WAL shards."""
    place = index if kind == DELIVERY else delivery_shards + index
    try:
        allowed = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {allowed[place % len(allowed)]})
    except OSError as exc:
        log.warning("not pinned to a core", extra={"reason": exc.strerror})
