"""Sealing: index checked against the data and synced, then the tag table, whose name is the seal.

Promise: a sealed segment was read and verified whole, or written and synced whole by the caller just before; records
that failed are marked damaged in the index and reported, the others stay readable. Crash before the rename: not sealed,
and sealed at the next load.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from topicd._native import core
from topicd._native.interface import Buffer
from topicd.disk.fs import Fs, replace_file
from topicd.frames import FrameFlag
from topicd.limits import MAX_SEQ
from topicd.shards.storage.ranges import Ranges
from topicd.shards.storage.segment.index import (
    DAMAGED,
    ENTRY_BYTES,
    FLAGS_AT,
    GONE,
    entry_at,
    entry_count,
    flagged,
    gone_entries,
)
from topicd.shards.storage.segment.info import SegmentDamage, SegmentInfo
from topicd.shards.storage.segment.names import DATA, IDX, TAGS, topic_id_of
from topicd.shards.storage.segment.places import resolve
from topicd.shards.storage.segment.reindex import APPEND, Rebuilt, reindex
from topicd.shards.storage.segment.tags import Seal, pack_tags

_TAG = int(FrameFlag.TAG)


def segment_end(first_seq: int, seal: Seal | None, claimed_last: int, following: int | None) -> int | None:
    """The first seq that the segment cannot have, as far as anybody knows. claimed_last: by its index, which may speak
    of more than its neighbour leaves it: then they overlap, and nobody knows who is right."""
    if seal is not None:
        return first_seq + seal.count
    return following if following is not None and claimed_last < following else None


class Sealed(NamedTuple):
    info: SegmentInfo
    gone: Ranges
    damage: list[SegmentDamage]


class Written(NamedTuple):
    """All of a segment, as its writer has it in memory: read back it would be the same bytes from the page cache."""

    frames: Sequence[Buffer]
    entries: bytes  # of the index


class Seals(NamedTuple):
    """What a segment will be once its tag table has its name."""

    sealed: Sealed
    path: Path  # of the tag table
    parts: list[bytes]


def seal_segment(
    fs: Fs,
    topic_dir: Path,
    first_seq: int,
    *,
    gone: Ranges | None = None,
    created_ms: int | None = None,
    last_seq: int | None = None,
    before: int | None = None,
    written: Written | None = None,
) -> Sealed:
    """Seal the segment as its data file stands.

    gone: what earlier rewrites took away. created_ms defaults to the first record's time. last_seq, if
    known, is where the segment should end, before a seq that it cannot have. written: the segment, if the caller has
    just made all of it durable.
    """
    made = prepare_seal(
        fs,
        topic_dir,
        first_seq,
        gone=gone,
        created_ms=created_ms,
        last_seq=last_seq,
        before=before,
        written=written,
    )
    # Everything the seal speaks of is durable; now its bytes, then its name.
    replace_file(fs, made.path, made.parts)
    return made.sealed


def prepare_seal(
    fs: Fs,
    topic_dir: Path,
    first_seq: int,
    *,
    gone: Ranges | None = None,
    created_ms: int | None = None,
    last_seq: int | None = None,
    before: int | None = None,
    written: Written | None = None,
    synced: bool = True,
) -> Seals:
    """The data verified, the index right and, if wanted, synced; the seal itself is for the caller to write. The tag
    table names every record, deleted or not: the log may have to find them, if their marks do not outlive a crash."""
    frames: Sequence[Buffer]
    unread = ""
    if written is not None:
        frames, found = written
        rebuilt = Rebuilt(found, [], sum(map(len, frames)), 0)
    else:
        content = resolve(topic_dir, first_seq).load(fs, DATA)
        view, unread = content.view, content.problem
        frames, found = [view], resolve(topic_dir, first_seq).read_index(fs)
        rebuilt = _checked_index(view, first_seq, topic_id_of(topic_dir), gone or Ranges(), last_seq, before)
    index = rebuilt.entries
    if index == found:
        if synced:
            _sync_index(fs, topic_dir, first_seq)
    else:
        replace_file(fs, resolve(topic_dir, first_seq).file(IDX), [index])
    info = _info(index, first_seq, sum(map(len, frames)), created_ms)
    seal = Seal(
        first_seq=first_seq,
        count=info.count,
        damaged=sum(last - first + 1 for first, last in rebuilt.damaged),
        data_bytes=info.data_bytes,
        first_ts=info.first_ts,
        last_ts=info.last_ts,
        created_ms=info.created_ms,
        index_xxh3=core.xxh3_64(index),
        gone=Ranges(flagged(index, first_seq, GONE)),
    )
    path = resolve(topic_dir, first_seq).file(DATA)
    what = f"frames cannot be read: {unread}" if unread else "frames cannot be read"
    damage = [SegmentDamage(path, first, last, what) for first, last in rebuilt.damaged]
    if rebuilt.bad_tail:
        what = unread or f"{rebuilt.bad_tail} bytes behind the last record belong to none"
        damage.append(SegmentDamage(path, info.last_seq + 1, info.last_seq, what, repaired=not unread))
    tags = pack_tags(seal, _tags(frames, index, rebuilt))
    return Seals(Sealed(info, seal.gone, damage), resolve(topic_dir, first_seq).file(TAGS), tags)


def _sync_index(fs: Fs, topic_dir: Path, first_seq: int) -> None:
    # A missing one reads as empty, and so may be right: of a segment whose data is empty, too.
    file = fs.open(resolve(topic_dir, first_seq).file(IDX), write=True, create=True)
    try:
        file.sync_data()
    finally:
        file.close()


def _checked_index(
    view: memoryview, first_seq: int, topic_id: int | None, gone: Ranges, last_seq: int | None, before: int | None
) -> Rebuilt:
    scan = core.scan_frames(view, 0, len(view))
    if not scan.problem and len(scan.runs) == 1:
        run = scan.runs[0]
        mine = run.type == APPEND and run.first_seq == first_seq and topic_id in {None, run.topic_id}
        if mine and (before is None or first_seq + run.count <= before):
            rebuilt = Rebuilt(core.index_entries(view, 0, len(view), 0), [], len(view), 0)
            return _with_gone_at_the_end(rebuilt, first_seq, gone)
    rebuilt = reindex(view, first_seq, topic_id, last_seq, before)
    return rebuilt if rebuilt.bad_tail else _with_gone_at_the_end(rebuilt, first_seq, gone)


def _with_gone_at_the_end(rebuilt: Rebuilt, first_seq: int, gone: Ranges) -> Rebuilt:
    """Records that are gone behind the last frame leave no trace in the data."""
    count = entry_count(rebuilt.entries)
    following = gone.within(first_seq + count, MAX_SEQ)
    if not following or following[0][0] != first_seq + count:
        return rebuilt
    ts = entry_at(rebuilt.entries, count - 1).ts if count else 0
    missing = following[0][1] - following[0][0] + 1
    return rebuilt._replace(entries=rebuilt.entries + gone_entries(rebuilt.end, ts, missing))


def _info(index: bytes, first_seq: int, data_bytes: int, created_ms: int | None) -> SegmentInfo:
    count = entry_count(index)
    first_ts = entry_at(index, 0).ts if count else 0
    return SegmentInfo(
        first_seq=first_seq,
        count=count,
        data_bytes=data_bytes,
        first_ts=first_ts,
        last_ts=entry_at(index, count - 1).ts if count else 0,
        created_ms=first_ts if created_ms is None else created_ms,
        sealed=True,
    )


def _tags(frames: Sequence[Buffer], index: bytes, rebuilt: Rebuilt) -> list[tuple[bytes, int]]:
    tagged: list[tuple[bytes, int]] = []
    if not any(flags & _TAG for flags in set(index[FLAGS_AT::ENTRY_BYTES])):
        return tagged
    view = frames[0] if len(frames) == 1 else b"".join(frames)
    if not rebuilt.damaged:
        return core.frame_tags(view, 0, rebuilt.end)
    for number in range(entry_count(index)):
        offset, length, _, flags = entry_at(index, number)
        if length and not flags & DAMAGED:
            tagged += core.frame_tags(view, offset, offset + length)
    return tagged
