"""An index from the data alone. Promise: a frame that can be believed gets its entry, bad bytes never do.

Frames are believed by layout, checksum, type, topic and order of seqs. Behind bad bytes the search goes on:
one rotten frame costs one frame. A jump in seqs without bad bytes is what a rewrite leaves: those are gone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from topicd._native.interface import Run
from topicd.frames import TOPIC_ID_AT, TYPE_AT, FrameType, core
from topicd.limits import FRAME_OVERHEAD, MAX_FRAME
from topicd.shards.storage.segment.index import ENTRY_BYTES, damaged_entries, entry_at, entry_count, gone_entries

APPEND = int(FrameType.APPEND)
_SEARCH_CHUNK = 1 << 20
# A length that fits, a type and flags that the codec takes.
_ANY_FRAME = re.compile(rb"[\x00-\xff]{2}[\x00-\x10]\x00[\x01-\x3f][\x00-\x1f]")


class Rebuilt(NamedTuple):
    entries: bytes
    damaged: list[tuple[int, int]]  # ranges of seqs
    end: int  # behind the last believed frame
    bad_tail: int  # bytes behind it


def reindex(
    view: memoryview, first_seq: int, topic_id: int | None, last_seq: int | None, before: int | None = None
) -> Rebuilt:
    """Entries of the frames in view, first_seq onwards.

    last_seq, if known, is where the segment ends: bad bytes at the end then stand for the seqs up to it. before, if
    known, is a seq that the segment cannot have, as the next one begins with it: a file from elsewhere may.
    """
    index = bytearray()
    damaged: list[tuple[int, int]] = []
    seq, end = first_seq, 0
    for found in believed_runs(view, topic_id):
        if found.first_seq < seq or (before is not None and found.first_seq >= before):
            continue
        run, entries = _up_to(found, core.index_entries(view, found.start, found.end, found.start), before)
        start, first = run.start, run.first_seq
        if start > end and first == seq:
            # Bad bytes that stand for no seq: they go to the record behind them, which is lost with them.
            start, first, entries = start + entry_at(entries, 0).length, first + 1, entries[ENTRY_BYTES:]
        if first > seq and start > end:
            index += damaged_entries(end, start, _last_ts(index, run.first_ts), first - seq)
            damaged.append((seq, first - 1))
        elif first > seq:
            index += gone_entries(end, _last_ts(index, run.first_ts), first - seq)
        index += entries
        seq, end = run.first_seq + run.count, run.end
    bad_tail = len(view) - end
    if bad_tail and last_seq is not None and last_seq >= seq:
        # No more seqs than could have had a frame there.
        last = min(last_seq, seq + max(bad_tail // FRAME_OVERHEAD, 1) - 1)
        index += damaged_entries(end, len(view), _last_ts(index, 0), last - seq + 1)
        damaged.append((seq, last))
        end, bad_tail = len(view), 0
    return Rebuilt(bytes(index), damaged, end, bad_tail)


def _up_to(run: Run, entries: bytes, before: int | None) -> tuple[Run, bytes]:
    """What of a run lies below that seq."""
    if before is None or run.first_seq + run.count <= before:
        return run, entries
    count = before - run.first_seq
    entries = entries[: count * ENTRY_BYTES]
    last = entry_at(entries, count - 1)
    return run._replace(count=count, end=last.offset + last.length, last_ts=last.ts), entries


def _last_ts(index: bytes | bytearray, default: int) -> int:
    return entry_at(index, entry_count(index) - 1).ts if index else default


def believed_runs(view: memoryview, topic_id: int | None) -> Iterator[Run]:
    """Of the topic, in the order of the bytes; what cannot be read between them is passed over."""
    at = 0
    while at < len(view):
        scan = core.scan_frames(view, at, len(view))
        for run in scan.runs:
            if topic_id is None:
                topic_id = run.topic_id
            if run.type == APPEND and run.topic_id == topic_id:
                yield run
        if not scan.problem:
            return
        following = next_frame(view, scan.end + 1, topic_id)
        if following is None:
            return
        at = following


def next_frame(view: memoryview, start: int, topic_id: int | None) -> int | None:
    """Offset of the first append frame of the topic, from start on, whose checksum holds.

    Without a topic: of the first frame of any kind. That is slower, for much more looks like a frame.
    """
    if topic_id is None:
        pattern, ahead = _ANY_FRAME, 0
    else:
        pattern, ahead = re.compile(re.escape(topic_id.to_bytes(8, "little"))), TOPIC_ID_AT
    for at in range(start + ahead, len(view), _SEARCH_CHUNK):
        chunk = bytes(view[at : at + _SEARCH_CHUNK + FRAME_OVERHEAD])
        found = pattern.search(chunk)
        while found is not None and found.start() < _SEARCH_CHUNK:
            frame = at + found.start() - ahead
            if (topic_id is None or view[frame + TYPE_AT] == APPEND) and _valid(view, frame):
                return frame
            found = pattern.search(chunk, found.start() + 1)
    return None


def _valid(view: memoryview, at: int) -> bool:
    size = int.from_bytes(view[at : at + 4], "little") + 4
    end = at + size
    return size <= MAX_FRAME and end <= len(view) and core.scan_frames(view, at, end).end == end


class ScannedTail(NamedTuple):
    entries: bytes  # of the believed frames
    end: int  # in the file, behind the last believed frame
    behind: int  # last seq of valid frames behind the first bad one; 0: none, the tail is torn
    jumps: bool  # valid frames follow without bad bytes, but their seqs jump: the segment was rewritten


def scan_tail(view: memoryview, base: int, seq: int, topic_id: int | None) -> ScannedTail:
    """Frames of a view that lies at offset base of the file, the first of which must be seq, up to the first that
    cannot be believed."""
    scan = core.scan_frames(view, 0, len(view))
    runs = [run for run in scan.runs if run.type == APPEND and topic_id in {None, run.topic_id}]
    end = 0
    if runs and runs[0].start == 0 and runs[0].first_seq == seq:
        first = runs.pop(0)
        end, seq, topic_id = first.end, seq + first.count, first.topic_id
    entries = core.index_entries(view, 0, end, base) if end else b""
    jumps = bool(runs) and runs[0].start == end and runs[0].first_seq > seq
    return ScannedTail(entries, base + end, _last_behind(view, end, topic_id), jumps)


def _last_behind(view: memoryview, end: int, topic_id: int | None) -> int:
    at = next_frame(view, end, topic_id) if end < len(view) else None
    if at is None:
        return 0
    return max(run.first_seq + run.count - 1 for run in core.scan_frames(view, at, len(view)).runs)
