"""`.data.z`: the frames of a sealed segment, compressed. Promise: whatever offset of `.data` is asked for, the bytes
are those that were packed or a failed read that says which they are; a record needs one block.

Blocks end where a record ends, at 64 KiB or behind the record that reaches beyond it, and know nothing of each other.

    0  4s  magic       TPKZ
    4  u16 version     1
    6  u8  method      1: zstd
    7  u8  0
    8  u64 first_seq   of the segment
   16  u64 data_bytes  of the frames, unpacked
   24  u32 blocks
   28  u32 dict_bytes  of the dictionary; 0: none
   32  u64 xxh3_64     of bytes 0..32, the index and the dictionary
   40  index           for each block: u32 plain bytes, u32 packed bytes, u64 xxh3_64 of the plain bytes
    .  dictionary
    .  blocks          zstd frames
"""

from __future__ import annotations

import errno
import os
import struct
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from topicd._native import core
from topicd._native.interface import Buffer
from topicd.disk.fs import File, Fs
from topicd.limits import KIB

MAGIC = b"TPKZ"
VERSION = 1
ZSTD = 1
BLOCK_BYTES = 64 * KIB
_HEAD = struct.Struct(
    "<"  # little-endian, unpadded
    "4s"  # magic
    "H"  # version
    "B"  # method
    "x"
    "Q"  # first_seq
    "Q"  # data_bytes
    "I"  # blocks
    "I"  # dict_bytes
)
_CHECKSUM = struct.Struct("<Q")
_ENTRY = struct.Struct(
    "<"
    "I"  # plain bytes
    "I"  # packed bytes
    "Q"  # xxh3_64 of the plain bytes
)
_HEAD_BYTES = _HEAD.size + _CHECKSUM.size
_INDEX_MAX = 64 * KIB * KIB  # what a damaged head may make us read
_DICTIONARIES = 32  # those used last, to be found again


def zstd() -> Any:
    """The standard library's module, or its backport before Python 3.14."""
    try:
        from compression import zstd as found
    except ImportError:
        from backports import zstd as found
    return found


@lru_cache(_DICTIONARIES)
def dictionary_of(words: bytes) -> Any:
    """Neighbouring segments have the same one: it is in memory once."""
    return zstd().ZstdDict(words)


def dictionary_bytes(dictionary: Any) -> int:
    """What it takes in memory once something was unpacked with it: itself, a copy, tables."""
    return 2 * len(dictionary.dict_content) + 32 * KIB


class Block(NamedTuple):
    number: int
    start: int  # in .data
    plain: int  # bytes
    at: int  # in .data.z
    packed: int
    xxh3: int


class Layout:
    """Where the blocks lie."""

    def __init__(self, first_seq: int, data_bytes: int, entries: Sequence[tuple[int, int, int]], words: bytes) -> None:
        self.first_seq = first_seq
        self.data_bytes = data_bytes
        self.dictionary = dictionary_of(words) if words else None
        self._checksums = array("Q", (checksum for _, _, checksum in entries))
        self._starts = array("Q", accumulate((plain for plain, _, _ in entries), initial=0))
        begin = _HEAD_BYTES + len(entries) * _ENTRY.size + len(words)
        self._ends = array("Q", accumulate((packed for _, packed, _ in entries), initial=begin))

    def __len__(self) -> int:
        return len(self._checksums)

    @property
    def file_bytes(self) -> int:
        return self._ends[-1]

    @property
    def held_bytes(self) -> int:
        """Without the dictionary, which several may share."""
        return 24 * len(self)

    def block(self, number: int) -> Block:
        start, at = self._starts[number], self._ends[number]
        plain, packed = self._starts[number + 1] - start, self._ends[number + 1] - at
        return Block(number, start, plain, at, packed, self._checksums[number])

    def within(self, start: int, end: int) -> range:
        """The blocks that hold these bytes of .data."""
        end = min(end, self.data_bytes)
        if start >= end:
            return range(0)
        return range(bisect_right(self._starts, start) - 1, bisect_right(self._starts, end - 1))

    def unpack(self, block: Block, packed: Buffer, path: Path | str | None = None) -> bytes:
        """OSError EBADMSG if these bytes are not that block. path: where they are from."""
        module = zstd()
        try:
            plain: bytes = module.decompress(packed, zstd_dict=self.dictionary)
        except module.ZstdError as error:
            raise _bad(f"block {block.number} cannot be unpacked: {error}", path) from error
        if len(plain) != block.plain or core.xxh3_64(plain) != block.xxh3:
            raise _bad(f"block {block.number} fails its checksum", path)
        return plain


def _bad(what: str, path: Path | str | None = None) -> OSError:
    return OSError(errno.EBADMSG, what, None if path is None else str(path))


def read_layout(file: File, path: Path | str) -> Layout:
    """OSError EBADMSG if it is not a packed segment, or the part before the blocks is damaged."""
    head = file.pread(_HEAD_BYTES, 0)
    if len(head) < _HEAD_BYTES:
        raise _bad("is cut off", path)
    magic, version, method, first_seq, data_bytes, blocks, dict_bytes = _HEAD.unpack_from(head)
    if (magic, version, method) != (MAGIC, VERSION, ZSTD):
        raise _bad(f"is no packed segment of version {VERSION}", path)
    size = blocks * _ENTRY.size + dict_bytes
    if size > _INDEX_MAX:
        raise _bad("its head is damaged", path)
    rest = file.pread(size, _HEAD_BYTES)
    (checksum,) = _CHECKSUM.unpack_from(head, _HEAD.size)
    if len(rest) != size or core.xxh3_64(head[: _HEAD.size] + rest) != checksum:
        raise _bad("its index fails its checksum", path)
    entries = list(_ENTRY.iter_unpack(rest[: blocks * _ENTRY.size]))
    layout = Layout(first_seq, data_bytes, entries, rest[blocks * _ENTRY.size :])
    if sum(plain for plain, _, _ in entries) != data_bytes:
        raise _bad("its index does not cover its data", path)
    return layout


class PackedFile:
    """A packed segment, read as the `.data` it was made from. For one thread: it keeps the block it read last."""

    def __init__(self, file: File, path: Path | str) -> None:
        self._file = file
        self._path = path
        self._latest: tuple[int, bytes] = (-1, b"")
        try:
            self.layout = read_layout(file, path)
        except BaseException:
            file.close()
            raise

    def block(self, number: int) -> bytes:
        if self._latest[0] != number:
            block = self.layout.block(number)
            packed = self._file.pread(block.packed, block.at)
            self._latest = (number, self.layout.unpack(block, packed, self._path))
        return self._latest[1]

    def blocks(self, wanted: range) -> list[bytes]:
        """Neighbouring blocks by one read."""
        if not wanted:
            return []
        blocks = [self.layout.block(number) for number in wanted]
        base = blocks[0].at
        packed = memoryview(self._file.pread(blocks[-1].at + blocks[-1].packed - base, base))
        return [
            self.layout.unpack(one, packed[one.at - base : one.at - base + one.packed], self._path) for one in blocks
        ]

    def pread(self, size: int, offset: int) -> bytes:
        end = min(offset + size, self.layout.data_bytes)
        parts: list[Buffer] = []
        for number in self.layout.within(offset, end):
            start, plain = self.layout.block(number).start, self.block(number)
            low, high = max(offset - start, 0), min(end - start, len(plain))
            parts.append(plain if high - low == len(plain) else memoryview(plain)[low:high])
        return b"".join(parts)

    def read_into(self, target: memoryview, offset: int) -> int:
        found = self.pread(len(target), offset)
        target[: len(found)] = found
        return len(found)

    def size(self) -> int:
        return self.layout.data_bytes

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()

    def forget(self, size: int) -> None:
        """What others read stays."""

    def begin_sync(self, offset: int, length: int) -> None:
        raise _read_only()

    def pwrite(self, parts: Sequence[Buffer], offset: int) -> None:
        raise _read_only()

    def truncate(self, size: int) -> None:
        raise _read_only()

    def sync_data(self) -> None:
        raise _read_only()

    def sync(self) -> None:
        raise _read_only()


def _read_only() -> OSError:
    return OSError(errno.EROFS, os.strerror(errno.EROFS))


# ---- making one ----


def cuts(ends: Sequence[int], block_bytes: int = BLOCK_BYTES) -> list[int]:
    """Where the blocks end, from where the records do: as late as fits, and behind a record."""
    found: list[int] = []
    start = before = 0
    for end in ends:
        if end - start > block_bytes and before > start:
            found.append(before)
            start = before
        before = end
    if before > start:
        found.append(before)
    return found


class Packed(NamedTuple):
    """What a packed file consists of, and which of it is the dictionary."""

    parts: list[bytes]
    dict_bytes: int

    @property
    def size(self) -> int:
        return sum(map(len, self.parts))


def pack(data: Buffer, ends: Sequence[int], first_seq: int, level: int, words: bytes = b"") -> Packed:
    """The whole file. ends: where each record ends; the last one is the size of the data. words: a dictionary."""
    module, view = zstd(), memoryview(data)
    dictionary = module.ZstdDict(words) if words else None
    if dictionary is not None:
        dictionary = dictionary.as_digested_dict
    entries: list[bytes] = []
    blocks: list[bytes] = []
    start = 0
    for end in cuts(ends):
        plain = view[start:end]
        packed = module.compress(plain, level, zstd_dict=dictionary)
        entries.append(_ENTRY.pack(end - start, len(packed), core.xxh3_64(plain)))
        blocks.append(packed)
        start = end
    if start != len(view):
        raise ValueError(f"the records end at {start}, the data at {len(view)}")
    head = _HEAD.pack(MAGIC, VERSION, ZSTD, first_seq, len(view), len(blocks), len(words))
    rest = b"".join(entries) + words
    return Packed([head + _CHECKSUM.pack(core.xxh3_64(head + rest)) + rest, *blocks], len(words))


def open_packed(fs: Fs, path: Path | str) -> PackedFile:
    return PackedFile(fs.open(path), path)
