"""`topicctl fsck` with the segments read by Spark, few of them by this process. Promise: on a stopped daemon's
directory it finds what `topicctl fsck` finds, because it is the same check; beside a running daemon it reads sealed
segments only. Nothing is written.

Executors must see the directory under the same path and be allowed to read it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from topicd.cli.exits import CliError
from topicd.cli.offline.check import Checked, SegmentJob, check_all, jobs_in, segment_jobs
from topicd.cli.offline.data_dir import Offline, locked, open_offline
from topicd.cli.offline.repair import settle_known
from topicd.cli.offline.segment_check import DAMAGE, Finding, SegmentReport, check_segment
from topicd.disk.fs import Fs, RealFs
from topicd.shards.storage.segment.names import DATA, TAGS
from topicd.spark.pipelines.report import Progress, Report, no_progress
from topicd.spark.pipelines.session import LazySpark, run_here
from topicd.words import counted

if TYPE_CHECKING:
    from pyspark import SparkContext

COLUMNS = ("severity", "path", "first_seq", "last_seq", "what")
TASKS_PER_CORE = 4
LOOKS = 3


@dataclass(frozen=True)
class Options:
    data_dir: str | None = None  # None: as the daemon's settings say
    dry_run: bool = False


def run(spark: LazySpark, options: Options, progress: Progress = no_progress) -> Report:
    offline = open_offline(options.data_dir)
    offline.format  # noqa: B018  (says early when this is no data directory)
    if options.dry_run:
        return _planned(offline)

    def check(fs: Fs, jobs: list[SegmentJob], advance: Callable[[int], None]) -> list[SegmentReport]:
        if spark.is_needless(0, _stored(jobs)):
            return run_here("fsck", jobs, check_one, progress)
        return spark.run_tasks("fsck", lambda context: check_in_tasks(context, jobs), progress)

    with ExitStack() as stack:
        try:
            stack.enter_context(locked(offline))
        except CliError:  # a daemon has it
            return _report(offline, _check_sealed(offline, check), running=True)
        checked = check_all(offline, check=check)
        settle_known(checked, offline)
        return _report(offline, checked, running=False)


def _stored(jobs: list[SegmentJob]) -> int:
    """Bytes in their directories, at least those that are to be read."""
    sizes = 0
    for directory in {job.directory for job in jobs}:
        with suppress(FileNotFoundError), os.scandir(directory) as entries:
            sizes += sum(entry.stat().st_size for entry in entries)
    return sizes


def check_in_tasks(context: SparkContext, jobs: list[SegmentJob]) -> list[SegmentReport]:
    """In the order of the jobs."""
    slices = min(len(jobs), context.defaultParallelism * TASKS_PER_CORE)
    found: list[SegmentReport] = context.parallelize(jobs, slices).map(check_one).collect()
    return found


def check_one(job: SegmentJob) -> SegmentReport:
    try:
        report = check_segment(RealFs(), job.directory, job.first, set(job.parts), job.following)
    except FileNotFoundError as exc:
        report = SegmentReport(job.directory, job.first, set(job.parts))
        report.note(DAMAGE, DATA, f"{Path(exc.filename).name} went away while it was checked")
    return replace(report, seal=None)  # only repair needs it, and there is none here


def _check_sealed(offline: Offline, check: Callable[..., list[SegmentReport]]) -> Checked:
    jobs = [job for topic_id in offline.topic_ids() for job in segment_jobs(offline, topic_id) if TAGS in job.parts]
    checked = Checked(topics=len(offline.topic_ids()))
    for job, first_look in zip(jobs, check(offline.fs, jobs, lambda amount: None), strict=True):
        report = _looked_again(offline, job, first_look)
        if report is not None:
            checked.segments.append(report)
            checked.findings += report.findings
    return checked


def _looked_again(offline: Offline, job: SegmentJob, report: SegmentReport) -> SegmentReport | None:
    """Sealed files do not change, but the daemon may drop or rewrite one while it is read: damage is what looks damaged
    each time. None: it was dropped."""
    for _ in range(LOOKS):
        if not report.damaged:
            break
        now = {again.first: again for again in jobs_in(offline.fs, job.directory)}
        if job.first not in now:
            return None
        report = check_one(now[job.first])
    return report


def _planned(offline: Offline) -> Report:
    jobs = [job for topic_id in offline.topic_ids() for job in segment_jobs(offline, topic_id)]
    report = Report("fsck", COLUMNS, dry_run=True)
    report.totals = {"data_dir": str(offline.data.root), "segments": len(jobs)}
    report.summary = f"would read {counted(len(jobs), 'segment')} of {counted(len(offline.topic_ids()), 'topic')}"
    return report


def _report(offline: Offline, checked: Checked, *, running: bool) -> Report:
    report = Report("fsck", COLUMNS, [_row(finding) for finding in checked.findings], failed=checked.damaged)
    report.totals = {
        "data_dir": str(offline.data.root),
        "damaged": checked.damaged,
        "topics": checked.topics,
        "segments": len(checked.segments),
        "records": sum(one.count for one in checked.segments),
        "data_bytes": sum(one.data_bytes for one in checked.segments),
        "sealed_only": running,
    }
    if running:
        report.notes.append(
            "the daemon runs: only sealed segments were read; WAL, snapshots and newest segments were not"
        )
    damage = sum(finding.severity == DAMAGE for finding in checked.findings)
    report.summary = (
        f"{counted(checked.topics, 'topic')}, {counted(len(checked.segments), 'segment')} "
        f"with {counted(report.totals['records'], 'seq')}: "
        f"{counted(damage, 'damaged place') if damage else 'no damage'}"
    )
    return report


def _row(finding: Finding) -> dict[str, object]:
    return {
        "severity": finding.severity,
        "path": str(finding.path),
        "first_seq": finding.first_seq or None,
        "last_seq": finding.last_seq or None,
        "what": finding.what,
    }
