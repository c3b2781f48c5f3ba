"""What a WAL shard leaves for its successor: file, end of the log, and how far each ring was written.

u64 lsn | u64 first_lsn of the active file | u64 synced_lsn | u32 rings | u64 written_pos of each ring
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

_FIXED = struct.Struct("<QQQI")


@dataclass(frozen=True)
class WalState:
    lsn: int
    first_lsn: int
    synced_lsn: int
    written: tuple[int, ...]

    def pack(self) -> bytes:
        rings = len(self.written)
        return _FIXED.pack(self.lsn, self.first_lsn, self.synced_lsn, rings) + struct.pack(
            f"<{rings}Q", *self.written
        )

    @classmethod
    def unpack(cls, payload: bytes) -> WalState:
        lsn, first_lsn, synced_lsn, rings = _FIXED.unpack_from(payload)
        return cls(lsn, first_lsn, synced_lsn, struct.unpack_from(f"<{rings}Q", payload, _FIXED.size))
