"""What a delete asks of a sealed segment: which records have a tag, and how large they are. Promise: the data is not
touched, so the answer costs the same whatever the records hold.
"""

from __future__ import annotations

from pathlib import Path

from topicd._native import core
from topicd.disk.fs import Fs
from topicd.errors import StorageCorrupt
from topicd.model import TagMatch
from topicd.shards.storage.segment.index import offset_at
from topicd.shards.storage.segment.info import SegmentInfo
from topicd.shards.storage.segment.places import resolve
from topicd.shards.storage.segment.reader import Elsewhere, SegmentReader
from topicd.shards.storage.segment.tags import TagTable


class SegmentLookup:
    def __init__(self, fs: Fs, topic_dir: Path, info: SegmentInfo, elsewhere: Elsewhere | None = None) -> None:
        self._fs = fs
        self._dir = topic_dir
        self.info = info
        self._table = TagTable(fs, topic_dir, info.first_seq)
        self._index = memoryview(b"")
        self._elsewhere = elsewhere
        self._reader: SegmentReader | None = None

    def open(self) -> SegmentLookup:
        """A tag table or an index that cannot be read or believed is built from the data, in memory only."""
        self._index = resolve(self._dir, self.info.first_seq).load_index(self._fs).view
        try:
            self._table.open()
            believed = core.xxh3_64(self._index) == self._table.index_xxh3
        except (StorageCorrupt, FileNotFoundError):
            believed = False
        if not believed:
            # Damaged, or a rewrite is about to change it: the reader knows what to do.
            self._index = memoryview(b"")
            self._reader = SegmentReader(self._fs, self._dir, self.info, elsewhere=self._elsewhere).open()
            self._table = self._reader.tags()
        return self

    @property
    def held_bytes(self) -> int:
        return len(self._index) + self._table.held_bytes

    def find(self, match: TagMatch) -> list[int]:
        """Seqs of the records with a matching tag, ascending; those deleted after the seal are among them."""
        return self._table.find(match)

    def offset(self, seq: int) -> int:
        """Where the record begins in .data; one behind the last seq: where the data ends."""
        if self._reader is not None:
            return self._reader.offset(seq)
        return offset_at(self._index, seq - self.info.first_seq)
