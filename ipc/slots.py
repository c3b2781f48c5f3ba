"""A small value in two alternating checksummed slots. Promise: a reader, also one that starts after the writer was
killed half-way, gets the last whole value. One writer.

    64  slot 0   u64 number | u32 length | u32 zero | u64 xxh3 of number, length and payload | payload
    64 + size/2  slot 1
"""

from __future__ import annotations

import struct

from topicd._native import core
from topicd.errors import FormatError
from topicd.ipc import shm

_HEAD = struct.Struct("<QIIQ")
_SUMMED = struct.Struct("<QI")


def create(name: str, payload_max: int, instance: str, kind: shm.RegionKind = shm.RegionKind.SLOTS) -> shm.Region:
    slot = (_HEAD.size + payload_max + 63) // 64 * 64
    return shm.create(name, kind, 2 * slot, instance)


class Slots:
    def __init__(self, region: shm.Region) -> None:
        self._region = region
        self.memory = region.memory
        self._size = region.body_len // 2
        self._first = shm.BODY_AT
        # Of the newest value; whoever writes through `memory` instead counts it on.
        self.number = max((n for n, _ in self._valid()), default=0)

    @classmethod
    def attach(cls, name: str, instance: str, kind: shm.RegionKind = shm.RegionKind.SLOTS) -> Slots:
        return cls(shm.attach(name, kind, instance))

    def close(self) -> None:
        self._region.close()

    def write(self, payload: bytes) -> None:
        if _HEAD.size + len(payload) > self._size:
            raise FormatError(f"{self._region.name}: {len(payload)} bytes do not fit a slot of {self._size}")
        number = self.number + 1
        summed = core.xxh3_64(_SUMMED.pack(number, len(payload)) + payload)
        at = self._first if number % 2 == 0 else self._first + self._size
        # The slot of the previous value stays untouched: a reader always finds one whole slot.
        self.memory[at : at + _HEAD.size + len(payload)] = _HEAD.pack(number, len(payload), 0, summed) + payload
        self.number = number

    def read(self) -> bytes | None:
        """The newest whole value, None if there never was one."""
        for _ in range(1_000):
            found = max(self._valid(), default=None)
            if found is not None:
                return found[1]
            if not any(self.memory[self._at(n) : self._at(n) + 8].strip(b"\0") for n in (0, 1)):
                return None
        raise FormatError(f"{self._region.name}: no whole value in either slot")

    def _at(self, number: int) -> int:
        return shm.BODY_AT + (number % 2) * self._size

    def _valid(self) -> list[tuple[int, bytes]]:
        found = []
        for slot in (0, 1):
            at = self._at(slot)
            number, length, _, summed = _HEAD.unpack_from(self.memory, at)
            if number == 0 or number % 2 != slot or _HEAD.size + length > self._size:
                continue
            payload = bytes(self.memory[at + _HEAD.size : at + _HEAD.size + length])
            if core.xxh3_64(_SUMMED.pack(number, length) + payload) == summed:
                found.append((number, payload))
        return found
