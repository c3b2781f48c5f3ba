"""What a WAL shard leaves for its successor: file, end of the log, and how far each ring was written.

u64 lsn | u64 first_lsn of the active file | u64 synced_lsn | u32 rings | u64 written_pos of each ring
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from topicd.ipc.slots import Slots
from topicd.paths import wal_state_shm

_FIXED = struct.Struct("<QQQI")


class WalState(NamedTuple):
    lsn: int
    first_lsn: int
    synced_lsn: int
    written: tuple[int, ...]

    @classmethod
    def unpack(cls, payload: bytes) -> WalState:
        lsn, first_lsn, synced_lsn, rings = _FIXED.unpack_from(payload)
        return cls(lsn, first_lsn, synced_lsn, struct.unpack_from(f"<{rings}Q", payload, _FIXED.size))


def pack_state(lsn: int, first_lsn: int, synced_lsn: int, written: Sequence[int]) -> bytes:
    rings = len(written)
    return struct.pack(f"<QQQI{rings}Q", lsn, first_lsn, synced_lsn, rings, *written)


def read_states(instance: str, wal_shards: int) -> dict[int, WalState]:
    """What each WAL shard of a running daemon says now; one that has not said anything is left out."""
    found = {}
    for shard in range(wal_shards):
        page = Slots.attach(wal_state_shm(instance, shard), instance)
        payload = page.read()
        page.close()
        if payload is not None:
            found[shard] = WalState.unpack(payload)
    return found
