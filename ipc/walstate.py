"""What a WAL shard leaves for its successor: file, end of the log, and how far each ring was written.

u64 lsn | u64 first_lsn of the active file | u64 synced_lsn | u32 rings | u64 written_pos of each ring
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

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
