"""The byte ring from one delivery shard to one WAL shard. Promise: its bytes are WAL bytes, whole frames only.

One producer, one consumer, both sides may die and be replaced. Positions are bytes since the ring was made and
only grow; the body index is position % capacity. Each counter has a cache line of its own.

    64  head             producer   everything below is valid
   128  sync_wanted_pos  producer   somebody waits for the sync of everything below
   136  write_wanted_pos producer   somebody waits for the write of everything below
   144  sync_wished_pos  producer   the same, and nobody waits for that somebody: a sync beside the turns will do
   192  resync_pos       producer   where valid bytes begin again after a failure
   200  resync_epoch     producer   which failure that answers
   256  absorbed         producer   1 + position below which everything is in segments and snapshots, so that the
                                    WAL may forget it; 0 while not even what was replayed at start is there
   320  written_pos      consumer   everything below is in the file (page cache); its space is free again
   384  synced_pos       consumer   everything below survives power loss
   448  failed_pos       consumer   what lies above at the last failure was not stored
   456  failed_errno     consumer
   464  failed_epoch     consumer   counts failures
   512  read_only        consumer   errno while the WAL shard cannot write at all, else 0
   520  waiting_files    consumer   finished files that wait until every producer has absorbed them
   528  consumer_pid     consumer   the WAL shard that takes what is placed; 0 before it begins and once it has left
   536  window_us        consumer   what the last group waited for company
   544  write_us         consumer   what its write took
   552  sync_us          consumer   what the last sync took
   576  body
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from topicd._native import core
from topicd._native.interface import Buffer
from topicd.ipc import shm

_HEAD = 64
_SYNC_WANTED = 128
_WRITE_WANTED = 136
_SYNC_WISHED = 144
_RESYNC_POS = 192
_RESYNC_EPOCH = 200
_ABSORBED = 256
_WRITTEN = 320
_SYNCED = 384
_FAILED_POS = 448
_FAILED_ERRNO = 456
_FAILED_EPOCH = 464
_READ_ONLY = 512
_WAITING_FILES = 520
_CONSUMER_PID = 528
_WINDOW_US = 536
_WRITE_US = 544
_SYNC_US = 552
BODY_AT = 576


def create(name: str, capacity: int, instance: str) -> shm.Region:
    return shm.create(name, shm.RegionKind.RING, BODY_AT - shm.BODY_AT + capacity, instance)


class Ring:
    """What both ends can see."""

    def __init__(self, region: shm.Region) -> None:
        self._region = region
        self.memory = region.memory
        self.capacity = region.body_len - (BODY_AT - shm.BODY_AT)

    @classmethod
    def attach(cls, name: str, instance: str) -> Self:
        return cls(shm.attach(name, shm.RegionKind.RING, instance))

    def close(self) -> None:
        self._region.close()

    @property
    def head(self) -> int:
        return core.load(self.memory, _HEAD)

    @property
    def written_pos(self) -> int:
        return core.load(self.memory, _WRITTEN)

    @property
    def synced_pos(self) -> int:
        return core.load(self.memory, _SYNCED)

    @property
    def sync_wanted_pos(self) -> int:
        return core.load(self.memory, _SYNC_WANTED)

    @property
    def sync_wished_pos(self) -> int:
        return core.load(self.memory, _SYNC_WISHED)

    @property
    def write_wanted_pos(self) -> int:
        """Read after set_written(): the fences here and in want_write() let at least one side see the other."""
        return core.fence_load(self.memory, _WRITE_WANTED)

    @property
    def absorbed_pos(self) -> int | None:
        """None while what was replayed at the start of the producer is not absorbed yet."""
        raw = core.load(self.memory, _ABSORBED)
        return raw - 1 if raw else None

    @property
    def failed_epoch(self) -> int:
        return core.load(self.memory, _FAILED_EPOCH)

    @property
    def failure(self) -> tuple[int, int]:
        """(position above which nothing was stored, errno) of the newest failure."""
        return core.load(self.memory, _FAILED_POS), core.load(self.memory, _FAILED_ERRNO)

    @property
    def resync(self) -> tuple[int, int]:
        """(epoch answered, position where valid bytes begin again)."""
        return core.load(self.memory, _RESYNC_EPOCH), core.load(self.memory, _RESYNC_POS)

    @property
    def read_only_errno(self) -> int:
        return core.load(self.memory, _READ_ONLY)

    @property
    def waiting_files(self) -> int:
        return core.load(self.memory, _WAITING_FILES)

    @property
    def consumer_pid(self) -> int:
        return core.load(self.memory, _CONSUMER_PID)

    @property
    def took_us(self) -> tuple[int, int, int]:
        """(waiting for company, write, sync) of what was stored last."""
        memory = self.memory
        return core.load(memory, _WINDOW_US), core.load(memory, _WRITE_US), core.load(memory, _SYNC_US)

    @property
    def used(self) -> int:
        return self.head - self.written_pos


class RingProducer(Ring):
    """The delivery shard's end."""

    def __init__(self, region: shm.Region) -> None:
        super().__init__(region)
        self._head = self.head
        self._written = self.written_pos  # a lower bound; looked up again when room seems short

    def has_room(self, size: int) -> bool:
        if size <= self.capacity - (self._head - self._written):
            return True
        self._written = self.written_pos
        return size <= self.capacity - (self._head - self._written)

    def try_write(self, parts: Sequence[Buffer], size: int) -> int | None:
        """Copy whole frames of together `size` bytes in and publish them at once: the new head, or None when they do
        not fit now."""
        if not self.has_room(size):
            return None
        head, memory, capacity = self._head, self.memory, self.capacity
        for part in parts:
            head = core.ring_write(memory, BODY_AT, capacity, head, part, 0, len(part))
        self._head = head
        core.store(memory, _HEAD, head)
        return head

    def want_sync(self, position: int) -> None:
        core.store(self.memory, _SYNC_WANTED, position)

    def wish_sync(self, position: int) -> None:
        core.store(self.memory, _SYNC_WISHED, position)

    def want_write(self, position: int) -> None:
        """Be rung when everything below is written. Look at written_pos afterwards, or place the bytes afterwards."""
        core.store_fence(self.memory, _WRITE_WANTED, position)

    def set_absorbed(self, position: int | None) -> None:
        core.store(self.memory, _ABSORBED, 0 if position is None else position + 1)

    def answer_failure(self, epoch: int) -> None:
        """What is written from now on is valid again; the consumer drops everything before."""
        core.store(self.memory, _RESYNC_POS, self._head)
        core.store(self.memory, _RESYNC_EPOCH, epoch)


class RingConsumer(Ring):
    """The WAL shard's end."""

    def views(self, start: int, end: int) -> list[memoryview]:
        """The bytes [start, end) where they lie; valid until written_pos passes them."""
        if start == end:
            return []
        body = memoryview(self.memory)[BODY_AT : BODY_AT + self.capacity]
        a, b = start % self.capacity, end % self.capacity
        return [body[a:b]] if a < b else [body[a:], *([body[:b]] if b else [])]

    def set_written(self, position: int) -> None:
        core.store(self.memory, _WRITTEN, position)

    def set_synced(self, position: int) -> None:
        core.store(self.memory, _SYNCED, position)

    def fail(self, position: int, errno: int) -> int:
        """Tell the producer that nothing above position was stored; the epoch it must answer."""
        core.store(self.memory, _FAILED_POS, position)
        core.store(self.memory, _FAILED_ERRNO, errno)
        epoch = self.failed_epoch + 1
        core.store(self.memory, _FAILED_EPOCH, epoch)
        return epoch

    def set_read_only(self, errno: int) -> None:
        core.store(self.memory, _READ_ONLY, errno)

    def set_consumer_pid(self, pid: int) -> None:
        core.store(self.memory, _CONSUMER_PID, pid)

    def set_write_took(self, window_us: int, write_us: int) -> None:
        """Before set_written(): whoever sees that finds this."""
        core.store(self.memory, _WINDOW_US, window_us)
        core.store(self.memory, _WRITE_US, write_us)

    def set_sync_took(self, sync_us: int) -> None:
        core.store(self.memory, _SYNC_US, sync_us)

    def set_waiting_files(self, files: int) -> None:
        core.store(self.memory, _WAITING_FILES, files)
