"""A small document beside a channel, for who carries its messages elsewhere. Promise: after a crash in the middle of a
write the document before it is there.

Two slots in turn, as with offsets: 0 and 128 KiB.

      0  4s   magic
      4  u32  length of the body
      8  u64  generation   the higher one counts
     16  u32  crc32        over the 16 bytes before and the body
     20  body
"""

from __future__ import annotations

import struct
from pathlib import Path

from topicd._native.channel import core
from topicd.disk.fs import Fs, RealFs, read_all, replace_file
from topicd.errors import InvalidRequest
from topicd.filechannel.errors import OffsetDamaged
from topicd.limits import KIB

SLOT_BYTES = 128 * KIB
_MAGIC = b"TFCN"
_HEAD = struct.Struct(
    ">"
    "4s"  # magic
    "I"  # length of the body
    "Q"  # generation
)
_CRC = struct.Struct(">I")
BODY_MAX = SLOT_BYTES - _HEAD.size - _CRC.size


class Note:
    """fs: another filesystem, in tests."""

    def __init__(self, directory: Path, name: str, *, sync: bool, fs: Fs | None = None) -> None:
        fs = RealFs() if fs is None else fs
        path = directory / name
        self._sync = sync
        if not fs.exists(path):
            replace_file(fs, path, [_packed(0, b"").ljust(SLOT_BYTES, b"\0"), _packed(1, b"")])
        raw = read_all(fs, path, 2 * SLOT_BYTES)
        found = [slot for at in (0, SLOT_BYTES) if (slot := _unpacked(raw, at)) is not None]
        if not found:
            raise OffsetDamaged(f"{path}: both slots are damaged; what was under way is not known", path=str(path))
        self._generation, self.body = max(found)
        self._file = fs.open(path, write=True)

    def write(self, body: bytes) -> None:
        if len(body) > BODY_MAX:
            raise InvalidRequest(f"a note of {len(body)} bytes exceeds {BODY_MAX}")
        generation = self._generation + 1
        self._file.pwrite([_packed(generation, body)], (generation & 1) * SLOT_BYTES)
        if self._sync:
            self._file.sync_data()
        self._generation, self.body = generation, body

    def close(self) -> None:
        self._file.close()


def _packed(generation: int, body: bytes) -> bytes:
    head = _HEAD.pack(_MAGIC, len(body), generation)
    return head + _CRC.pack(core.crc32(body, core.crc32(head, 0))) + body


def _unpacked(raw: bytes, at: int) -> tuple[int, bytes] | None:
    if len(raw) < at + _HEAD.size + _CRC.size:
        return None
    magic, length, generation = _HEAD.unpack_from(raw, at)
    start = at + _HEAD.size + _CRC.size
    body = raw[start : start + length]
    if magic != _MAGIC or len(body) != length:
        return None
    checksum = core.crc32(body, core.crc32(raw[at : at + _HEAD.size], 0))
    return (generation, body) if checksum == _CRC.unpack_from(raw, at + _HEAD.size)[0] else None
