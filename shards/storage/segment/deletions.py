"""`.del`: which records of a segment are deleted. Promise: a mark that was synced is never forgotten.

Append-only entries, each with its own checksum, so that no byte of a sealed file changes:

    0  u64 first    seqs first..last are deleted
    8  u64 last
   16  u64 xxh3_64  of the two above, seeded with the segment's first seq
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from topicd._native import core
from topicd.disk.fs import File, Fs
from topicd.disk.loading import load
from topicd.shards.storage.ranges import Ranges
from topicd.shards.storage.segment.names import DEL
from topicd.shards.storage.segment.places import resolve

_RANGE = struct.Struct("<QQ")
_CHECKSUM = struct.Struct("<Q")
_MARK = struct.Struct("<QQQ")
MARK_BYTES = _MARK.size

# Appending marks and dropping the file that a rewrite made needless must not cross.
_LOCKS = [Lock() for _ in range(64)]


class Marks(NamedTuple):
    ranges: Ranges
    end: int  # behind the last valid mark
    size: int  # of the file
    bad: int  # marks that cannot be believed with a valid one behind them


def append_marks(fs: Fs, topic_dir: Path, first_seq: int, ranges: Iterable[tuple[int, int]]) -> None:
    """Mark the ranges deleted, durably. Every range must lie inside the segment."""
    packed = pack_marks(first_seq, ranges)
    if not packed:
        return
    file = write_marks(fs, topic_dir, first_seq, packed)
    try:
        file.sync_data()
    finally:
        file.close()


def write_marks(fs: Fs, topic_dir: Path, first_seq: int, packed: bytes, *, again: bool = False) -> File:
    """Append without syncing the bytes; the caller syncs and closes the file. again: an earlier sync failed, and the
    kernel may have dropped marks that it still shows: all are written once more."""
    with _lock(topic_dir, first_seq):
        file = fs.open(resolve(topic_dir, first_seq).file(DEL), write=True, create=True)
        try:
            size = file.size()
            if size == 0:
                # The name before the first mark: an empty file may be one whose name is not durable yet.
                fs.sync_dir(topic_dir)
            # A mark that an earlier failure left half written is overwritten.
            end = size - size % MARK_BYTES
            start = 0 if again else end
            file.pwrite([file.pread(end - start, start), packed], start)
        except BaseException:
            file.close()
            raise
        return file


def pack_marks(first_seq: int, ranges: Iterable[tuple[int, int]]) -> bytes:
    return b"".join(_pack(first_seq, first, last) for first, last in ranges)


def _pack(seed: int, first: int, last: int) -> bytes:
    if first < seed or last < first:
        raise ValueError(f"mark {first}..{last} is not inside the segment that starts at {seed}")
    bounds = _RANGE.pack(first, last)
    return bounds + _CHECKSUM.pack(core.xxh3_64(bounds, seed))


def parse_marks(raw: bytes, first_seq: int) -> Marks:
    ranges, end, bad, doubtful = Ranges(), 0, 0, 0
    whole = len(raw) - len(raw) % MARK_BYTES
    for at, (first, last, checksum) in zip(range(0, whole, MARK_BYTES), _MARK.iter_unpack(raw[:whole]), strict=True):
        if first_seq <= first <= last and core.xxh3_64(raw[at : at + _RANGE.size], first_seq) == checksum:
            ranges.add(first, last)
            end = at + MARK_BYTES
            bad, doubtful = bad + doubtful, 0
        else:
            doubtful += 1
    return Marks(ranges, end, len(raw), bad)


def load_marks(fs: Fs, topic_dir: Path, first_seq: int) -> Marks:
    """Every mark that can be believed. A torn tail is cut, or later marks would stand behind it."""
    file = fs.open(resolve(topic_dir, first_seq).file(DEL), write=True)
    try:
        content = load(file)
        marks = parse_marks(bytes(content.view), first_seq)
        if content.bad:
            # Not torn, but there and not to be had: they stay, and later marks stand behind them.
            unread = sum(part.end - part.start for part in content.bad)
            return marks._replace(bad=max(marks.bad, -(-unread // MARK_BYTES)))
        if marks.end != marks.size:
            file.truncate(marks.end)
            file.sync_data()
        return marks
    finally:
        file.close()


def drop_marks(fs: Fs, topic_dir: Path, first_seq: int, gone: Ranges) -> bool:
    """Remove the marks if every one speaks of records that are gone; False if some do not, or cannot be read."""
    path = resolve(topic_dir, first_seq).file(DEL)
    with _lock(topic_dir, first_seq):
        if fs.exists(path):
            marks = load_marks(fs, topic_dir, first_seq)
            if marks.bad or any(gone.missing(first, last) for first, last in marks.ranges):
                return False
            fs.unlink(path)
    return True


def _lock(topic_dir: Path, first_seq: int) -> Lock:
    return _LOCKS[hash((topic_dir, first_seq)) % len(_LOCKS)]
