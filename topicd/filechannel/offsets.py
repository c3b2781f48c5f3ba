"""Where a receiver goes on, in two slots written in turn. Promise: a crash in the middle of a write leaves the offset
before it; a slot that fails its checksum gives way to the other, which may repeat messages and never skips one.

One slot rewritten in place could be torn and leave nothing; a file written beside and renamed would cost two syncs for
each acknowledgement. Two slots in two sectors cost one write of 28 bytes, and one sync where syncs are wanted.

      0  slot of even generations        512  slot of odd generations

      0  4s   magic
      4  u32  flags       1 temporary: goes when its process has gone
      8  u64  generation  the higher one counts
     16  u64  offset
     24  u32  crc32       over the 24 bytes before
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import NamedTuple

from topicd._native.channel import core
from topicd.disk.fs import File, Fs, read_all, replace_file
from topicd.filechannel.errors import OffsetDamaged

SLOTS_AT = (0, 512)
FLAG_TEMPORARY = 1
_MAGIC = b"TFCO"
_BODY = struct.Struct(
    ">"
    "4s"  # magic
    "I"  # flags
    "Q"  # generation
    "Q"  # offset
)
_CRC = struct.Struct(">I")
SLOT_BYTES = _BODY.size + _CRC.size
FILE_BYTES = SLOTS_AT[1] + SLOT_BYTES
_READ_MAX = 4096


class Slot(NamedTuple):
    flags: int
    generation: int
    offset: int


class Position(NamedTuple):
    offset: int
    generation: int
    temporary: bool
    damaged_slots: int  # 0 or 1


def pack_slot(slot: Slot) -> bytes:
    body = _BODY.pack(_MAGIC, slot.flags, slot.generation, slot.offset)
    return body + _CRC.pack(core.crc32(body, 0))


def unpack_slot(raw: bytes, at: int) -> Slot | None:
    body = raw[at : at + _BODY.size]
    if len(raw) < at + SLOT_BYTES or _CRC.unpack_from(raw, at + _BODY.size)[0] != core.crc32(body, 0):
        return None
    magic, *fields = _BODY.unpack(body)
    return Slot(*fields) if magic == _MAGIC else None


def read_position(fs: Fs, path: Path) -> Position:
    """FileNotFoundError without such a file; OffsetDamaged if neither slot can be believed."""
    raw = read_all(fs, path, _READ_MAX)
    slots = [slot for at in SLOTS_AT if (slot := unpack_slot(raw, at)) is not None]
    if not slots:
        raise OffsetDamaged(f"{path}: both slots are damaged; reset_receiver() says where to go on", path=str(path))
    newest = max(slots, key=lambda slot: slot.generation)
    temporary = bool(newest.flags & FLAG_TEMPORARY)
    return Position(newest.offset, newest.generation, temporary, len(SLOTS_AT) - len(slots))


def create_position(fs: Fs, path: Path, offset: int, *, temporary: bool = False) -> None:
    """A new file, or a new beginning for an old one; durable."""
    flags = FLAG_TEMPORARY if temporary else 0
    first, second = (pack_slot(Slot(flags, generation, offset)) for generation in (0, 1))
    replace_file(fs, path, [first.ljust(SLOTS_AT[1], b"\0"), second])


class OffsetFile:
    """An open position, moved by one owner. After a failed write the next one uses the same slot again."""

    def __init__(self, fs: Fs, path: Path, *, sync: bool) -> None:
        self._path = path
        self._sync = sync
        position = read_position(fs, path)
        self.offset = position.offset
        self._generation = position.generation
        self._flags = FLAG_TEMPORARY if position.temporary else 0
        self._file: File = fs.open(path, write=True)
        self._raw_fd: int | None = getattr(self._file, "raw_fd", None)

    @property
    def file(self) -> File:
        return self._file

    def move(self, offset: int) -> None:
        """Only forward. Before it returns the system has it, and the disk where syncs are wanted."""
        if offset < self.offset:
            raise ValueError(f"{self._path}: offset {offset} lies before {self.offset}")
        generation = self._generation + 1
        body = _BODY.pack(_MAGIC, self._flags, generation, offset)
        slot, at = body + _CRC.pack(core.crc32(body, 0)), SLOTS_AT[generation & 1]
        # The quick way; a write that took only a part is done again by the careful one.
        if self._raw_fd is None or os.pwrite(self._raw_fd, slot, at) != SLOT_BYTES:
            self._file.pwrite((slot,), at)
        if self._sync:
            self._file.sync_data()
        # An interrupt between these lines is harmless: the same slot is written again.
        self._generation = generation
        self.offset = offset

    def close(self) -> None:
        self._raw_fd = None
        self._file.close()
