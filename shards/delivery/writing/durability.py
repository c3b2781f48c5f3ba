"""What must have happened to a write before it counts, and which durability class needs what."""

from __future__ import annotations

import os
from enum import IntEnum

from topicd.errors import StorageFailed
from topicd.model import Durability


class Need(IntEnum):
    PLACED = 0  # in the ring
    WRITTEN = 1  # in the file
    SYNCED = 2  # on the disk
    STORED = 3  # in a synced segment: a direct write, which is in no ring (see direct)


NEED_OF = {
    Durability.EPHEMERAL: Need.PLACED,
    Durability.MEMORY: Need.PLACED,
    Durability.DISK: Need.WRITTEN,
    Durability.FSYNC: Need.SYNCED,
}


def storage_failed(code: int) -> StorageFailed:
    return StorageFailed(
        f"the disk refused the write: {os.strerror(code)}",
        errno=code,
        reason=os.strerror(code),
        retry_after_ms=500,
    )
