"""What fsck may mend. Promise: no readable record is discarded; every byte that cannot be read, and every
derived file that is replaced, is in quarantine/ durably before anything changes.
"""

from __future__ import annotations

from pathlib import Path

from topicd.cli.offline.check import Checked
from topicd.cli.offline.data_dir import Offline
from topicd.cli.offline.segment_check import DAMAGE, NOTE, Finding, SegmentReport, unreadable_parts
from topicd.disk.fs import replace_file
from topicd.paths import TOPIC_NAME_FILE
from topicd.shards.storage.quarantine import Quarantine
from topicd.shards.storage.ranges import Ranges
from topicd.shards.storage.segment.deletions import pack_marks
from topicd.shards.storage.segment.index import GONE, flagged
from topicd.shards.storage.segment.misplaced import bring_back, send_home
from topicd.shards.storage.segment.names import DATA, DEL, IDX, TAGS, topic_id_of
from topicd.shards.storage.segment.reindex import believed_runs, reindex
from topicd.shards.storage.segment.seal import seal_segment
from topicd.shards.storage.walfile import WalDamage
from topicd.words import counted


def settle_known(checked: Checked, offline: Offline) -> None:
    """What an earlier repair has put in quarantine is history, not news."""
    quarantine = Quarantine(offline.fs, offline.data)
    for report in checked.segments:
        if report.rebuild or not report.unreadable:
            continue
        if all(quarantine.holds(report.file(DATA), start, end) for start, end in report.unreadable):
            _downgrade(report.findings)
    for wal in checked.wal:
        for damage in wal.damage:
            if quarantine.holds(damage.path, *_range(damage)):
                _downgrade([f for f in checked.findings if f.path == damage.path and str(damage.first_lsn) in f.what])


def _downgrade(findings: list[Finding]) -> None:
    for finding in findings:
        if finding.severity == DAMAGE:
            finding.severity, finding.what = NOTE, f"{finding.what}; in quarantine since an earlier repair"


def repair(checked: Checked, offline: Offline) -> None:
    """Mends what can be mended and says so in the findings."""
    quarantine = Quarantine(offline.fs, offline.data)
    for path in checked.bad_snapshots:
        _say(checked.findings, path, f"moved to {quarantine.move(path)}; the one before it counts")
    for wal in checked.wal:
        unknown = [file.path for file in wal.unknown]
        for path in unknown:
            _say(checked.findings, path, f"moved to {quarantine.move(path)}")
        for damage in wal.damage:
            if damage.path not in unknown:
                _keep_wal(checked.findings, damage, quarantine)
    for topic_id in checked.bad_labels:
        path = offline.data.topic(topic_id) / TOPIC_NAME_FILE
        _say(checked.findings, path, f"moved to {quarantine.move(path)}; the next start writes another")
    _put_in_place(checked, offline, quarantine)
    for report in checked.segments:
        if report.damaged and not report.foreign and not report.unread and report.owner is None:
            _mend(report, offline, quarantine)


def _put_in_place(checked: Checked, offline: Offline, quarantine: Quarantine) -> None:
    """Data files that hold the records of others go where those are missing; the rest of a lost segment makes way."""
    for report in checked.segments:
        for part in report.no_files:
            _say(report.findings, report.file(part), f"moved to {quarantine.move(report.file(part))}")
        if report.owner is not None:
            kept = send_home(offline.fs, report.directory, report.first_seq, report.owner)
            _say(report.findings, report.file(DATA), f"moved to {kept}")
            report.parts.discard(DATA)
    for report in checked.segments:
        if DATA in report.parts or report.foreign or report.unread or not report.count:
            continue
        if bring_back(offline.fs, report.directory, report.first_seq, report.seal):
            _say(report.findings, report.file(DATA), "its own records are back from quarantine")
        elif not report.newest:
            # Of the newest one a start has to know how far it went.
            _clear(report, quarantine, {TAGS, IDX, DEL})


def _clear(report: SegmentReport, quarantine: Quarantine, parts: set[str]) -> None:
    for part in sorted(report.parts & parts):
        quarantine.move(report.file(part))
        report.parts.discard(part)
    for part in (DATA, IDX, TAGS, DEL):
        _say(report.findings, report.file(part), "what is left of the segment is in quarantine")


def _keep_wal(findings: list[Finding], damage: WalDamage, quarantine: Quarantine) -> None:
    start, end = _range(damage)
    if start < 0 or end <= start or quarantine.holds(damage.path, start, end):
        return
    kept = quarantine.keep_part(damage.path, start, end)
    _say(findings, damage.path, f"copied to {kept}; the next start reads on behind it")


def _range(damage: WalDamage) -> tuple[int, int]:
    """Offsets in the file; its name says where it begins."""
    begin = int(damage.path.stem.rpartition("-")[2], 16)
    return damage.first_lsn - begin, damage.last_lsn + 1 - begin


def _mend(report: SegmentReport, offline: Offline, quarantine: Quarantine) -> None:
    for start, end in _unreadable(report, offline):
        kept = quarantine.keep_part(report.file(DATA), start, end)
        _say(report.findings, report.file(DATA), f"unreadable bytes copied to {kept.parent}")
    if (report.bad_marks or report.missing_marks) and report.parts:
        if DEL in report.parts:
            quarantine.keep_copy(report.file(DEL))
        report.marks.update(report.missing_marks)
        replace_file(offline.fs, report.file(DEL), [pack_marks(report.first_seq, report.marks)])
        _say(
            report.findings,
            report.file(DEL),
            "marks that are known written, the old file is in quarantine",
        )
    if report.rebuild and DATA in report.parts:
        _rebuild(report, offline, quarantine)


def _unreadable(report: SegmentReport, offline: Offline) -> list[tuple[int, int]]:
    """What the rebuilt index will call damaged: a torn end counts when records were promised there."""
    if not report.rebuild or DATA not in report.parts:
        return report.unreadable
    view = report.place.load(offline.fs, DATA).view
    rebuilt = reindex(view, report.first_seq, topic_id_of(report.directory), _end(report), report.before)
    return unreadable_parts(rebuilt, report.first_seq)


def _end(report: SegmentReport) -> int:
    return max(report.claimed_last, report.last_seq)


def _rebuild(report: SegmentReport, offline: Offline, quarantine: Quarantine) -> None:
    """Index and seal from the data. Frames that can be believed stay; the others are marked damaged."""
    view = report.place.load(offline.fs, DATA).view
    if not any(believed_runs(view, topic_id_of(report.directory))):
        if not report.newest:
            _clear(report, quarantine, {DATA, TAGS, IDX, DEL})
        return
    index = report.place.read_index(offline.fs)
    for part in (IDX, TAGS):
        if part in report.parts:
            quarantine.keep_copy(report.file(part))
    seal = report.seal
    sealed = seal_segment(
        offline.fs,
        report.directory,
        report.first_seq,
        gone=seal.gone if seal is not None else Ranges(flagged(index, report.first_seq, GONE)),
        created_ms=seal.created_ms if seal is not None else None,
        last_seq=_end(report),
        before=report.before,
    )
    lost = sum(d.last_seq - d.first_seq + 1 for d in sealed.damage if not d.repaired)
    done = f"index and seal built anew: {sealed.info.count - lost} of {counted(sealed.info.count, 'seq')} kept"
    for part in (DATA, IDX, TAGS):
        _say(report.findings, report.file(part), done)


def _say(findings: list[Finding], path: Path, action: str) -> None:
    for finding in findings:
        if finding.path == path and finding.severity == DAMAGE and action not in finding.action:
            finding.action = "; ".join(filter(None, [finding.action, action]))
