"""Open readers, kept for the next read. Promise: bounded by the bytes of indexes that they hold and by number; a reader
that is pushed out stays usable for whoever holds it, and its memory and descriptors go with its last user.
"""

from __future__ import annotations

import resource
from collections import OrderedDict
from pathlib import Path
from threading import Lock

from topicd.disk.fs import Fs
from topicd.shards.storage.segment.info import SegmentInfo
from topicd.shards.storage.segment.lookup import SegmentLookup
from topicd.shards.storage.segment.reader import Elsewhere, SegmentReader

MAX_READERS = 1_024
_DESCRIPTORS = 2  # of a reader that has not checked its index; one that has needs one
# Reading the index of a segment and checking it costs as much as some small reads. It is done for one that has so many,
# each with few others in between; not for one of many that are read here and there.
GLANCES = 4
GLANCES_APART = 32


def share_of_descriptors(most: int, part: int) -> int:
    """So many, but not more than that part of the descriptors that the process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if soft == resource.RLIM_INFINITY else min(most, soft // part)


class ReaderCache:
    """May be used by many threads."""

    def __init__(
        self, fs: Fs, max_bytes: int, max_readers: int | None = None, elsewhere: Elsewhere | None = None
    ) -> None:
        self._fs = fs
        self._elsewhere = elsewhere
        self._max_bytes = max_bytes
        if max_readers is None:
            max_readers = share_of_descriptors(MAX_READERS, 4 * _DESCRIPTORS)
        self._max_readers = max_readers
        self._lock = Lock()
        self._readers: OrderedDict[tuple[int, int], SegmentReader] = OrderedDict()
        self._glances: dict[
            tuple[int, int], tuple[int, int]
        ] = {}  # at those not checked: how many, the latest's number
        self._glanced = 0  # at any
        self._bytes = 0
        self._lookups: OrderedDict[tuple[int, int], SegmentLookup] = OrderedDict()
        self._lookup_bytes = 0

    @property
    def held_bytes(self) -> int:
        return self._bytes + self._lookup_bytes

    def __len__(self) -> int:
        return len(self._readers)

    def get(self, topic_id: int, topic_dir: Path, info: SegmentInfo) -> SegmentReader:
        """An open reader, the latest used. A segment that was sealed since is opened anew, checked."""
        key = (topic_id, info.first_seq)
        with self._lock:
            reader = self._readers.get(key)
            if reader is not None and reader.info is info and reader.checked == info.sealed:
                self._readers.move_to_end(key)
                return reader
        return self._keep(key, SegmentReader(self._fs, topic_dir, info, elsewhere=self._elsewhere))

    def glance(self, topic_id: int, topic_dir: Path, info: SegmentInfo) -> SegmentReader:
        """The same for few records. Its index may be believed unseen: check that the frames are those asked for."""
        key = (topic_id, info.first_seq)
        with self._lock:
            self._glanced += 1
            reader = self._readers.get(key)
            known = reader is not None and reader.info is info
            if reader is not None and known and (reader.checked or not info.sealed or not self._worth_a_check(key)):
                self._readers.move_to_end(key)
                return reader
        checked = known and info.sealed
        return self._keep(key, SegmentReader(self._fs, topic_dir, info, checked=checked, elsewhere=self._elsewhere))

    def _worth_a_check(self, key: tuple[int, int]) -> bool:
        glances, latest = self._glances.get(key, (0, 0))
        glances = glances + 1 if self._glanced - latest <= GLANCES_APART else 1
        self._glances[key] = (glances, self._glanced)
        return glances >= GLANCES

    def _keep(self, key: tuple[int, int], reader: SegmentReader) -> SegmentReader:
        # Opened outside the lock: it may wait for the disk.
        reader.open()
        with self._lock:
            self._forget(key)
            self._readers[key] = reader
            self._bytes += reader.held_bytes
            # The one just asked for stays even if it is larger than the bound.
            while len(self._readers) > 1 and (self._bytes > self._max_bytes or len(self._readers) > self._max_readers):
                self._forget(next(iter(self._readers)))
        return reader

    def lookup(self, topic_id: int, topic_dir: Path, info: SegmentInfo) -> SegmentLookup:
        """Tags and sizes of a sealed segment. These have room of their own: small, and worth more than data."""
        key = (topic_id, info.first_seq)
        with self._lock:
            found = self._lookups.get(key)
            if found is not None and found.info is info:
                self._lookups.move_to_end(key)
                return found
        found = SegmentLookup(self._fs, topic_dir, info, self._elsewhere).open()
        with self._lock:
            self._forget_lookup(key)
            self._lookups[key] = found
            self._lookup_bytes += found.held_bytes
            while len(self._lookups) > 1 and self._lookup_bytes > self._max_bytes:
                self._forget_lookup(next(iter(self._lookups)))
        return found

    def drop(self, topic_id: int, first_seq: int | None = None) -> None:
        """Forget one reader of the topic, or all of them."""
        with self._lock:
            if first_seq is not None:
                self._forget((topic_id, first_seq))
                self._forget_lookup((topic_id, first_seq))
                return
            for key in [key for key in self._readers if key[0] == topic_id]:
                self._forget(key)
            for key in [key for key in self._lookups if key[0] == topic_id]:
                self._forget_lookup(key)

    def clear(self) -> None:
        with self._lock:
            self._readers.clear()
            self._glances.clear()
            self._lookups.clear()
            self._bytes = self._lookup_bytes = 0

    def _forget(self, key: tuple[int, int]) -> None:
        # Not closed: another thread may be reading through it.
        reader = self._readers.pop(key, None)
        self._glances.pop(key, None)
        if reader is not None:
            self._bytes -= reader.held_bytes

    def _forget_lookup(self, key: tuple[int, int]) -> None:
        found = self._lookups.pop(key, None)
        if found is not None:
            self._lookup_bytes -= found.held_bytes
