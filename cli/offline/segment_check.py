"""Is a segment what it claims to be? Promise: every frame, the index, the seal, the tag table and the deletion
marks are read and compared, and nothing is written.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from topicd.disk.cold import ColdMissing, told
from topicd.disk.fs import Fs, no_file
from topicd.disk.loading import Content
from topicd.disk.refusal import raise_refusal
from topicd.errors import FormatError, StorageCorrupt
from topicd.frames import core
from topicd.limits import MAX_SEQ
from topicd.shards.storage.ranges import Ranges
from topicd.shards.storage.segment.deletions import parse_marks
from topicd.shards.storage.segment.index import (
    DAMAGED,
    ENTRY_BYTES,
    GONE,
    entries_within,
    entry_at,
    entry_count,
    flagged,
    tiled_entries,
)
from topicd.shards.storage.segment.info import Lies
from topicd.shards.storage.segment.misplaced import Owner, stranger
from topicd.shards.storage.segment.names import COLD, DATA, DEL, IDX, PACKED, TAGS, topic_id_of
from topicd.shards.storage.segment.places import SegmentPlace, lies_of, resolve
from topicd.shards.storage.segment.pointer import load_pointer
from topicd.shards.storage.segment.reindex import Rebuilt, reindex
from topicd.shards.storage.segment.seal import segment_end
from topicd.shards.storage.segment.settle_marks import DeadOnRecord, missing_marks, unknown_marks
from topicd.shards.storage.segment.tags import Seal, TagTable, read_seal
from topicd.words import counted

DAMAGE = "damage"  # something that was stored cannot be read or believed
NOTE = "note"  # worth knowing; the next start deals with it


FRAMES = {DATA, PACKED, COLD}
NOT_CHECKED = "not checked: "  # frames in a cold directory that is not there


@dataclass
class Finding:
    severity: str
    path: Path
    what: str
    first_seq: int = 0
    last_seq: int = 0
    action: str = ""  # what repair did

    def __str__(self) -> str:
        seqs = f" (seqs {self.first_seq} to {self.last_seq})" if self.first_seq else ""
        return f"{self.path}: {self.what}{seqs}"


@dataclass
class SegmentReport:
    directory: Path
    first_seq: int
    parts: set[str]
    count: int = 0
    data_bytes: int = 0
    sealed: bool = False
    deleted: int = 0
    tags: int = 0
    findings: list[Finding] = field(default_factory=list)
    # For repair:
    seal: Seal | None = None
    claimed_last: int = 0  # last seq that seal or index speak of
    unreadable: list[tuple[int, int]] = field(default_factory=list)  # parts of .data
    rebuild: bool = False  # index and seal shall be made anew from the data
    marks: Ranges = field(default_factory=Ranges)
    bad_marks: bool = False
    missing_marks: list[tuple[int, int]] = field(default_factory=list)  # that a snapshot has on record
    no_files: list[str] = field(default_factory=list)  # parts in whose place something else is
    owner: Owner | None = None  # whose records the data file holds, if they are not the segment's
    following: int | None = None  # first seq of the next segment, None for the newest
    to_come: list[tuple[int, int]] = field(default_factory=list)  # seqs that only the log may still have
    unread: bool = False  # the disk refused
    foreign: bool = False  # of a version not known here: nobody may touch it
    frames: Path | None = None  # the file that holds them, if it is not .data here

    @property
    def last_seq(self) -> int:
        return self.first_seq + self.count - 1

    @property
    def newest(self) -> bool:
        return self.following is None

    @property
    def before(self) -> int | None:
        """A seq that it cannot have."""
        return segment_end(self.first_seq, self.seal, self.claimed_last, self.following)

    @property
    def damaged(self) -> bool:
        return any(finding.severity == DAMAGE for finding in self.findings)

    def file(self, part: str) -> Path:
        return self.place.file(part)

    @property
    def place(self) -> SegmentPlace:
        return resolve(self.directory, self.first_seq)

    def note(self, severity: str, part: str, what: str, first: int = 0, last: int = 0) -> None:
        path = self.frames if self.frames is not None and part in FRAMES else self.file(part)
        self.findings.append(Finding(severity, path, what, first, last))


def check_segment(fs: Fs, topic_dir: Path, first: int, parts: set[str], following: int | None) -> SegmentReport:
    """following: first seq of the next segment, None for the newest."""
    report = SegmentReport(topic_dir, first, parts, following=following)
    _leave_out_no_files(fs, report)
    parts = report.parts
    if DEL in parts:
        _check_marks(fs, report)
    if not parts & FRAMES:
        _without_data(fs, report)
        return report
    index = report.place.read_index(fs)
    found = _check_sectors(fs, report, DATA) if DATA in parts else _elsewhere(fs, report)
    if found is None:
        return report
    view = found.view
    for part in sorted(parts & {IDX, TAGS}):
        _check_sectors(fs, report, part)
    report.data_bytes = len(view)
    report.seal = _read_seal(fs, report) if TAGS in parts else None
    if report.foreign:
        return report
    if DATA in parts:
        report.owner = stranger(fs, topic_dir, first, parts, report.seal, following or MAX_SEQ)
    if report.owner is not None:
        report.count = report.seal.count if report.seal else tiled_entries(index)
        report.note(DAMAGE, DATA, f"holds {report.owner}", first, max(report.last_seq, first))
        return report
    if report.seal is not None:
        _check_sealed(fs, report, report.seal, index, view)
        if DATA not in parts:
            report.unreadable = []  # a block that is damaged has no bytes that could be kept aside
    else:
        _check_unsealed(report, index, view, following)
    report.deleted = report.marks.count_within(first, report.last_seq) + sum(
        last - a + 1 for a, last in flagged(index, first, GONE)
    )
    return report


def _leave_out_no_files(fs: Fs, report: SegmentReport) -> None:
    for part in sorted(report.parts):
        if what := no_file(fs, report.file(part)):
            report.note(DAMAGE, part, what)
            report.no_files.append(part)
    report.parts = set(report.parts) - set(report.no_files)


def check_record(fs: Fs, report: SegmentReport, record: DeadOnRecord | None) -> None:
    """Deletion marks against what the newest snapshot has on record."""

    def gone() -> Ranges:
        if report.seal is not None:
            return report.seal.gone
        return Ranges(flagged(report.place.read_index(fs), report.first_seq, GONE))

    report.missing_marks = missing_marks(report.marks, gone, record)
    count = sum(last - first + 1 for first, last in report.missing_marks)
    if count:
        what = f"marks of {counted(count, 'deleted record')} are gone; the next start takes them from the snapshot"
        report.note(DAMAGE, DEL, what)
    unknown = unknown_marks(report.marks, gone, record)
    if unknown:
        what = f"{counted(unknown, 'deleted record')} cannot be told from the others: the marks are gone"
        report.note(DAMAGE, DEL, what, report.first_seq, report.last_seq)


def check_log_has(report: SegmentReport, logged: Ranges) -> None:
    """What a start would take from the log must be there."""
    for part in report.to_come:
        for first, last in logged.missing(*part):
            what = "frames cannot be read, and those behind them are cut: the log does not have them"
            report.note(DAMAGE, DATA, what, first, last)


def _check_sectors(fs: Fs, report: SegmentReport, part: str) -> Content:
    """Bytes that the disk does not give; which records they cost is found by reading on without them."""
    content = report.place.load(fs, part)
    for bad in content.bad:
        report.note(DAMAGE, part, str(bad))
    return content


def _check_sealed(fs: Fs, report: SegmentReport, seal: Seal, index: bytes, view: memoryview) -> None:
    report.sealed, report.count = True, seal.count
    report.claimed_last = report.last_seq
    if len(index) != seal.count * ENTRY_BYTES or core.xxh3_64(index) != seal.index_xxh3:
        report.note(DAMAGE, IDX, "the index fails its checksum")
        report.rebuild = True
    if len(view) != seal.data_bytes:
        report.note(DAMAGE, DATA, f"has {len(view)} bytes, its seal says {seal.data_bytes}")
        report.rebuild = True
    try:
        report.tags = TagTable(fs, report.directory, report.first_seq).open().tag_count
    except StorageCorrupt:
        report.note(DAMAGE, TAGS, "the tag table fails its checksum")
        report.rebuild = True
    rebuilt = reindex(view, report.first_seq, topic_id_of(report.directory), report.last_seq, report.before)
    known = Ranges(flagged(index, report.first_seq, DAMAGED)) if not report.rebuild else Ranges()
    _note_unreadable(report, rebuilt, known)
    readable_last = report.first_seq + entry_count(rebuilt.entries) - 1
    for first, last in seal.gone.missing(readable_last + 1, report.last_seq):
        report.note(DAMAGE, DATA, "records that were stored are not there", first, last)
        report.rebuild = True


def _check_unsealed(report: SegmentReport, index: bytes, view: memoryview, following: int | None) -> None:
    newest = following is None and TAGS not in report.parts
    claimed = tiled_entries(index)
    report.claimed_last = report.first_seq + claimed - 1
    last = None if following is None else following - 1
    rebuilt = reindex(view, report.first_seq, topic_id_of(report.directory), last, report.before)
    report.count = entry_count(rebuilt.entries)
    if TAGS in report.parts:
        report.note(DAMAGE, TAGS, "the seal cannot be read")
        report.rebuild = True
    elif not newest:
        report.note(NOTE, DATA, "is not sealed; the next start seals it")
    if newest:
        _check_tail(report, rebuilt, index, len(view))
    else:
        _note_unreadable(report, rebuilt, Ranges())
    if report.claimed_last > report.last_seq:
        what = "records that the index names are not there"
        report.note(DAMAGE, DATA, what, report.last_seq + 1, report.claimed_last)
        report.rebuild = True


def _check_tail(report: SegmentReport, rebuilt: Rebuilt, index: bytes, size: int) -> None:
    """The newest segment may end in what a crash left. What its index names was durable; the rest was not."""
    synced = entries_within(index, tiled_entries(index), size)
    synced_last = report.first_seq + synced - 1
    durable = [(first, min(last, synced_last)) for first, last in rebuilt.damaged if first <= synced_last]
    _note_unreadable(report, rebuilt._replace(damaged=durable), Ranges())
    unsynced = [(max(first, synced_last + 1), last) for first, last in rebuilt.damaged if last > synced_last]
    if unsynced:
        # A start cuts from the first of them on, and what lies behind it comes from the log, too.
        report.to_come.append((unsynced[0][0], report.last_seq))
        report.note(NOTE, DATA, "unsynced writes arrived out of order; the next start takes them from the WAL")
    if rebuilt.bad_tail:
        report.note(NOTE, DATA, f"{rebuilt.bad_tail} bytes of a torn tail; the next start cuts them")


def unreadable_parts(rebuilt: Rebuilt, first_seq: int) -> list[tuple[int, int]]:
    """The first entry of a damaged stretch carries all its bytes."""
    entries = [entry_at(rebuilt.entries, first - first_seq) for first, _ in rebuilt.damaged]
    return [(entry.offset, entry.offset + entry.length) for entry in entries if entry.length]


def _note_unreadable(report: SegmentReport, rebuilt: Rebuilt, known: Ranges) -> None:
    report.unreadable += unreadable_parts(rebuilt, report.first_seq)
    for first, last in rebuilt.damaged:
        if known.missing(first, last):
            report.note(DAMAGE, DATA, "frames cannot be read", first, last)
            report.rebuild = True
        else:
            report.note(DAMAGE, DATA, "frames could not be read when it was sealed", first, last)


def _read_seal(fs: Fs, report: SegmentReport) -> Seal | None:
    try:
        return read_seal(fs, report.directory, report.first_seq)
    except FormatError as exc:
        report.note(DAMAGE, TAGS, exc.message)
        report.foreign = True
        return None


def _check_marks(fs: Fs, report: SegmentReport) -> None:
    content = _check_sectors(fs, report, DEL)
    marks = parse_marks(bytes(content.view), report.first_seq)
    report.marks = marks.ranges
    if content.bad:
        report.note(DAMAGE, DEL, "deletion marks cannot be read; what they deleted may come back")
        report.bad_marks = True
        return
    if marks.bad:
        report.note(DAMAGE, DEL, f"{marks.bad} deletion marks cannot be read; what they deleted may come back")
        report.bad_marks = True
    if marks.end != marks.size:
        report.note(NOTE, DEL, f"{marks.size - marks.end} bytes of a torn mark; the next start cuts them")


def _elsewhere(fs: Fs, report: SegmentReport) -> Content | None:
    """Frames that are packed or in the cold directory. None: there is nothing to be checked, or it cannot be."""
    part = PACKED if PACKED in report.parts else COLD
    try:
        lies = Lies.PACKED
        if part == COLD:
            pointer = load_pointer(fs, report.file(COLD))
            if pointer.dropped:
                report.note(NOTE, COLD, "is being removed; the daemon finishes it when the cold directory is there")
                return None
            lies = lies_of(pointer)
        report.frames = report.place.frames(fs, lies)
        content = report.place.load(fs, DATA)
    except (OSError, FormatError) as error:
        raise_refusal(error)
        report.seal = _read_seal(fs, report) if TAGS in report.parts else None
        report.sealed, report.count = True, report.seal.count if report.seal else 0
        if isinstance(error, ColdMissing):
            severity, what = NOTE, f"{NOT_CHECKED}{told(error)}"
        else:
            why = error.message if isinstance(error, FormatError) else str(error.strerror)
            severity, what = DAMAGE, f"its frames cannot be read: {why}"
        report.note(severity, part, what, report.first_seq, report.last_seq)
        return None
    for bad in content.bad:
        report.note(DAMAGE, part, str(bad))
    return content


def _without_data(fs: Fs, report: SegmentReport) -> None:
    seal = _read_seal(fs, report) if TAGS in report.parts else None
    count = seal.count if seal else entry_count(report.place.read_index(fs))
    report.count, report.seal = count, seal
    if count:
        report.note(DAMAGE, DATA, "the data file is missing", report.first_seq, report.last_seq)
    else:
        report.note(NOTE, DATA, "left by an interrupted removal; the next start finishes it")
