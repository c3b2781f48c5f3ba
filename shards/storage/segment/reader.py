"""Reading one segment. Promise: bytes handed out are exactly the frames asked for; a damaged record raises
StorageCorrupt that names the segment and its seqs, and its neighbours stay readable.

Data is read when it is asked for. The index of a sealed segment is read once, checked and held, that of the active one
is read entry by entry. So may few records of a sealed one: opening costs little then, but the index is believed as it
is, so the caller checks that the frames are those he asked for. Bytes that the disk does not give are damage of the
records they belong to; an index that it does not give is built from the data, in memory. Nothing changes after open(),
so many threads may read.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from topicd._native import core
from topicd.disk.fs import File, Fs
from topicd.disk.loading import Content, is_unreadable, load
from topicd.disk.refusal import RESOURCES
from topicd.errors import StorageCorrupt, Throttled, TopicdError
from topicd.shards.storage.ranges import Ranges
from topicd.shards.storage.segment.index import (
    DAMAGED,
    ENTRY,
    ENTRY_BYTES,
    IndexEntry,
    damaged_entries,
    entry_at,
    entry_count,
    flagged,
    gone_entries,
    offset_at,
)
from topicd.shards.storage.segment.info import Lies, SegmentInfo
from topicd.shards.storage.segment.names import DATA, IDX, topic_id_of
from topicd.shards.storage.segment.places import resolve
from topicd.shards.storage.segment.reindex import APPEND, reindex
from topicd.shards.storage.segment.tags import Seal, TagTable, pack_tags, read_seal

_RETRY_MS = 100


Elsewhere = Callable[[Path, SegmentInfo], File]


class Span(NamedTuple):
    """Neighbouring records and where their bytes lie in .data."""

    first_seq: int
    last_seq: int
    start: int
    end: int


class SegmentReader:
    def __init__(
        self,
        fs: Fs,
        topic_dir: Path,
        info: SegmentInfo,
        *,
        checked: bool | None = None,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        """info is read at every call, so the active segment's growth shows as soon as its owner notes it. checked: the
        index is, and is held; by default whether the segment is sealed. elsewhere: opens frames that are packed or
        away, for who must not wait for a slow disk."""
        self._open_elsewhere = elsewhere
        self._fs = fs
        self._dir = topic_dir
        self._info = info
        self._checked = info.sealed if checked is None else checked
        self._index = memoryview(b"")  # held: the checked one, or one from the data where the stored one is unreadable
        self._index_file: File | None = None
        self._data: File | None = None
        self._damaged = Ranges()
        self._tags: TagTable | None = None

    def open(self) -> SegmentReader:
        try:
            if self._checked:
                self._open_checked()
            else:
                place = resolve(self._dir, self._info.first_seq)
                self._index_file = place.open(self._fs, IDX)
                self._data = self._open_frames()
        except FileNotFoundError as error:
            self.close()
            raise self._corrupt(self._info.first_seq, self._info.last_seq, "a file is missing") from error
        except OSError as error:
            self.close()
            raise self._failed(self._info.first_seq, self._info.last_seq, error) from error
        except BaseException:
            self.close()
            raise
        return self

    def _open_checked(self) -> None:
        # Index, data, seal: a rewrite changes the seal, then the data, then the index. Opened in this order a pair
        # that does not match is one whose index the seal does not vouch for.
        place = resolve(self._dir, self._info.first_seq)
        index = place.load(self._fs, IDX)
        self._data = self._open_frames()
        believed = self._believed_index(index)
        if len(believed) != self._info.count * ENTRY_BYTES:
            raise self._corrupt(self._info.first_seq, self._info.last_seq, "the index has a wrong size")
        self._index = believed
        self._damaged = Ranges(flagged(believed, self._info.first_seq, DAMAGED))

    def _open_frames(self) -> File:
        if self._open_elsewhere is not None and self._info.lies is not Lies.HERE:
            return self._open_elsewhere(self._dir, self._info)
        return resolve(self._dir, self._info.first_seq).open(self._fs, DATA)

    def _believed_index(self, stored: Content) -> memoryview:
        """The index as it is if its seal vouches for it, else one from the data, in memory only."""
        seal, index = self._seal(), stored.view
        if not stored.bad and (seal is None or core.xxh3_64(index) == seal.index_xxh3):
            return index
        return memoryview(self._index_from_data(seal))

    def _index_from_data(self, seal: Seal | None) -> bytes:
        first, last = self._info.first_seq, self._info.last_seq
        data = load(self._open_data(), 0, None if self._info.sealed else self._info.data_bytes).view
        entries, _, end, _ = reindex(data, first, topic_id_of(self._dir), last, last + 1)
        found = entry_count(entries)
        if found < self._info.count:
            ts = entry_at(entries, found - 1).ts if found else 0
            known_gone = seal is not None and not seal.gone.missing(first + found, last)
            missing = self._info.count - found
            entries += gone_entries(end, ts, missing) if known_gone else damaged_entries(end, end, ts, missing)
        return entries

    def _seal(self) -> Seal | None:
        try:
            return read_seal(self._fs, self._dir, self._info.first_seq)
        except FileNotFoundError:
            return None

    @property
    def info(self) -> SegmentInfo:
        return self._info

    @property
    def checked(self) -> bool:
        return self._checked

    @property
    def held_bytes(self) -> int:
        return len(self._index)

    def entry(self, seq: int) -> IndexEntry:
        """(offset, length, ts, flags); IndexError if the segment does not cover seq."""
        info = self._info
        number = seq - info.first_seq
        if not 0 <= number < info.count:
            raise IndexError(f"seq {seq} is not in segment {info.first_seq}..{info.last_seq}")
        if self._checked:
            return entry_at(self._index, number)
        try:
            raw = self._open_index().pread(ENTRY_BYTES, number * ENTRY_BYTES)
        except OSError as error:
            if not is_unreadable(error):
                raise self._failed(seq, info.last_seq, error) from error
            return self._entry_from_data(number)
        if len(raw) < ENTRY_BYTES:
            raise self._corrupt(seq, info.last_seq, "the index ends early")
        return IndexEntry._make(ENTRY.unpack(raw))

    def _entry_from_data(self, number: int) -> IndexEntry:
        """Of a stored index that cannot be read there."""
        if number >= entry_count(self._index):
            self._index = memoryview(self._index_from_data(None))
            self._damaged = Ranges(flagged(self._index, self._info.first_seq, DAMAGED))
        return entry_at(self._index, number)

    def offset(self, seq: int) -> int:
        """Where the record begins in .data; one behind the last seq: where the data ends."""
        number = seq - self._info.first_seq
        if self._checked:
            return offset_at(self._index, number)
        if number < self._info.count:
            return self.entry(seq).offset
        last = self.entry(seq - 1)
        return last.offset + last.length

    def locate(self, after_seq: int, max_records: int, max_bytes: int, ts: bool = False) -> Span | None:
        """Records behind after_seq, as many as fit but at least one; None if there is none.

        With ts, after_seq is a time in ms instead: records from the first that is not older.
        """
        info = self._info
        first = self.seq_at_ts(after_seq) if ts else max(after_seq + 1, info.first_seq)
        last = min(first + max_records - 1, info.last_seq)
        if first > last:
            return None
        start, length, _, _ = self.entry(first)
        end = start + length
        low, high = first, last
        middle = last  # mostly they all fit
        while low < high:
            offset, length, _, _ = self.entry(middle)
            if offset + length - start <= max_bytes:
                low, end = middle, offset + length
            else:
                high = middle - 1
            middle = (low + high + 1) // 2
        return Span(first, low, start, end)

    def read(self, first_seq: int, last_seq: int) -> memoryview | bytes:
        """The frames of first_seq..last_seq, end to end; checksums are not checked (see verify)."""
        for first, last in self._damaged.within(first_seq, last_seq):
            raise self._corrupt(first, last, "frames were unreadable when it was sealed")
        start = self.entry(first_seq).offset
        return self.read_span(Span(first_seq, last_seq, start, start + self.bytes_of(first_seq, last_seq)))

    def read_span(self, span: Span) -> memoryview | bytes:
        """The bytes of a span, whatever they are."""
        frames: memoryview | bytes
        try:
            frames = self._open_data().pread(span.end - span.start, span.start)
        except OSError as error:
            if not is_unreadable(error):
                raise self._failed(span.first_seq, span.last_seq, error) from error
            frames = self._read_again(span)
        except MemoryError as error:
            raise self._failed(span.first_seq, span.last_seq, OSError(errno.ENOMEM, "no memory")) from error
        if len(frames) != span.end - span.start:
            raise self._corrupt(self._first_behind(span.start + len(frames)), self._info.last_seq, "data ends early")
        return frames

    def _read_again(self, span: Span) -> memoryview:
        """By page. StorageCorrupt that names the first records of which bytes are missing."""
        content = load(self._open_data(), span.start, span.end)
        for bad in content.bad[:1]:
            first, last = self._first_behind(bad.start), self._first_behind(bad.end - 1)
            raise self._corrupt(max(first, span.first_seq), min(last, span.last_seq), str(bad))
        return content.view

    def forget(self, last_seq: int) -> None:
        """Records up to that one will not be read soon. Those of a sealed segment others read as well: they stay."""
        if self._data is not None and not self._checked:
            self._data.forget(self.offset(last_seq + 1))

    def bytes_of(self, first_seq: int, last_seq: int) -> int:
        """Bytes that the records first_seq..last_seq take in .data."""
        if last_seq < first_seq:
            raise ValueError(f"range {first_seq}..{last_seq} runs backwards")
        offset, length, _, _ = self.entry(last_seq)
        return offset + length - self.entry(first_seq).offset

    def seq_at_ts(self, ts: int) -> int:
        """The first seq whose record is not older than ts; last_seq + 1 if all are."""
        low, high = self._info.first_seq, self._info.last_seq + 1
        while low < high:
            middle = (low + high) // 2
            if self.entry(middle).ts >= ts:
                high = middle
            else:
                low = middle + 1
        return low

    def verify(self, first_seq: int, last_seq: int) -> None:
        """StorageCorrupt, naming the first damaged stretch, if a frame of first_seq..last_seq is bad."""
        self._check(memoryview(self.read(first_seq, last_seq)), first_seq, last_seq)

    def _check(self, frames: memoryview, first_seq: int, last_seq: int) -> None:
        base = self.entry(first_seq).offset
        at, seq = 0, first_seq
        scan = core.scan_frames(frames, 0, len(frames))
        for run in scan.runs:
            if not self._is_mine(run.type, run.topic_id) or run.first_seq < seq:
                break
            if run.first_seq > seq and self.bytes_of(seq, run.first_seq - 1):
                break
            at, seq = run.end, run.first_seq + run.count
        if at == len(frames) and not (seq <= last_seq and self.bytes_of(seq, last_seq)):
            return
        bad = self._first_behind(base + at)
        raise self._corrupt(bad, self._last_bad(bad, last_seq), "a frame fails its checksum")

    def readable(self, first_seq: int, last_seq: int) -> Iterator[memoryview | bytes]:
        """The frames of first_seq..last_seq that can be read and believed, in pieces, without the others."""
        while first_seq <= last_seq:
            try:
                frames = self.read(first_seq, last_seq)
                self._check(memoryview(frames), first_seq, last_seq)
            except StorageCorrupt as error:
                yield from self.readable(first_seq, int(error.detail["first_seq"]) - 1)
                first_seq = max(int(error.detail["last_seq"]), first_seq) + 1
                continue
            yield frames
            return

    def tags(self) -> TagTable:
        """The tag table of a sealed segment, opened at first use; from the data if the stored one is
        damaged.
        """
        if self._tags is None:
            table = TagTable(self._fs, self._dir, self._info.first_seq)
            try:
                self._tags = table.open()
            except (StorageCorrupt, FileNotFoundError):
                self._tags = table.use(self._build_tags())
        return self._tags

    def _build_tags(self) -> memoryview:
        info = self._info
        tagged: list[tuple[bytes, int]] = []
        for frames in self.readable(info.first_seq, info.last_seq):
            tagged += core.frame_tags(frames, 0, len(frames))
        seal = Seal(info.first_seq, info.count, 0, info.data_bytes, info.first_ts, info.last_ts, info.created_ms, 0)
        return memoryview(b"".join(pack_tags(seal, tagged)))

    def _tags_of(self, first: int, last: int) -> list[tuple[bytes, int]]:
        """Of the records that can be believed."""
        frames = self.read(first, last)
        if not core.scan_frames(frames, 0, len(frames)).problem:
            return core.frame_tags(frames, 0, len(frames))
        if first == last:
            return []
        middle = (first + last) // 2
        return [*self._tags_of(first, middle), *self._tags_of(middle + 1, last)]

    def close(self) -> None:
        """May be called twice. Do not call it while another thread reads; forget the reader instead."""
        for file in (self._index_file, self._data):
            if file is not None:
                file.close()
        self._index = memoryview(b"")
        self._index_file = self._data = self._tags = None

    def _is_mine(self, kind: int, topic_id: int) -> bool:
        return kind == APPEND and topic_id_of(self._dir) in {None, topic_id}

    def _first_behind(self, offset: int) -> int:
        """The first seq with bytes at or behind the offset."""
        low, high = self._info.first_seq, self._info.last_seq
        while low < high:
            middle = (low + high) // 2
            if sum(self.entry(middle)[:2]) > offset:
                high = middle
            else:
                low = middle + 1
        return low

    def _last_bad(self, bad: int, last_seq: int) -> int:
        seq = bad
        while seq < last_seq:
            entry = self.entry(seq + 1)
            frame = self.read(seq + 1, seq + 1)
            runs = core.scan_frames(frame, 0, len(frame)).runs
            good = len(runs) == 1 and runs[0].end == entry.length and runs[0].first_seq == seq + 1
            if entry.length and good and self._is_mine(runs[0].type, runs[0].topic_id):
                break
            seq += 1
        return seq

    def _open_index(self) -> File:
        if self._index_file is None:
            raise ValueError("the reader is not open")
        return self._index_file

    def _open_data(self) -> File:
        if self._data is None:
            raise ValueError("the reader is not open")
        return self._data

    def _path(self, part: str) -> Path:
        return resolve(self._dir, self._info.first_seq).file(part)

    def _failed(self, first: int, last: int, error: OSError) -> TopicdError:
        """What a reader is told of a call that failed."""
        limit = RESOURCES.get(error.errno or 0)
        if limit is None:
            return self._corrupt(first, last, f"cannot be read ({error.strerror})")
        return Throttled(f"{self._path(DATA)}: {error.strerror}", limit=limit, retry_after_ms=_RETRY_MS)

    def _corrupt(self, first: int, last: int, what: str) -> StorageCorrupt:
        path = resolve(self._dir, self._info.first_seq).frames(self._fs, self._info.lies)
        message = f"{path}: records {first}..{last}: {what}"
        return StorageCorrupt(message, segment=str(path), first_seq=first, last_seq=last)
