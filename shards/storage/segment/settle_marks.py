"""Deletion marks at a start. Promise: a mark that a snapshot has on record is there, or the segment says that it is
not: no record that was deleted is served again because a few bytes of `.del` are bad.

A snapshot holds the deleted seqs of each segment, or only their number where they are many. Marks that are newer than
the snapshot are in the log, which does the delete again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from topicd.disk.fs import Fs, replace_file
from topicd.disk.loading import Content, load_file
from topicd.shards.storage.ranges import Ranges
from topicd.shards.storage.segment.deletions import MARK_BYTES, load_marks, pack_marks, parse_marks
from topicd.shards.storage.segment.misplaced import quarantine_of
from topicd.shards.storage.segment.names import DEL
from topicd.shards.storage.segment.places import resolve

RANGES_ON_RECORD = 1024  # of one segment; above that a snapshot holds their number only


class DeadOnRecord(NamedTuple):
    """Deleted seqs of a segment that a snapshot knows to be on the disk."""

    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here
    ranges: Ranges | None  # None: too many to be listed


class SettledMarks(NamedTuple):
    ranges: Ranges
    bad: int  # marks that cannot be read, and nobody knows what they said
    restored: int  # seqs whose marks were gone, and are there again
    unknown: int  # deleted seqs that nobody can name any more


def on_record(marks: Ranges, unmarked: Ranges | None) -> DeadOnRecord:
    """What a snapshot shall hold of a segment. unmarked: of its dead seqs those that `.del` has not yet."""
    if unmarked is not None:
        marks = Ranges(part for first, last in marks for part in unmarked.missing(first, last))
    return DeadOnRecord(marks.covered, marks if len(marks) <= RANGES_ON_RECORD else None)


def missing_marks(have: Ranges, gone: Callable[[], Ranges], record: DeadOnRecord | None) -> list[tuple[int, int]]:
    """Seqs on record that no mark names. gone: what rewrites have taken away, asked for only if it matters."""
    if record is None or record.ranges is None:
        return []
    missing = [part for first, last in record.ranges for part in have.missing(first, last)]
    if not missing:
        return []
    taken = gone()
    return [part for first, last in missing for part in taken.missing(first, last)]


def unknown_marks(have: Ranges, gone: Callable[[], Ranges], record: DeadOnRecord | None) -> int:
    """How many deleted seqs nobody can name: the record has their number only."""
    if record is None or record.ranges is not None or have.covered >= record.count:
        return 0
    both = have.copy()
    both.update(gone())
    return max(record.count - both.covered, 0)


def settle_marks(
    fs: Fs, topic_dir: Path, first: int, record: DeadOnRecord | None, gone: Callable[[], Ranges], *, recorded: bool
) -> SettledMarks:
    """The marks of a segment, put right where that is possible. recorded: a snapshot would know of older ones; what
    it does not is in the log. Whatever is replaced or cut and was no torn write is kept in quarantine."""
    path = resolve(topic_dir, first).file(DEL)
    there = fs.exists(path)
    content = load_file(fs, path) if there else Content(memoryview(b""), [])
    raw = bytes(content.view)
    marks = parse_marks(raw, first)
    bad = marks.bad or len(content.bad)
    missing = missing_marks(marks.ranges, gone, record)
    if missing or (recorded and bad):
        if there:
            quarantine_of(fs, topic_dir).keep_copy(path)
        restored = marks.ranges.update(missing)
        replace_file(fs, path, [pack_marks(first, marks.ranges)])
        return SettledMarks(marks.ranges, 0, restored or 1, unknown_marks(marks.ranges, gone, record))
    if any(raw[marks.end : marks.size - marks.size % MARK_BYTES]):
        quarantine_of(fs, topic_dir).keep_copy(path)
    if there:
        bad = load_marks(fs, topic_dir, first).bad
    return SettledMarks(marks.ranges, bad, 0, unknown_marks(marks.ranges, gone, record))
