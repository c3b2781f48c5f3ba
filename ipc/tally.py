"""What all delivery shards hold together: topics and bytes, each shard's figures in a place of its own. Promise: with
the lock no two shards take the last place; a shard that dies leaves its figures and loses its lock; until every shard
has told its figures, each has its share of a limit and no more.

    64 + 16 · shard   u64 topics + 1 (0: not told yet) | u64 bytes
"""

from __future__ import annotations

import fcntl
import os
import struct
import time

from topicd import paths
from topicd.errors import FormatError
from topicd.ipc import shm

_ROW = struct.Struct(
    "<"  # little-endian, unpadded
    "Q"  # topics + 1
    "Q"  # bytes
)
_BYTES_AT = 8
_U64 = struct.Struct("<Q")
_TRIES = 20
_PAUSE_S = 0.0005


def create(instance: str, shards: int) -> shm.Region:
    """For the supervisor."""
    return shm.create(paths.tally_shm(instance), shm.RegionKind.TALLY, shards * _ROW.size, instance)


class Tally:
    def __init__(self, index: int, shards: int, region: shm.Region | None, fd: int = -1) -> None:
        self._index = index
        self._shards = shards
        self._region = region
        self._fd = fd

    @classmethod
    def attach(cls, instance: str, index: int, shards: int) -> Tally:
        """Of a shard that is alone in the world, if there is no such page."""
        name = paths.tally_shm(instance)
        try:
            region = shm.attach(name, shm.RegionKind.TALLY, instance)
        except FormatError:
            return cls(index, shards, None)
        fd = os.open(paths.SHM_DIR / name.lstrip("/"), os.O_RDWR | os.O_CLOEXEC)
        return cls(index, shards, region, fd)

    def close(self) -> None:
        if self._region is not None:
            self._region.close()
            os.close(self._fd)
            self._region = None

    def __del__(self) -> None:
        # A shard that ends without a word, as in a simulated crash: its process goes on.
        self.close()

    # ---- this shard's figures ----

    def tell_topics(self, topics: int) -> None:
        if self._region is not None:
            _U64.pack_into(self._region.memory, self._at(self._index), topics + 1)

    def tell_bytes(self, size: int) -> None:
        if self._region is not None:
            _U64.pack_into(self._region.memory, self._at(self._index) + _BYTES_AT, size)

    # ---- limits ----

    def take_topic(self, own: int, limit: int) -> bool:
        """May this shard, which has so many, have one more? If so it is counted at once."""
        if self._region is None:
            return own < self._share(limit)
        if not self._lock():
            return False
        try:
            others = self._others(0)
            if own >= (self._share(limit) if others is None else limit - others):
                return False
            self.tell_topics(own + 1)
            return True
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def room(self, own: int, limit: int) -> int:
        """Bytes that this shard, which has so many, may have beside."""
        self.tell_bytes(own)
        others = self._others(_BYTES_AT)
        return (self._share(limit) if others is None else limit - others) - own

    def _others(self, field: int) -> int | None:
        """None: somebody has not told yet."""
        if self._region is None:
            return None
        total = 0
        for shard in range(self._shards):
            if shard != self._index:
                topics, size = _ROW.unpack_from(self._region.memory, self._at(shard))
                if not topics:
                    return None
                total += size if field else topics - 1
        return total

    def _share(self, limit: int) -> int:
        """Together the shards never exceed it."""
        return limit // self._shards + (1 if self._index < limit % self._shards else 0)

    def _lock(self) -> bool:
        """Held for microseconds; not waited for long: its holder may have been stopped."""
        for _ in range(_TRIES):
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                time.sleep(_PAUSE_S)
        return False

    def _at(self, shard: int) -> int:
        return shm.BODY_AT + shard * _ROW.size
