"""The newest segment after a crash. Promise: every record that was synced is kept, the torn tail is cut, and
what is kept is durable before anybody relies on it.

The index is written after the data was synced, so a frame that an entry names was durable once: if it is bad
now, that is damage. An index that contradicts frames which can be read is not believed at all. Frames behind the
index are believed one by one; from the first bad one on they are cut, because the WAL still has them.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from topicd.disk.fs import File, Fs, replace_file
from topicd.disk.loading import Content
from topicd.shards.storage.segment.index import (
    ENTRY_BYTES,
    entries_within,
    entry_at,
    entry_count,
    tiled_entries,
)
from topicd.shards.storage.segment.info import Cut, LoadedSegments, SegmentDamage, SegmentInfo
from topicd.shards.storage.segment.names import CUT, DATA, DEL, IDX, topic_id_of
from topicd.shards.storage.segment.places import resolve
from topicd.shards.storage.segment.reindex import ScannedTail, scan_tail


class _Found(NamedTuple):
    entries: bytes  # .idx as it was
    claimed: int  # whole entries in it
    believed: int  # of these, those whose frame lies inside the data
    trusted: int  # of these, all but the last, which may be torn inside and is read again
    tail: ScannedTail  # frames behind the trusted entries
    size: int  # of .data
    content: Content  # .data
    index_problem: str  # why .idx may have named more than `claimed`, ""


class ActiveSegment:
    def __init__(self, fs: Fs, topic_dir: Path, first_seq: int) -> None:
        self._fs = fs
        self._dir = topic_dir
        self._first = first_seq
        self._found = self._scan()

    def _scan(self) -> _Found:
        place = resolve(self._dir, self._first)
        found = place.load_index(self._fs)
        index = bytes(found.view[: found.bad[0].start] if found.bad else found.view)
        content = place.load(self._fs, DATA)
        size = len(content.view)
        claimed = tiled_entries(index)
        whole = scan_tail(content.view, 0, self._first, topic_id_of(self._dir))
        compared = min(len(whole.entries), claimed * ENTRY_BYTES)
        if index[:compared] != whole.entries[:compared] and not self._only_ends_torn(index, whole, claimed):
            # Of another segment, or rotten: what it says of frames that can be read is not so.
            return _Found(index, 0, 0, 0, whole, size, content, found.problem)
        believed = entries_within(index, claimed, size)
        trusted = max(believed - 1, 0)
        start = entry_at(index, trusted).offset if believed else 0
        tail = scan_tail(content.view[start:], start, self._first + trusted, topic_id_of(self._dir))
        return _Found(index, claimed, believed, trusted, tail, size, content, found.problem)

    @staticmethod
    def _only_ends_torn(index: bytes, whole: ScannedTail, claimed: int) -> bool:
        """The last entry may be half written: its place is right, its time or flags are not."""
        before = (claimed - 1) * ENTRY_BYTES
        return len(whole.entries) >= claimed * ENTRY_BYTES and index[:before] == whole.entries[:before]

    @property
    def rewritten(self) -> bool:
        """Its seqs have holes: not an active segment but a sealed and rewritten one that lost its seal."""
        found = self._found
        return found.tail.jumps or (found.believed > 0 and entry_at(found.entries, found.trusted).length == 0)

    def recover(self, report: LoadedSegments) -> tuple[SegmentInfo, bytes] | None:
        """The segment and its index; None if it holds no record and was removed."""
        found = self._found
        index = found.entries[: found.trusted * ENTRY_BYTES] + found.tail.entries
        count = entry_count(index)
        file = self._fs.open(resolve(self._dir, self._first).text(DATA), write=True)
        try:
            self._cut_tail(file, count, report)
            if count > found.believed:
                # Perhaps only in the page cache until now.
                file.sync_data()
        finally:
            file.close()
        if count == 0:
            for part in (DATA, IDX, DEL):
                self._fs.unlink(self._path(part), missing_ok=True)
            return None
        if found.believed == 0:
            # An index is written after the names are durable; without one they may not be.
            self._fs.sync_dir(self._dir)
            self._fs.sync_dir(self._dir.parent)
        if index != found.entries:
            self._write_index(index)
        first_ts, last_ts = entry_at(index, 0).ts, entry_at(index, count - 1).ts
        info = SegmentInfo(self._first, count, found.tail.end, first_ts, last_ts, first_ts, sealed=False)
        return info, index

    def _cut_tail(self, file: File, count: int, report: LoadedSegments) -> None:
        found, first_lost = self._found, self._first + count
        claimed_last = self._first + found.claimed - 1
        unread = found.content.problem if found.content.touches(found.tail.end, found.size) else ""
        if claimed_last >= first_lost:
            what = f"records that the index names cannot be read{': ' if unread else ''}{unread}"
            report.damage.append(SegmentDamage(self._path(DATA), first_lost, claimed_last, what))
        if found.index_problem:
            what = f"{found.index_problem}; built anew from the data"
            report.damage.append(SegmentDamage(self._path(IDX), self._first, first_lost - 1, what, repaired=True))
        torn = found.size - found.tail.end
        if not torn:
            return
        # Bytes that nobody can read may be anything, and so may what an unreadable index named: not just torn.
        if found.tail.behind or claimed_last >= first_lost or unread or found.index_problem:
            kept = self._path(CUT)
            replace_file(self._fs, kept, [found.content.view[-torn:]])
            last_lost = max(found.tail.behind, claimed_last, first_lost)
            report.cuts.append(Cut(self._path(DATA), first_lost, last_lost, kept, claimed_last))
        file.truncate(found.tail.end)
        file.sync_data()
        report.torn_bytes += torn

    def _write_index(self, index: bytes) -> None:
        unchanged = self._found.trusted * ENTRY_BYTES
        file = self._fs.open(self._path(IDX), write=True, create=True)
        try:
            file.truncate(unchanged)
            file.pwrite([memoryview(index)[unchanged:]], unchanged)
        finally:
            file.close()

    def _path(self, part: str) -> Path:
        return resolve(self._dir, self._first).file(part)
