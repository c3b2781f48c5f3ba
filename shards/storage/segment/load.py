"""Opening a topic's segments. Promise: a sealed one costs its header, not its records; what cannot be
believed is reported and never served; loading twice gives the same answer.

`.data` is the truth of an unsealed segment. The newest may end in the debris of a crash, which is cut; an
older one was durable before its successor was made, so bad bytes in it are damage and stay where they are.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from topicd.disk.fs import Fs, is_directory, no_file, replace_file
from topicd.disk.refusal import raise_refusal
from topicd.errors import FormatError
from topicd.limits import MAX_SEQ
from topicd.shards.storage.ranges import Ranges
from topicd.shards.storage.segment.active import ActiveSegment
from topicd.shards.storage.segment.index import (
    DAMAGED,
    ENTRY_BYTES,
    GONE,
    bytes_of,
    entries_within,
    entry_count,
    flagged,
    tiled_entries,
)
from topicd.shards.storage.segment.info import Cut, Lies, LoadedSegments, SegmentDamage, SegmentInfo
from topicd.shards.storage.segment.misplaced import bring_back, quarantine_of, send_home, stranger
from topicd.shards.storage.segment.names import COLD, DATA, DEL, IDX, PACKED, TAGS
from topicd.shards.storage.segment.packed import open_packed
from topicd.shards.storage.segment.places import SegmentPlace, lies_of, list_files, resolve
from topicd.shards.storage.segment.pointer import load_pointer
from topicd.shards.storage.segment.rewrite import finish_rewrite
from topicd.shards.storage.segment.seal import seal_segment, segment_end
from topicd.shards.storage.segment.settle_marks import DeadOnRecord, settle_marks
from topicd.shards.storage.segment.tags import Seal, read_seal


def load_segments(fs: Fs, topic_dir: Path, dead: Mapping[int, DeadOnRecord] | None = None) -> LoadedSegments:
    """Every segment of the topic, finished and cleaned up where a crash left it half way. dead: what a snapshot has on
    record of deleted seqs, by segment; None if none knows the topic, or it is one of an older format.

    A segment whose seal is of a version not known here is not served, and nothing of it is changed. Call it before
    anything writes to the directory.
    What it shows was read, not synced: one fs.sync_filesystem() over all topics comes before the first WAL
    file goes.
    """
    try:
        return _Loader(fs, topic_dir, dead).run()
    except OSError as error:
        # Is something else in the place of one of them, as a pipe, or a link that leads nowhere? Then the file is lost.
        moved = _move_strangers(fs, topic_dir) if error.errno in (errno.ENOENT, errno.ENXIO) else []
        if not moved:
            raise
    loaded = load_segments(fs, topic_dir, dead)
    loaded.damage = [*moved, *loaded.damage]
    return loaded


def _move_strangers(fs: Fs, topic_dir: Path) -> list[SegmentDamage]:
    moved = []
    for listed in list_files(fs, topic_dir):
        if what := no_file(fs, listed.path):
            kept = quarantine_of(fs, topic_dir).move(listed.path)
            what = f"{what}, moved to {kept}"
            moved.append(SegmentDamage(listed.path, listed.first_seq, listed.first_seq - 1, what))
    return moved


FRAMES = {DATA, PACKED, COLD}
NO_DATA = "the data file is missing"


class Elsewhere(NamedTuple):
    lies: Lies
    data_bytes: int
    file_bytes: int
    records: int = 0


class _Loader:
    def __init__(self, fs: Fs, topic_dir: Path, dead: Mapping[int, DeadOnRecord] | None) -> None:
        self._fs = fs
        self._dir = topic_dir
        self._dead = dead
        self._seals: dict[int, Seal | None] = {}
        self._elsewhere: dict[int, Elsewhere] = {}  # segments whose frames are not in a plain file here
        self._unknown: dict[int, tuple[set[str], str]] = {}  # of a version not known here: parts, what is said of it
        self._report = LoadedSegments()

    def run(self) -> LoadedSegments:
        parts = self._list()
        self._choose_copies(parts)
        self._put_in_place(parts)
        following: int | None = None
        newest_first: list[SegmentInfo] = []
        for first in sorted({*parts, *self._unknown}, reverse=True):
            if first in self._unknown:
                self._leave_unknown(first, following)
                following = first
                continue
            if parts[first] & FRAMES:
                info = self._open_past_directories(first, parts[first], following)
                following = first
            else:
                info = self._without_data(first, parts[first], newest=following is None)
            if info is not None:
                newest_first.append(info)
        self._report.segments = newest_first[::-1]
        self._clear_copies()
        self._compare_neighbours()
        return self._report

    def _choose_copies(self, parts: dict[int, set[str]]) -> None:
        """Of frames that lie in two places, as a move leaves them that was interrupted, the nearer ones stay if they
        are whole; of others nothing is here."""
        for first, have in list(parts.items()):
            if COLD in have and not self._read_pointer(first, have):
                del parts[first]
                continue
            for nearer, farther in ((DATA, PACKED), (DATA, COLD), (PACKED, COLD)):
                if nearer in have and farther in have and self._keep_nearer(first, have, nearer):
                    self._fs.unlink(self._place(first).file(farther), missing_ok=True)
                    self._fs.sync_dir(self._dir)
                    have.discard(farther)
                    if farther == COLD:
                        del self._elsewhere[first]
            if PACKED in have:
                self._look_at_packed(first, have)

    def _read_pointer(self, first: int, have: set[str]) -> bool:
        """False: the segment is being dropped."""
        path = self._place(first).file(COLD)
        try:
            pointer = load_pointer(self._fs, path)
        except (FormatError, IsADirectoryError) as error:
            have.discard(COLD)
            if not have & FRAMES:
                self._unreadable(first, have, COLD, f"cannot be read, its frames lie in the cold directory: {error}")
            return True
        if pointer.dropped:
            self._report.dropped.append(first)
            return False
        self._elsewhere[first] = Elsewhere(lies_of(pointer), pointer.data_bytes, pointer.file_bytes, pointer.records)
        return True

    def _keep_nearer(self, first: int, have: set[str], part: str) -> bool:
        """Is that copy whole? If not, it is put away and the other one counts."""
        seal = self._seal(first, have)
        size = self._size(first, DATA) if part == DATA else self._packed_size(first)
        if seal is None or size == seal.data_bytes:
            return True
        kept = quarantine_of(self._fs, self._dir).move(self._place(first).file(part))
        self._damage(first, part, first, first - 1, f"is not whole, moved to {kept}; there is a copy", repaired=True)
        have.discard(part)
        return False

    def _packed_size(self, first: int) -> int:
        """Of the frames in it; -1 if it cannot be read."""
        try:
            file = open_packed(self._fs, self._place(first).file(PACKED))
        except OSError as error:
            raise_refusal(error)
            return -1
        with closing(file):
            return file.layout.data_bytes if file.layout.first_seq == first else -1

    def _look_at_packed(self, first: int, have: set[str]) -> None:
        size = self._packed_size(first)
        file_bytes = self._size(first, PACKED)
        if size >= 0:
            self._elsewhere[first] = Elsewhere(Lies.PACKED, size, file_bytes)
            return
        have.discard(PACKED)
        self._unreadable(first, have, PACKED, "the packed file cannot be read")

    def _unreadable(self, first: int, have: set[str], part: str, what: str) -> None:
        """Nobody serves the segment; its files stay as they are."""
        seal = self._seal(first, have)
        count = seal.count if seal else max(self._size(first, IDX), 0) // ENTRY_BYTES
        self._damage(first, part, first, first + max(count, 1) - 1, what)

    def _put_in_place(self, parts: dict[int, set[str]]) -> None:
        """No data file is opened under a name that is not its own; one that belongs here comes back."""
        firsts = sorted(parts)
        for first, before in pairwise([*firsts, MAX_SEQ]):
            if DATA not in parts[first]:
                continue
            try:
                seal = self._seal(first, parts[first])
                owner = stranger(self._fs, self._dir, first, parts[first], seal, before)
            except IsADirectoryError:
                self._move_directories(first, parts[first])
                continue
            if owner is not None:
                kept = send_home(self._fs, self._dir, first, owner)
                parts[first].discard(DATA)
                last = first + (seal.count if seal else tiled_entries(self._place(first).read_index(self._fs))) - 1
                self._damage(first, DATA, first, last, f"holds {owner}, moved to {kept}")
        for first in firsts:
            if not parts[first] & FRAMES and parts[first] & {TAGS, IDX}:
                seal = self._seal(first, parts[first])
                if bring_back(self._fs, self._dir, first, seal):
                    parts[first].add(DATA)
                    self._report.damage = [d for d in self._report.damage if d.path != self._place(first).file(DATA)]
                    last = first + (seal.count if seal else 1) - 1
                    self._damage(first, DATA, first, last, "was in quarantine, is back in its place", repaired=True)

    def _open_past_directories(self, first: int, have: set[str], following: int | None) -> SegmentInfo | None:
        try:
            return self._open(first, have, following)
        except OSError:
            # Is one of its files a directory? Then it is nothing of ours, and the file is lost.
            if not self._move_directories(first, have):
                raise
            if DATA not in have:
                return self._without_data(first, have, newest=following is None)
            return self._open(first, have, following)

    def _move_directories(self, first: int, have: set[str]) -> bool:
        found = [part for part in sorted(have) if is_directory(self._fs, self._place(first).file(part))]
        for part in found:
            kept = quarantine_of(self._fs, self._dir).move(self._place(first).file(part))
            self._damage(first, part, first, first - 1, f"is a directory, moved to {kept}")
            have.discard(part)
        return bool(found)

    def _seal(self, first: int, have: set[str]) -> Seal | None:
        """Read once: nothing but a seal made here changes it."""
        if TAGS not in have:
            return None
        if first not in self._seals:
            self._seals[first] = read_seal(self._fs, self._dir, first)
        return self._seals[first]

    def _place(self, first: int) -> SegmentPlace:
        return resolve(self._dir, first)

    def _list(self) -> dict[int, set[str]]:
        parts: dict[int, set[str]] = {}
        unfinished: set[int] = set()
        for listed in list_files(self._fs, self._dir):
            if listed.unfinished:
                unfinished.add(listed.first_seq)
            else:
                parts.setdefault(listed.first_seq, set()).add(listed.part)
        for first, have in list(parts.items()):
            try:
                self._seal(first, have)
            except FormatError as error:
                self._unknown[first] = parts.pop(first), error.message
            except IsADirectoryError:
                continue  # whoever needs it puts it away
        for first in unfinished - self._unknown.keys():
            finish_rewrite(self._fs, self._dir, first)
            self._seals.pop(first, None)
        return parts

    def _leave_unknown(self, first: int, following: int | None) -> None:
        """Nobody serves it, and its files stay as they are; the newest goes aside: records to come need the name."""
        have, what = self._unknown[first]
        path = self._place(first).file(TAGS)
        if following is not None:
            self._damage(first, TAGS, first, following - 1, what)
            return
        last = first + max(tiled_entries(self._place(first).read_index(self._fs)), 1) - 1
        kept = path
        for part in sorted(have):
            moved = quarantine_of(self._fs, self._dir).move(self._place(first).file(part))
            kept = moved if part == TAGS else kept
        self._damage(first, TAGS, first, first - 1, f"{what}; the segment was moved to {kept.parent}", repaired=True)
        self._report.cuts.append(Cut(path, first, last, kept, last))

    def _clear_copies(self) -> None:
        """No segment begins inside of another one: index or tags with such a name are copies, and nothing is lost."""
        if all(found.what != NO_DATA for found in self._report.damage):
            return
        held = Ranges((info.first_seq, info.last_seq) for info in self._report.segments if info.count)
        self._report.damage = [
            found._replace(last_seq=found.first_seq - 1, what="is of no segment: another one has its seqs")
            if found.what == NO_DATA and found.first_seq in held
            else found
            for found in self._report.damage
        ]

    def _compare_neighbours(self) -> None:
        segments = self._report.segments
        for before, info in pairwise(segments):
            due = before.last_seq + 1
            if info.first_seq > due:
                self._report.gaps.append((due, info.first_seq - 1))
            elif info.first_seq < due:
                self._damage(info.first_seq, DATA, info.first_seq, due - 1, "overlaps the segment before it")

    def _open(self, first: int, have: set[str], following: int | None) -> SegmentInfo | None:
        seal = self._seal(first, have)
        if DATA not in have and not self._opens_elsewhere(first, have, seal):
            return None
        marks = self._marks(first, have, seal)
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
            _count_dead(info, self._place(first).read_index(self._fs), marks)
            inside = Ranges(marks.within(first, info.last_seq))
            inside.update(gone)
            gone = inside
        if gone:
            self._report.marks[first] = gone
            info.dead = gone.covered
        return info

    def _opens_elsewhere(self, first: int, have: set[str], seal: Seal | None) -> bool:
        """Frames that are packed or away are found by index and seal. If these are gone the frames are brought here,
        where both are made anew from them; from the cold directory only later, for its disk may not answer."""
        elsewhere = self._elsewhere[first]
        if seal is not None and self._size(first, IDX) == seal.count * ENTRY_BYTES:
            if elsewhere.data_bytes == seal.data_bytes:
                return True
            what = f"speaks of {elsewhere.data_bytes} bytes of frames, the seal of {seal.data_bytes}"
            self._unreadable(first, have, COLD if elsewhere.lies.cold else PACKED, what)
            return False
        if elsewhere.lies.cold:
            size, file_bytes, records = elsewhere.data_bytes, elsewhere.file_bytes, elsewhere.records
            stranded = SegmentInfo(first, records, size, 0, 0, 0, True, lies=elsewhere.lies, file_bytes=file_bytes)
            self._report.stranded.append(stranded)
            what = "index or seal cannot be read; for the next start its frames come back from the cold directory"
            self._unreadable(first, have, COLD, what)
            return False
        place = self._place(first)
        replace_file(self._fs, place.file(DATA), [place.load(self._fs, DATA).view])
        self._fs.unlink(place.file(PACKED))
        self._fs.sync_dir(self._dir)
        have.discard(PACKED)
        have.add(DATA)
        del self._elsewhere[first]
        return True

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
        if not (needed or seal.damaged or self._data_size(seal.first_seq) != seal.data_bytes):
            return True
        return len(resolve(self._dir, seal.first_seq).read_index(self._fs)) == size

    def _sealed(self, seal: Seal) -> SegmentInfo:
        first, last = seal.first_seq, seal.first_seq + seal.count - 1
        size = self._data_size(first)
        if size != seal.data_bytes:
            index = self._place(first).read_index(self._fs)
            lost = first + entries_within(index, seal.count, size)
            what = f"has {size} bytes, its seal says {seal.data_bytes}"
            self._damage(first, DATA, lost, last, what, repaired=lost > last)
        if seal.damaged:
            index = self._place(first).read_index(self._fs)
            for a, b in flagged(index, first, DAMAGED):
                self._damage(first, DATA, a, b, "frames could not be read when it was sealed")
        info = _info(seal)
        if first in self._elsewhere:
            info.lies, info.file_bytes = self._elsewhere[first].lies, self._elsewhere[first].file_bytes
        return info

    def _seal_late(
        self, first: int, have: set[str], seal: Seal | None, following: int | None
    ) -> tuple[SegmentInfo, Ranges]:
        """Derived files from the data. What seal or index counted and the data does not show is lost."""
        index = self._place(first).read_index(self._fs)
        claimed = first + tiled_entries(index) - 1 if seal is None else first + seal.count - 1
        gone = Ranges(flagged(index, first, GONE)) if seal is None else seal.gone
        sealed = seal_segment(
            self._fs,
            self._dir,
            first,
            gone=gone,
            created_ms=seal.created_ms if seal else None,
            last_seq=claimed if following is None else following - 1,
            before=segment_end(first, seal, claimed, following),
        )
        self._report.damage += sealed.damage
        last = sealed.info.last_seq
        if claimed > last:
            self._damage(first, DATA, last + 1, claimed, "records that were stored are not there")
        if TAGS in have:
            what = "the seal was unreadable" if seal is None else "the index was missing or cut"
            self._damage(first, TAGS if seal is None else IDX, first, last, what, repaired=True)
        return sealed.info, sealed.gone

    def _without_data(self, first: int, have: set[str], *, newest: bool) -> SegmentInfo | None:
        """Nobody serves it, and the rest is served. What is left of it stays as a proof, unless records from the log
        will need the name."""
        seal = self._seal(first, have)
        count = seal.count if seal else max(self._size(first, IDX), 0) // ENTRY_BYTES
        if count == 0:
            # What an interrupted drop leaves.
            for part in (TAGS, IDX, DEL):
                self._fs.unlink(self._place(first).file(part), missing_ok=True)
            return None
        path, last = self._place(first).file(DATA), first + count - 1
        if newest:
            kept = path
            for part in sorted(have & {TAGS, IDX, DEL}):
                kept = quarantine_of(self._fs, self._dir).move(self._place(first).file(part))
            self._report.cuts.append(Cut(path, first, last, kept, last))
        elif not any(d.path == path and d.first_seq <= d.last_seq for d in self._report.damage):
            self._damage(first, DATA, first, last, NO_DATA)
        return None

    def _marks(self, first: int, have: set[str], seal: Seal | None) -> Ranges:
        record = self._dead.get(first) if self._dead is not None else None
        if DEL not in have and record is None:
            return Ranges()

        def gone() -> Ranges:
            return (
                seal.gone if seal is not None else Ranges(flagged(self._place(first).read_index(self._fs), first, GONE))
            )

        settled = settle_marks(self._fs, self._dir, first, record, gone, recorded=self._dead is not None)
        if settled.bad:
            self._damage(first, DEL, first, first, f"{settled.bad} deletion marks cannot be read")
        if settled.restored:
            what = "deletion marks were gone, taken from the snapshot"
            self._damage(first, DEL, first, first - 1, what, repaired=True)
        if settled.unknown:
            last = first + (seal.count if seal else entry_count(self._place(first).read_index(self._fs))) - 1
            what = f"{settled.unknown} deleted records cannot be told from the others: their marks are gone"
            self._damage(first, DEL, first, last, what)
        return settled.ranges

    def _data_size(self, first: int) -> int:
        """Of the frames, wherever they are."""
        return self._elsewhere[first].data_bytes if first in self._elsewhere else self._size(first, DATA)

    def _size(self, first: int, part: str) -> int:
        try:
            return self._fs.size(self._place(first).file(part))
        except FileNotFoundError:
            return -1

    def _damage(self, segment: int, part: str, first: int, last: int, what: str, *, repaired: bool = False) -> None:
        path = self._place(segment).file(part)
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
