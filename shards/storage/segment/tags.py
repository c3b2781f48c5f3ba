"""`.tags`: the seal of a segment and its tag table. Promise: a valid header says all that opening needs.

header     _HEADER below, then u64 xxh3_64 of the header and of `gone`
gone       (first u64, last u64) per range of records that a rewrite took away
directory  _TAG per tag, sorted by tag bytes
keys       the tags, end to end
postings   u32 per tagged record: seq - first seq, ascending per tag
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from topicd._native import core
from topicd.disk.fs import Fs
from topicd.disk.loading import load, load_file
from topicd.errors import FormatError, StorageCorrupt
from topicd.model import TagMatch
from topicd.shards.storage.ranges import Ranges
from topicd.shards.storage.segment.names import TAGS
from topicd.shards.storage.segment.places import resolve

MAGIC = b"TTAG"
VERSION = 1
_HEADER = struct.Struct(
    "<"  # little-endian, unpadded
    "4s"  # magic
    "H"  # version
    "H"  # flags          0
    "Q"  # first_seq
    "I"  # count          seqs covered, gone and damaged ones included
    "I"  # damaged        seqs whose record was unreadable when it was sealed
    "Q"  # data_bytes     size of .data
    "Q"  # first_ts
    "Q"  # last_ts
    "Q"  # created_ms
    "Q"  # index_xxh3     of the whole .idx
    "I"  # gone_ranges
    "I"  # tag_count
    "I"  # key_bytes
    "I"  # posting_count
    "Q"  # table_xxh3     of directory, keys and postings
)
_GONE_RANGES = 11  # which field that is, and where
_GONE_COUNT_AT = struct.calcsize("<4sHHQIIQQQQQ")
_CHECKSUM = struct.Struct("<Q")
_GONE_AT = _HEADER.size + _CHECKSUM.size
_GONE_BYTES = struct.calcsize("<QQ")
_TAG = struct.Struct(
    "<"
    "I"  # key_at    offset in keys
    "I"  # key_len
    "I"  # first     number of its first posting
    "I"  # count     postings
)
_READ_AHEAD = 4096


@dataclass(slots=True)
class Seal:
    """The head of a .tags file."""

    first_seq: int
    count: int
    damaged: int
    data_bytes: int
    first_ts: int
    last_ts: int
    created_ms: int
    index_xxh3: int
    gone: Ranges = field(default_factory=Ranges)
    tag_count: int = 0
    key_bytes: int = 0
    posting_count: int = 0
    table_xxh3: int = 0

    @property
    def table_at(self) -> int:
        return _GONE_AT + len(self.gone) * _GONE_BYTES

    @property
    def file_bytes(self) -> int:
        return self.table_at + self.tag_count * _TAG.size + self.key_bytes + self.posting_count * 4


def pack_tags(seal: Seal, tagged: Iterable[tuple[bytes, int]]) -> list[bytes]:
    """The file's bytes; seqs of one tag must come ascending. Fills in the counts of `seal`."""
    by_tag: dict[bytes, list[int]] = {}
    for tag, seq in tagged:
        by_tag.setdefault(tag, []).append(seq - seal.first_seq)
    tags = sorted(by_tag)
    directory: list[bytes] = []
    postings: list[int] = []
    key_at = 0
    for tag in tags:
        numbers = by_tag[tag]
        directory.append(_TAG.pack(key_at, len(tag), len(postings), len(numbers)))
        postings += numbers
        key_at += len(tag)
    table = b"".join((*directory, *tags, struct.pack(f"<{len(postings)}I", *postings)))
    seal.tag_count, seal.key_bytes, seal.posting_count = len(tags), key_at, len(postings)
    seal.table_xxh3 = core.xxh3_64(table)
    head, gone = _pack_header(seal), seal.gone.packed()
    return [head, _CHECKSUM.pack(core.xxh3_64(head + gone)), gone, table]


def _pack_header(seal: Seal) -> bytes:
    return _HEADER.pack(
        MAGIC,
        VERSION,
        0,
        seal.first_seq,
        seal.count,
        seal.damaged,
        seal.data_bytes,
        seal.first_ts,
        seal.last_ts,
        seal.created_ms,
        seal.index_xxh3,
        len(seal.gone),
        seal.tag_count,
        seal.key_bytes,
        seal.posting_count,
        seal.table_xxh3,
    )


def read_seal(fs: Fs, topic_dir: Path, first_seq: int) -> Seal | None:
    """The header; None if it cannot be read or believed; FormatError if it is whole but of an unknown version."""
    path = resolve(topic_dir, first_seq).file(TAGS)
    file = fs.open(path)
    try:
        size = file.size()
        raw = load(file, 0, min(size, _READ_AHEAD)).view
        if len(raw) < _GONE_AT:
            return None
        (gone_ranges,) = struct.unpack_from("<I", raw, _GONE_COUNT_AT)
        end = _GONE_AT + gone_ranges * _GONE_BYTES
        if len(raw) < end <= size:
            raw = load(file, 0, end).view
        return parse_seal(path, raw, size, first_seq)
    finally:
        file.close()


def parse_seal(path: Path, raw: bytes | memoryview, size: int, first_seq: int) -> Seal | None:
    """`raw` holds at least header and gone ranges of a file of `size` bytes."""
    if len(raw) < _GONE_AT:
        return None
    fields = _HEADER.unpack_from(raw)
    magic, version, flags = fields[:3]
    gone_end = _GONE_AT + fields[_GONE_RANGES] * _GONE_BYTES
    if len(raw) < gone_end or magic != MAGIC:
        return None
    (checksum,) = _CHECKSUM.unpack_from(raw, _HEADER.size)
    gone = bytes(raw[_GONE_AT:gone_end])
    if core.xxh3_64(bytes(raw[: _HEADER.size]) + gone) != checksum:
        return None
    if version != VERSION or flags != 0:
        message = f"{path}: version {version} flags {flags}, expected version {VERSION} flags 0"
        raise FormatError(message, path=str(path), found=version, expected=VERSION)
    seal = Seal(*fields[3:_GONE_RANGES])
    seal.gone = Ranges.unpack(gone)
    seal.tag_count, seal.key_bytes, seal.posting_count, seal.table_xxh3 = fields[_GONE_RANGES + 1 :]
    return seal if seal.first_seq == first_seq and seal.file_bytes == size else None


class TagTable:
    """Looks tags up in a sealed segment: the file is held in memory and searched as it is."""

    def __init__(self, fs: Fs, topic_dir: Path, first_seq: int) -> None:
        self._fs = fs
        self._path = resolve(topic_dir, first_seq).file(TAGS)
        self._first_seq = first_seq
        self._seal: Seal | None = None
        self._view = memoryview(b"")
        self._keys_at = 0
        self._postings_at = 0

    def open(self) -> TagTable:
        """StorageCorrupt if the table fails its checksum, also because it cannot be read."""
        return self.use(load_file(self._fs, self._path).view)

    def use(self, view: memoryview) -> TagTable:
        """Search in these bytes of such a file instead of the stored ones."""
        seal = parse_seal(self._path, view, len(view), self._first_seq)
        if seal is None or core.xxh3_64(view[seal.table_at :]) != seal.table_xxh3:
            last = self._first_seq + (seal.count if seal else 1) - 1
            raise StorageCorrupt(
                f"{self._path}: the tag table fails its checksum",
                segment=str(self._path),
                first_seq=self._first_seq,
                last_seq=last,
            )
        self._seal, self._view = seal, view
        self._keys_at = seal.table_at + seal.tag_count * _TAG.size
        self._postings_at = self._keys_at + seal.key_bytes
        return self

    @property
    def tag_count(self) -> int:
        return self._seal.tag_count if self._seal else 0

    @property
    def index_xxh3(self) -> int:
        """Of the index that belongs to this table."""
        return self._seal.index_xxh3 if self._seal else 0

    @property
    def held_bytes(self) -> int:
        return len(self._view)

    def find(self, match: TagMatch) -> list[int]:
        """Seqs of the records with a matching tag, ascending; those deleted after the seal are among them."""
        low = self._search(match.value)
        if not match.prefix:
            return self._postings(low, low + 1) if low < self.tag_count and self.key(low) == match.value else []
        size = len(match.value)
        high = bisect_right(_Keys(self), match.value, low, key=lambda key: key[:size])
        return sorted(self._postings(low, high)) if low < high else []

    def _search(self, value: bytes) -> int:
        """The number of the first tag that is not below value. Written out: a delete does it in every segment."""
        if self._seal is None:
            return 0
        view, directory, keys_at, unpack = self._view, self._seal.table_at, self._keys_at, _TAG.unpack_from
        low, high = 0, self._seal.tag_count
        while low < high:
            middle = (low + high) >> 1
            at, size, _, _ = unpack(view, directory + middle * _TAG.size)
            at += keys_at
            if bytes(view[at : at + size]) < value:
                low = middle + 1
            else:
                high = middle
        return low

    def key(self, number: int) -> bytes:
        at, size, _, _ = self._entry(number)
        return bytes(self._view[self._keys_at + at : self._keys_at + at + size])

    def seqs(self, number: int) -> list[int]:
        """Of the records with that tag, ascending."""
        return self._postings(number, number + 1)

    def _postings(self, low: int, high: int) -> list[int]:
        """Seqs of the tags low to high - 1: those of neighbours lie side by side."""
        first = self._entry(low)[2]
        _, _, last_first, last_count = self._entry(high - 1)
        count = last_first + last_count - first
        numbers = struct.unpack_from(f"<{count}I", self._view, self._postings_at + first * 4)
        return [self._first_seq + n for n in numbers]

    def _entry(self, number: int) -> tuple[int, int, int, int]:
        if self._seal is None:
            raise ValueError("the tag table is not open")
        key_at, key_len, first, count = _TAG.unpack_from(self._view, self._seal.table_at + number * _TAG.size)
        return key_at, key_len, first, count

    def close(self) -> None:
        self._seal, self._view = None, memoryview(b"")


class _Keys:
    """The sorted tags as a sequence, for bisect."""

    def __init__(self, table: TagTable) -> None:
        self._table = table

    def __len__(self) -> int:
        return self._table.tag_count

    def __getitem__(self, number: int) -> bytes:
        return self._table.key(number)
