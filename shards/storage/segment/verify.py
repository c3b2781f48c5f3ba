"""Checking a segment from end to end without changing a byte. Promise: what it does not complain about can be
read; what it complains about is named by file and seqs.

Loading repairs and trusts seals; this trusts nothing and repairs nothing, so it may run on a directory in use.
Of a segment that is being written it may see a tail that is not finished.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from topicd._native import core
from topicd.disk.fs import Fs
from topicd.disk.loading import load_file
from topicd.disk.refusal import raise_refusal
from topicd.errors import FormatError, StorageCorrupt
from topicd.shards.storage.segment.deletions import parse_marks
from topicd.shards.storage.segment.index import DAMAGED, ENTRY_BYTES, entry_at, entry_count, flagged, tiled_entries
from topicd.shards.storage.segment.info import Lies, SegmentDamage
from topicd.shards.storage.segment.names import DATA, DEL, IDX, TAGS, topic_id_of
from topicd.shards.storage.segment.places import resolve
from topicd.shards.storage.segment.reindex import Rebuilt, reindex
from topicd.shards.storage.segment.tags import Seal, TagTable, read_seal


def verify_segment(fs: Fs, topic_dir: Path, first_seq: int) -> list[SegmentDamage]:
    """Everything that is wrong with the segment; `repaired` marks what a load would put right without a loss."""
    return _Check(fs, topic_dir, first_seq).run()


def _why(error: OSError | FormatError) -> str:
    if isinstance(error, FormatError):
        return error.message
    if isinstance(error, FileNotFoundError):
        return "the data file is missing"
    return f"the frames cannot be read: {error.filename or ''} {error.strerror}"


class _Check:
    def __init__(self, fs: Fs, topic_dir: Path, first_seq: int) -> None:
        self._fs = fs
        self._dir = topic_dir
        self._first = first_seq
        self._found: list[SegmentDamage] = []

    def run(self) -> list[SegmentDamage]:
        seal = self._seal()
        index = resolve(self._dir, self._first).read_index(self._fs)
        counted = seal.count if seal else tiled_entries(index)
        last = self._first + counted - 1
        try:
            content = resolve(self._dir, self._first).load(self._fs, DATA)
        except (OSError, FormatError) as error:
            raise_refusal(error)
            self._note(DATA, self._first, last, _why(error))
            return self._found
        view = content.view
        for part in content.bad:
            self._note(DATA, self._first, last, str(part))
        rebuilt = reindex(view, self._first, topic_id_of(self._dir), last, last + 1 if seal else None)
        self._data(seal, view, rebuilt, last)
        self._index(seal, index, rebuilt)
        self._marks()
        return self._found

    def _seal(self) -> Seal | None:
        if not self._fs.exists(self._path(TAGS)):
            return None
        try:
            seal = read_seal(self._fs, self._dir, self._first)
            if seal is not None:
                TagTable(self._fs, self._dir, self._first).open()
                return seal
        except FormatError as error:
            self._note(TAGS, self._first, self._first, error.message)
            return None
        except StorageCorrupt:
            self._note(TAGS, self._first, self._first, "the tag table fails its checksum")
            return seal
        self._note(TAGS, self._first, self._first, "the seal is unreadable", repaired=True)
        return None

    def _data(self, seal: Seal | None, view: memoryview, rebuilt: Rebuilt, last: int) -> None:
        for first, end in rebuilt.damaged:
            self._note(DATA, first, end, "frames cannot be read")
        found = self._first + entry_count(rebuilt.entries) - 1
        gone = seal.gone.within(found + 1, last) if seal else []
        if found < last and gone != [(found + 1, last)]:
            self._note(DATA, found + 1, last, "records that were stored are not there")
        if rebuilt.bad_tail:
            what = f"{rebuilt.bad_tail} bytes behind the last record belong to none"
            self._note(DATA, found + 1, found, what, repaired=True)
        elif seal is not None and len(view) != seal.data_bytes and not self._found:
            self._note(DATA, found + 1, found, f"has {len(view)} bytes, its seal says {seal.data_bytes}")

    def _index(self, seal: Seal | None, index: bytes, rebuilt: Rebuilt) -> None:
        if seal is not None:
            right = len(index) == seal.count * ENTRY_BYTES and core.xxh3_64(index) == seal.index_xxh3
        else:
            whole = min(tiled_entries(index), entry_count(rebuilt.entries))
            places = range(whole)
            right = all(entry_at(index, n)[:2] == entry_at(rebuilt.entries, n)[:2] for n in places)
            right = right or bool(flagged(rebuilt.entries, self._first, DAMAGED))
        if not right:
            last = self._first + entry_count(rebuilt.entries) - 1
            self._note(IDX, self._first, last, "the index does not match the data", repaired=True)

    def _marks(self) -> None:
        if self._fs.exists(self._path(DEL)):
            marks = parse_marks(bytes(load_file(self._fs, self._path(DEL)).view), self._first)
            if marks.bad:
                self._note(DEL, self._first, self._first, f"{marks.bad} deletion marks cannot be read")

    def _note(self, part: str, first: int, last: int, what: str, *, repaired: bool = False) -> None:
        self._found.append(SegmentDamage(self._path(part), first, last, what, repaired))

    def _path(self, part: str) -> Path:
        place = resolve(self._dir, self._first)
        if part == DATA:
            with suppress(OSError, FormatError):
                return place.frames(self._fs, place.lies(self._fs) or Lies.HERE)
        return place.file(part)
