"""Opening a topic's segments. Promise: a sealed one costs its header, not its records; what cannot be
believed is reported and never served; loading twice gives the same answer.

`.data` is the truth of an unsealed segment. The newest may end in the debris of a crash, which is cut; an
older one was durable before its successor was made, so bad bytes in it are damage and stay where they are.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from topicd.disk.fs import Fs
from topicd.shards.storage.ranges import Ranges
from topicd.shards.storage.segment.active import ActiveSegment
from topicd.shards.storage.segment.deletions import load_marks
from topicd.shards.storage.segment.index import (
    DAMAGED,
    ENTRY_BYTES,
    GONE,
    bytes_of,
    entries_within,
    flagged,
    tiled_entries,
)
from topicd.shards.storage.segment.info import LoadedSegments, SegmentDamage, SegmentInfo
from topicd.shards.storage.segment.names import DATA, DEL, IDX, TAGS
from topicd.shards.storage.segment.places import list_files, resolve
from topicd.shards.storage.segment.rewrite import finish_rewrite
from topicd.shards.storage.segment.seal import seal_segment
from topicd.shards.storage.segment.tags import Seal, read_seal


def load_segments(fs: Fs, topic_dir: Path) -> LoadedSegments:
    """Every segment of the topic, finished and cleaned up where a crash left it half way.

    FormatError if a seal is of a version not known here. Call it before anything writes to the directory.
    What it shows was read, not synced: one fs.sync_filesystem() over all topics comes before the first WAL
    file goes.
    """
    return _Loader(fs, topic_dir).run()


class _Loader:
    def __init__(self, fs: Fs, topic_dir: Path) -> None:
        self._fs = fs
        self._dir = topic_dir
        self._report = LoadedSegments()

    def run(self) -> LoadedSegments:
        parts = self._list()
        following: int | None = None
        newest_first: list[SegmentInfo] = []
        for first in sorted(parts, reverse=True):
            if DATA in parts[first]:
                info = self._open(first, parts[first], following)
                following = first
            else:
                info = self._without_data(first, parts[first])
            if info is not None:
                newest_first.append(info)
        self._report.segments = newest_first[::-1]
        self._compare_neighbours()
        return self._report

    def _list(self) -> dict[int, set[str]]:
        parts: dict[int, set[str]] = {}
        unfinished: set[int] = set()
        for listed in list_files(self._fs, self._dir):
            if listed.unfinished:
                unfinished.add(listed.first_seq)
            else:
                parts.setdefault(listed.first_seq, set()).add(listed.part)
        for first in unfinished:
            finish_rewrite(self._fs, self._dir, first)
        return parts

    def _compare_neighbours(self) -> None:
        segments = self._report.segments
        for before, info in pairwise(segments):
            due = before.last_seq + 1
            if info.first_seq > due:
                self._report.gaps.append((due, info.first_seq - 1))
            elif info.first_seq < due:
                self._damage(info.first_seq, DATA, info.first_seq, due - 1, "overlaps the segment before it")

    def _open(self, first: int, have: set[str], following: int | None) -> SegmentInfo | None:
        marks = self._marks(first) if DEL in have else Ranges()
        seal = read_seal(self._fs, self._dir, first) if TAGS in have else None
        if seal is not None and self._index_is_whole(seal, needed=bool(marks)):
            info, gone = self._sealed(seal), seal.gone
        elif following is None and TAGS not in have:
            active = ActiveSegment(self._fs, self._dir, first)
            if not active.rewritten:
                return self._recover(active, marks)
            info, gone = self._seal_late(first, have, seal, following)
        else:
            info, gone = self._seal_late(first, have, seal, following)
        if marks:
            _count_dead(info, resolve(self._dir, first).read_index(self._fs), marks)
            inside = Ranges(marks.within(first, info.last_seq))
            inside.update(gone)
            gone = inside
        if gone:
            self._report.marks[first] = gone
            info.dead = gone.covered
        return info

    def _recover(self, active: ActiveSegment, marks: Ranges) -> SegmentInfo | None:
        recovered = active.recover(self._report)
        if recovered is None:
            return None
        info, index = recovered
        if marks:
            # Marks beyond the end stay: replay may bring the records back, and they are deleted.
            self._report.marks[info.first_seq] = marks
            _count_dead(info, index, marks)
        return info

    def _index_is_whole(self, seal: Seal, *, needed: bool) -> bool:
        """By its size. Its bytes are read only if loading asks something of them; readers check it for themselves."""
        size = seal.count * ENTRY_BYTES
        if self._size(seal.first_seq, IDX) != size:
            return False
        if not (needed or seal.damaged or self._size(seal.first_seq, DATA) != seal.data_bytes):
            return True
        return len(resolve(self._dir, seal.first_seq).read_index(self._fs)) == size

    def _sealed(self, seal: Seal) -> SegmentInfo:
        first, last = seal.first_seq, seal.first_seq + seal.count - 1
        size = self._size(first, DATA)
        if size != seal.data_bytes:
            index = resolve(self._dir, first).read_index(self._fs)
            lost = first + entries_within(index, seal.count, size)
            what = f"has {size} bytes, its seal says {seal.data_bytes}"
            self._damage(first, DATA, lost, last, what, repaired=lost > last)
        if seal.damaged:
            index = resolve(self._dir, first).read_index(self._fs)
            for a, b in flagged(index, first, DAMAGED):
                self._damage(first, DATA, a, b, "frames could not be read when it was sealed")
        return _info(seal)

    def _seal_late(
        self, first: int, have: set[str], seal: Seal | None, following: int | None
    ) -> tuple[SegmentInfo, Ranges]:
        """Derived files from the data. What seal or index counted and the data does not show is lost."""
        index = resolve(self._dir, first).read_index(self._fs)
        claimed = first + tiled_entries(index) - 1 if seal is None else first + seal.count - 1
        gone = Ranges(flagged(index, first, GONE)) if seal is None else seal.gone
        sealed = seal_segment(
            self._fs,
            self._dir,
            first,
            gone=gone,
            created_ms=seal.created_ms if seal else None,
            last_seq=claimed if following is None else following - 1,
        )
        self._report.damage += sealed.damage
        last = sealed.info.last_seq
        if claimed > last:
            self._damage(first, DATA, last + 1, claimed, "records that were stored are not there")
        if TAGS in have:
            what = "the seal was unreadable" if seal is None else "the index was missing or cut"
            self._damage(first, TAGS if seal is None else IDX, first, last, what, repaired=True)
        return sealed.info, sealed.gone

    def _without_data(self, first: int, have: set[str]) -> SegmentInfo | None:
        seal = read_seal(self._fs, self._dir, first) if TAGS in have else None
        count = seal.count if seal else max(self._size(first, IDX), 0) // ENTRY_BYTES
        if count == 0:
            # What an interrupted drop leaves.
            for part in (TAGS, IDX, DEL):
                self._fs.unlink(resolve(self._dir, first).file(part), missing_ok=True)
            return None
        self._damage(first, DATA, first, first + count - 1, "the data file is missing")
        if seal is None:
            return None
        info = _info(seal)
        dead = seal.gone
        if DEL in have:
            dead.update(self._marks(first).within(first, info.last_seq))
        if dead:
            self._report.marks[first], info.dead = dead, dead.covered
        return info

    def _marks(self, first: int) -> Ranges:
        marks = load_marks(self._fs, self._dir, first)
        if marks.bad:
            self._damage(first, DEL, first, first, f"{marks.bad} deletion marks cannot be read")
        return marks.ranges

    def _size(self, first: int, part: str) -> int:
        try:
            return self._fs.size(resolve(self._dir, first).file(part))
        except FileNotFoundError:
            return -1

    def _damage(self, segment: int, part: str, first: int, last: int, what: str, *, repaired: bool = False) -> None:
        path = resolve(self._dir, segment).file(part)
        self._report.damage.append(SegmentDamage(path, first, last, what, repaired))


def _info(seal: Seal) -> SegmentInfo:
    return SegmentInfo(
        first_seq=seal.first_seq,
        count=seal.count,
        data_bytes=seal.data_bytes,
        first_ts=seal.first_ts,
        last_ts=seal.last_ts,
        created_ms=seal.created_ms,
        sealed=True,
    )


def _count_dead(info: SegmentInfo, index: bytes | memoryview, marks: Ranges) -> None:
    inside = marks.within(info.first_seq, info.last_seq)
    info.dead = sum(last - first + 1 for first, last in inside)
    info.dead_bytes = sum(bytes_of(index, info.first_seq, first, last) for first, last in inside)
