"""Rewriting a sealed segment without its deleted records. Promise: after a crash at any point the old or the
new segment is there, whole, and deleted records stay deleted.

    1  copies of .data, .idx and .tags under temporary names, synced, names synced
    2  .tags renamed, directory synced: the decision. It names the new index by checksum
    3  .data and .idx renamed, directory synced; finish_rewrite does it after a crash
    4  .del removed: the new seal knows what is gone

Seqs keep their place: a record that is gone keeps an index entry without bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from topicd._native import core
from topicd._native.interface import Buffer, Run
from topicd.disk.fs import Fs, tmp_path, write_beside
from topicd.disk.loading import load_file
from topicd.errors import StorageCorrupt
from topicd.shards.storage.ranges import Ranges
from topicd.shards.storage.segment.deletions import drop_marks
from topicd.shards.storage.segment.index import ENTRY, GONE, entry_at, index_end
from topicd.shards.storage.segment.info import SegmentInfo
from topicd.shards.storage.segment.names import COLD, DATA, IDX, PACKED, TAGS
from topicd.shards.storage.segment.places import resolve
from topicd.shards.storage.segment.reindex import APPEND
from topicd.shards.storage.segment.tags import Seal, pack_tags, read_seal


def rewrite_segment(fs: Fs, topic_dir: Path, info: SegmentInfo, dead: Ranges) -> SegmentInfo:
    """Copy the living records and swap; the segment as it is afterwards (dead_bytes counts from zero again).

    Marks that arrive meanwhile stay in `.del`. After an OSError call it again: it goes on where it stopped.
    Cached readers see the old files until they are dropped. ValueError if no record lives: drop the segment
    instead.
    """
    first = info.first_seq
    finish_rewrite(fs, topic_dir, first)
    seal = read_seal(fs, topic_dir, first) if info.sealed else None
    if seal is None:
        raise ValueError(f"segment {first} is not sealed")
    gone = Ranges(dead.within(first, info.last_seq))
    gone.update(seal.gone)
    if gone.covered >= seal.count:
        raise ValueError(f"no record of segment {first} lives")
    if gone != seal.gone:
        copy = _copy_living(fs, topic_dir, seal, gone)
        seal = _write_copy(fs, topic_dir, seal, gone, copy)
        finish_rewrite(fs, topic_dir, first)
    drop_marks(fs, topic_dir, first, gone)
    return replace(info, count=seal.count, data_bytes=seal.data_bytes, dead=gone.covered, dead_bytes=0)


def finish_rewrite(fs: Fs, topic_dir: Path, first_seq: int) -> None:
    """Roll a decided rewrite forward; remove the temporary files of one that was not."""
    data, idx, tags = (resolve(topic_dir, first_seq).file(part) for part in (DATA, IDX, TAGS))
    seal = read_seal(fs, topic_dir, first_seq) if fs.exists(tags) else None
    pending = [path for path in (data, idx) if fs.exists(tmp_path(path))]
    decided = [path for path in pending if seal is not None and _belongs(fs, path, seal)]
    if decided:
        # The decision first: the files it speaks of must not be seen without it.
        fs.sync_dir(topic_dir)
        for path in decided:
            fs.rename(tmp_path(path), path)
        fs.sync_dir(topic_dir)
    moved = (resolve(topic_dir, first_seq).file(part) for part in (PACKED, COLD))
    for path in (data, idx, tags, *moved):
        fs.unlink(tmp_path(path), missing_ok=True)


def _belongs(fs: Fs, path: Path, seal: Seal) -> bool:
    """Is the temporary file of path the one that the seal in force speaks of?"""
    if path.suffix == f".{DATA}":
        # A rewrite always takes bytes away, so the two sizes differ. Without the file it is a copy of frames that lie
        # elsewhere, and nobody knows whether it is whole.
        return fs.exists(path) and fs.size(tmp_path(path)) == seal.data_bytes and fs.size(path) != seal.data_bytes
    return core.xxh3_64(load_file(fs, tmp_path(path)).view) == seal.index_xxh3


class _Copy(NamedTuple):
    spans: list[memoryview]
    entries: bytes
    tagged: list[tuple[bytes, int]]


def _copy_living(fs: Fs, topic_dir: Path, seal: Seal, gone: Ranges) -> _Copy:
    """The living part of the segment, every frame of it verified."""
    place = resolve(topic_dir, seal.first_seq)
    path, (view, _), (index, _) = place.file(DATA), place.load(fs, DATA), place.load(fs, IDX)
    if core.xxh3_64(index) != seal.index_xxh3 or index_end(index) > len(view) or seal.damaged:
        raise _corrupt(path, seal.first_seq, seal.first_seq + seal.count - 1)
    spans: list[memoryview] = []
    entries: list[bytes] = []
    tagged: list[tuple[bytes, int]] = []
    at, seq = 0, seal.first_seq
    for first, last in gone.missing(seal.first_seq, seal.first_seq + seal.count - 1):
        entries += _gone(index, seal.first_seq, seq, first - 1, at)
        start = entry_at(index, first - seal.first_seq).offset
        final = entry_at(index, last - seal.first_seq)
        end = final.offset + final.length
        if not _holds(core.scan_frames(view, start, end).runs, end, first, last):
            raise _corrupt(path, first, last)
        entries.append(core.index_entries(view, start, end, at))
        tagged += core.frame_tags(view, start, end)
        spans.append(view[start:end])
        at, seq = at + end - start, last + 1
    entries += _gone(index, seal.first_seq, seq, seal.first_seq + seal.count - 1, at)
    return _Copy(spans, b"".join(entries), tagged)


def _gone(index: memoryview, origin: int, first: int, last: int, at: int) -> list[bytes]:
    return [ENTRY.pack(at, 0, entry_at(index, seq - origin).ts, GONE) for seq in range(first, last + 1)]


def _holds(runs: list[Run], end: int, first: int, last: int) -> bool:
    if len(runs) != 1:
        return False
    run = runs[0]
    whole = run.end == end and run.first_seq == first and run.count == last - first + 1
    return whole and run.type == APPEND


def _write_copy(fs: Fs, topic_dir: Path, old: Seal, gone: Ranges, copy: _Copy) -> Seal:
    first = old.first_seq
    seal = replace(
        old,
        gone=gone,
        data_bytes=sum(len(span) for span in copy.spans),
        index_xxh3=core.xxh3_64(copy.entries),
    )
    parts: dict[str, Sequence[Buffer]] = {
        DATA: copy.spans,
        IDX: [copy.entries],
        TAGS: pack_tags(seal, copy.tagged),
    }
    try:
        for part, content in parts.items():
            write_beside(fs, resolve(topic_dir, first).file(part), content)
        fs.sync_dir(topic_dir)
    except OSError:
        for part in parts:
            with suppress(OSError):
                fs.unlink(tmp_path(resolve(topic_dir, first).file(part)), missing_ok=True)
        raise
    tags = resolve(topic_dir, first).file(TAGS)
    fs.rename(tmp_path(tags), tags)
    return seal


def _corrupt(path: Path, first: int, last: int) -> StorageCorrupt:
    message = f"{path}: records {first}..{last} cannot be read, the segment is left as it is"
    return StorageCorrupt(message, segment=str(path), first_seq=first, last_seq=last)
