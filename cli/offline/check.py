"""All of a data directory, read and compared. Promise: nothing is written; what is not ours is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from topicd import paths
from topicd.cli.offline.channel_check import channels_of, check_channels
from topicd.cli.offline.data_dir import Names, Offline, read_names, scan_past
from topicd.cli.offline.segment_check import (
    DAMAGE,
    NOT_CHECKED,
    NOTE,
    Finding,
    SegmentReport,
    check_log_has,
    check_record,
    check_segment,
)
from topicd.disk import cold, envelope, identity, layout
from topicd.disk.fs import TMP_SUFFIX, Fs
from topicd.disk.refusal import raise_refusal
from topicd.errors import FormatError, TopicdError
from topicd.frames import FrameType
from topicd.model import Durability
from topicd.shards.storage import snapshot
from topicd.shards.storage.ranges import Ranges
from topicd.shards.storage.segment import places
from topicd.shards.storage.segment.names import DATA, DEL, PACKED
from topicd.shards.storage.segment.settle_marks import DeadOnRecord
from topicd.shards.storage.topic_entry import dead_on_record
from topicd.shards.storage.topic_label import read_label
from topicd.shards.storage.walfile import LogReader, WalDamage, WalFile, find_end, list_files, lsn_at, missing_part
from topicd.words import counted

UNKNOWN = "unknown"  # a file that topicd did not make
# Other stores keep their own files below these.
_NOT_OURS_TO_CHECK = {"chat"}
_IN_ROOT = {"LOCK", "FORMAT", "meta", "wal", "topics", "quarantine", "channels", "trash"} | _NOT_OURS_TO_CHECK

Advance = Callable[[int], None]


class SegmentJob(NamedTuple):
    """A segment to be checked: a unit of work that may be done anywhere."""

    directory: Path
    first: int
    parts: frozenset[str]
    following: int | None  # first seq of the next segment, None for the newest


CheckSegments = Callable[[Fs, list[SegmentJob], Advance], list[SegmentReport]]


@dataclass
class WalReport:
    shard: int
    directory: Path
    files: list[WalFile]
    groups: int = 0
    frames: int = 0
    end_lsn: int = 0
    damage: list[WalDamage] = field(default_factory=list)
    unknown: list[WalFile] = field(default_factory=list)  # that hold no group at all
    logged: dict[int, Ranges] = field(default_factory=dict)  # by topic: seqs of records in it


@dataclass
class Checked:
    findings: list[Finding] = field(default_factory=list)
    segments: list[SegmentReport] = field(default_factory=list)
    wal: list[WalReport] = field(default_factory=list)
    bad_snapshots: list[Path] = field(default_factory=list)
    bad_labels: list[int] = field(default_factory=list)  # topics whose label is not theirs, or cannot be read
    names: Names = field(default_factory=Names)
    topics: int = 0
    channels: int = 0

    @property
    def damaged(self) -> bool:
        return any(finding.severity == DAMAGE for finding in self.findings)


def work_bytes(offline: Offline) -> int:
    """How much there is to read, for a progress bar."""
    if any(layout.obstacles(offline.data)):
        return 0
    fs, data = offline.fs, offline.data
    sizes = [_size(fs, path) for path in _data_files(fs, offline.topic_ids(), data)]
    for shard in offline.wal_shards():
        sizes += [_size(fs, file.path) for file in list_files(fs, data.wal_shard(shard))]
    return sum(sizes)


def _size(fs: Fs, path: Path) -> int:
    """0 for what is no file, as a link that leads nowhere."""
    try:
        return fs.size(path)
    except FileNotFoundError:
        return 0


def _data_files(fs: Fs, ids: list[int], data: paths.DataDir) -> Iterator[Path]:
    for topic_id in ids:
        for listed in places.list_files(fs, data.topic(topic_id)):
            if listed.part in (DATA, PACKED) and not listed.unfinished:
                yield listed.path


def check_here(fs: Fs, jobs: list[SegmentJob], advance: Advance) -> list[SegmentReport]:
    """One after the other, in this process."""
    reports: list[SegmentReport] = []
    for job in jobs:
        try:
            report = check_segment(fs, job.directory, job.first, set(job.parts), job.following)
        except OSError as exc:
            raise_refusal(exc)
            report = SegmentReport(job.directory, job.first, set(job.parts), unread=True)
            report.note(DAMAGE, DATA, f"cannot be read: {exc}")
        reports.append(report)
        advance(reports[-1].data_bytes)
    return reports


def check_all(offline: Offline, advance: Advance = lambda amount: None, check: CheckSegments = check_here) -> Checked:
    """`check` does the bulk of it; its reports come in the order of the jobs. A daemon does not start on directories
    that are none, so nothing else is looked at then."""
    checked = Checked()
    checked.findings += [Finding(DAMAGE, path, what) for path, what in layout.obstacles(offline.data)]
    if checked.findings:
        return checked
    seed = offline.format.wal_seed  # an error here ends it: without FORMAT nothing can be told
    _check_identity(offline, checked)
    _check_snapshots(offline, checked)
    try:
        checked.names = read_names(offline)
    except (OSError, TopicdError, KeyError, TypeError, ValueError) as exc:
        raise_refusal(exc)
        checked.findings.append(Finding(DAMAGE, offline.data.meta, f"the snapshots cannot be understood: {exc}"))
    for shard in sorted({*offline.wal_shards(), *checked.names.logs}):
        report = check_wal(offline, shard, seed, checked.findings, checked.names.logs.get(shard))
        checked.wal.append(report)
        advance(sum(_size(offline.fs, file.path) for file in report.files))
    jobs = {topic_id: segment_jobs(offline, topic_id) for topic_id in offline.topic_ids()}
    reports = iter(check(offline.fs, [job for row in jobs.values() for job in row], advance))
    for topic_id, row in jobs.items():
        checked.segments += _settle_topic(offline, topic_id, checked, [next(reports) for _ in row])
        checked.topics += 1
    for topic_id in sorted(checked.names.entries.keys() - jobs.keys()):
        _check_ends(checked, topic_id, offline.data.topic(topic_id), [])
    checked.findings += check_channels(offline.fs, offline.data)
    checked.channels = len(channels_of(offline.fs, offline.data))
    _check_names(offline, checked)
    return checked


def _check_identity(offline: Offline, checked: Checked) -> None:
    path = offline.data.identity
    try:
        envelope.load(offline.fs, path, identity.MAGIC, identity.VERSION)
    except FileNotFoundError:
        if offline.topic_ids() or offline.wal_shards():
            checked.findings.append(Finding(DAMAGE, path, "is missing although there is data"))
    except FormatError as exc:
        checked.findings.append(Finding(DAMAGE, path, f"cannot be read: {exc.message}"))
    except OSError as exc:
        raise_refusal(exc)
        checked.findings.append(Finding(DAMAGE, path, f"cannot be read: {exc.strerror}"))


def _check_snapshots(offline: Offline, checked: Checked) -> None:
    for shard in offline.snapshot_shards():
        directory = offline.data.snapshots(shard)
        for number in snapshot.SnapshotStore(offline.fs, directory).numbers():
            path = directory / paths.snapshot_name(number)
            try:
                snapshot.load_snapshot(offline.fs, path)
            except FormatError as exc:
                checked.findings.append(Finding(DAMAGE, path, f"cannot be read: {exc.message}"))
                if exc.detail.get("what") != "version":
                    checked.bad_snapshots.append(path)
            except OSError as exc:
                raise_refusal(exc)
                checked.findings.append(Finding(DAMAGE, path, f"cannot be read: {exc.strerror}"))
                checked.bad_snapshots.append(path)


def check_wal(
    offline: Offline, shard: int, seed: int, findings: list[Finding], durable_lsn: int | None = None
) -> WalReport:
    """durable_lsn: so far it was durable, by the newest snapshots."""
    fs, directory = offline.fs, offline.data.wal_shard(shard)
    report = WalReport(shard, directory, list_files(fs, directory))
    end = find_end(fs, directory, seed)
    report.end_lsn = end.lsn
    reader = LogReader(fs, directory, seed, up_to_lsn=end.lsn if end.torn else None)
    for chunk in reader.chunks():
        for group in chunk.groups:
            runs, bad = scan_past(chunk.view, group)
            report.groups += 1
            report.frames += sum(run.count for run in runs)
            for run in runs:
                if run.type == FrameType.APPEND:
                    report.logged.setdefault(run.topic_id, Ranges()).add(run.first_seq, run.first_seq + run.count - 1)
            for start, stop, problem in bad:
                first, last = lsn_at(group, start), lsn_at(group, stop) - 1
                report.damage.append(WalDamage(chunk.path, first, last, f"bad frame ({problem})"))
    report.damage += reader.end.damage
    report.unknown = end.unknown
    missing = missing_part(directory, end, durable_lsn)
    if missing is not None and not end.unknown:
        findings.append(Finding(DAMAGE, missing.path, f"{missing.what} LSN {missing.first_lsn} to {missing.last_lsn}"))
    for damage in report.damage:
        what = f"{damage.what}, LSN {damage.first_lsn} to {damage.last_lsn}"
        findings.append(Finding(DAMAGE, damage.path, what))
    for file, part in reader.end.bad_sectors:
        known = file.first_lsn + part.start < end.lsn
        what = str(part) if known else f"{part}; nothing of the log is known to lie there"
        findings.append(Finding(DAMAGE if known else NOTE, file.path, what))
    if end.torn and end.file is not None:
        findings.append(Finding(NOTE, end.file.path, f"torn tail behind LSN {end.lsn}; the next start cuts it"))
    return report


def segment_jobs(offline: Offline, topic_id: int) -> list[SegmentJob]:
    return jobs_in(offline.fs, offline.data.topic(topic_id))


def jobs_in(fs: Fs, directory: Path) -> list[SegmentJob]:
    found = places.list_segments(fs, directory)
    # Marks alone are of no segment, and end none.
    jobs: list[SegmentJob] = []
    following: int | None = None
    for first, parts in reversed(found.items()):
        jobs.append(SegmentJob(directory, first, frozenset(parts), following))
        following = following if parts == {DEL} else first
    return jobs[::-1]


def check_topic(
    offline: Offline, topic_id: int, checked: Checked, advance: Advance = lambda amount: None
) -> list[SegmentReport]:
    reports = check_here(offline.fs, segment_jobs(offline, topic_id), advance)
    return _settle_topic(offline, topic_id, checked, reports)


def _settle_topic(
    offline: Offline, topic_id: int, checked: Checked, reports: list[SegmentReport]
) -> list[SegmentReport]:
    """What the segments say of each other, beside what each says of itself."""
    directory = offline.data.topic(topic_id)
    dead = _dead_on_record(checked.names.entries.get(topic_id))
    for report in reports:
        if not report.unread and not report.foreign:
            check_record(offline.fs, report, dead.get(report.first_seq))
            check_log_has(report, _logged(checked, topic_id) if report.to_come else Ranges())
        checked.findings += report.findings
    _check_neighbours(checked, topic_id, directory, [r for r in reports if r.count])
    _check_ends(checked, topic_id, directory, reports)
    name = _check_label(offline, topic_id, checked)
    if topic_id not in checked.names.by_id and reports:
        what = "belongs to no topic that snapshots or WAL know"
        if checked.names.is_gone(topic_id, name):
            checked.findings.append(Finding(NOTE, directory, f"{what}: it was deleted"))
        else:
            then = "the next start cannot tell whose it is" if name is None else f"the next start adopts it as {name}"
            checked.findings.append(Finding(DAMAGE, directory, f"{what}; {then}"))
    return reports


def _logged(checked: Checked, topic_id: int) -> Ranges:
    found = Ranges()
    for wal in checked.wal:
        found.update(wal.logged.get(topic_id, Ranges()))
    return found


def _dead_on_record(entry: dict[str, Any] | None) -> dict[int, DeadOnRecord]:
    return (dead_on_record(entry) or {}) if entry is not None else {}


def _check_label(offline: Offline, topic_id: int, checked: Checked) -> str | None:
    """The name that the directory itself says; None if it says none, as those of earlier versions."""
    directory = offline.data.topic(topic_id)
    try:
        label = read_label(offline.fs, directory)
    except FileNotFoundError:
        return None
    except (FormatError, OSError) as exc:
        raise_refusal(exc)
        # A loss of power may tear it, and of a topic that is known it tells nothing new. Not so a disk that refuses.
        torn = isinstance(exc, FormatError) and topic_id in checked.names.by_id
        severity = NOTE if torn else DAMAGE
        checked.findings.append(Finding(severity, directory / paths.TOPIC_NAME_FILE, f"cannot be read: {exc}"))
        checked.bad_labels.append(topic_id)
        return None
    known = checked.names.by_id.get(topic_id, label.name)
    if (label.id, label.name) != (topic_id, known):
        what = f"is the label of topic {label.name}, id {paths.topic_dir_name(label.id)}"
        checked.findings.append(Finding(DAMAGE, directory / paths.TOPIC_NAME_FILE, what))
        checked.bad_labels.append(topic_id)
        return None
    return label.name


def _check_neighbours(checked: Checked, topic_id: int, directory: Path, reports: list[SegmentReport]) -> None:
    entry = checked.names.entries.get(topic_id)
    for before, report in pairwise(reports):
        due = before.last_seq + 1
        if report.first_seq < due:
            what = "overlaps the segment before it"
            checked.findings.append(Finding(DAMAGE, report.file(DATA), what, report.first_seq, due - 1))
        elif report.first_seq > due and entry is not None:
            _no_segment(checked, directory, entry, due, report.first_seq - 1)


def _check_ends(checked: Checked, topic_id: int, directory: Path, reports: list[SegmentReport]) -> None:
    """What the newest snapshot has on record is in segments or in the log, in front of the first of them and behind the
    last as well: before it is written, the log is synced."""
    entry = checked.names.entries.get(topic_id)
    if entry is None or topic_id not in checked.names.by_id or topic_id in checked.names.deleted:
        return
    durability = entry["config"].get("durability")
    if durability == Durability.EPHEMERAL or any(report.unread or report.foreign for report in reports):
        return
    stored = [(report.first_seq, report.last_seq) for report in reports if report.count]
    logged = list(_logged(checked, topic_id))
    head = int(entry["head"])
    # Of the log a start takes what is behind the segments.
    first = min((a for a, _ in stored or logged), default=head + 1)
    last = max((b for _, b in [*stored, *logged]), default=0)
    if durability == Durability.MEMORY:
        head = last  # what a start finds is its end
    _no_segment(checked, directory, entry, 1, min(first - 1, head))
    _no_segment(checked, directory, entry, max(first, last + 1), head)


def _no_segment(checked: Checked, directory: Path, entry: dict[str, Any], first: int, last: int) -> None:
    """Damage, as far as nobody removed these records."""
    first = max(first, *(int(entry[key]) for key in ("earliest", "evict_floor", "delete_below")))
    explained = Ranges((a, b) for key in ("gone", "lost", "damaged") for a, b, *_ in entry.get(key, []))
    explained.update(Ranges((a, b) for a, b in entry.get("inflows", {}).get("trimmed", [])))
    for a, b in explained.missing(first, last) if first <= last else []:
        checked.findings.append(Finding(DAMAGE, directory, "no segment has these records", a, b))


def _check_names(offline: Offline, checked: Checked) -> None:
    """Files that are not ours, and what crashes left."""
    fs, data = offline.fs, offline.data
    _check_cold(offline, checked)
    for path in _strangers(offline):
        checked.findings.append(Finding(UNKNOWN, path, "topicd did not make this"))
    for name in fs.listdir(data.topics):
        parsed = paths.parse_topic_dir(name)
        if parsed is not None and parsed[1]:
            what = "a deleted topic; the next start removes it"
            checked.findings.append(Finding(NOTE, data.topics / name, what))


def _check_cold(offline: Offline, checked: Checked) -> None:
    """Files in the cold directory that no segment here speaks of: nobody removes them."""
    fs, data = offline.fs, offline.data
    try:
        found = cold.recorded(fs, data)
        if found is None:
            return
        found.check(fs)
        names = sorted(fs.listdir(found.topics))
    except FormatError as exc:
        checked.findings.append(Finding(DAMAGE, data.cold, exc.message))
        return
    except OSError as exc:
        raise_refusal(exc)
        before = len(checked.findings)
        checked.findings[:] = [found for found in checked.findings if not found.what.startswith(NOT_CHECKED)]
        left = f"; {counted(before - len(checked.findings), 'segment')} there not checked"
        checked.findings.append(Finding(NOTE, data.cold, f"the cold directory is not there: {cold.told(exc)}{left}"))
        return
    for name in names:
        parsed = paths.parse_topic_dir(name)
        here = places.list_segments(fs, data.topics / name) if parsed is not None else {}
        for listed in places.list_files(fs, found.topics / name):
            if listed.first_seq not in here and not fs.exists(data.topics / f"{name}.deleted"):
                checked.findings.append(Finding(UNKNOWN, listed.path, "no segment of the data directory speaks of it"))


_IN_META = {paths.DataDir(Path()).identity.name, paths.DataDir(Path()).cold.name}


def _strangers(offline: Offline) -> Iterator[Path]:
    fs, data = offline.fs, offline.data
    tests: list[tuple[Path, Callable[[str], bool]]] = [
        (data.root, lambda name: name in _IN_ROOT),
        (data.meta, lambda name: name in _IN_META or paths.parse_shard_dir(name) is not None),
        (data.wal, lambda name: paths.parse_shard_dir(name) is not None),
        (data.topics, lambda name: paths.parse_topic_dir(name) is not None),
    ]
    tests += [(data.snapshots(n), _is_snapshot_name) for n in offline.snapshot_shards()]
    tests += [(data.wal_shard(n), _is_wal_name) for n in offline.wal_shards()]
    tests += [(data.topic(n), _is_topic_file) for n in offline.topic_ids()]
    for directory, ours in tests:
        for name in sorted(fs.listdir(directory)):
            if not ours(name.removesuffix(TMP_SUFFIX)):
                yield directory / name


def _is_topic_file(name: str) -> bool:
    return name == paths.TOPIC_NAME_FILE or places.is_segment_name(name)


def _is_snapshot_name(name: str) -> bool:
    return paths.parse_snapshot(name) is not None or paths.parse_snapshot_part(name) is not None


def _is_wal_name(name: str) -> bool:
    return paths.parse_wal_file(name) is not None or paths.parse_spare_file(name) is not None
