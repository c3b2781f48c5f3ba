"""What each of two chat stores lacks of the other, by their logs. Promise: exactly the records that a comparison of the
two would exchange; what lies at or below the later of their cutoffs is wanted by none.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from topicd.disk.fs import RealFs, replace_file
from topicd.shards.chat.domains import BY_NAME, DOMAINS
from topicd.shards.chat.view import View
from topicd.spark.options import ConnectionOptions
from topicd.spark.pipelines.chat_log import Log, in_each, open_log
from topicd.spark.pipelines.report import Progress, Report, no_progress
from topicd.spark.pipelines.session import LazySpark
from topicd.words import counted

COLUMNS = ("domain", "common", "first_lacks", "second_lacks")
SHOWN = 10  # ids of a difference, in the notes


@dataclass(frozen=True)
class Options:
    place: ConnectionOptions
    first: Path
    second: Path | None = None  # None: the live store
    plan: Path | None = None  # every id goes there
    dry_run: bool = False


class Ids(NamedTuple):
    by_domain: dict[str, dict[bytes, int]]  # with their milliseconds
    cutoff_ms: int


def run(spark: LazySpark, options: Options, progress: Progress = no_progress) -> Report:
    logs = [open_log(options.place, source) for source in (options.first, options.second)]
    report = Report("anti-entropy", COLUMNS, dry_run=options.dry_run)
    if options.dry_run:
        report.summary = (
            f"would compare {logs[0].name} ({logs[0].entries:,} entries) and {logs[1].name} ({logs[1].entries:,})"
        )
        return report
    first, second = (_ids(spark, log, progress) for log in logs)
    cutoff_ms = max(first.cutoff_ms, second.cutoff_ms)
    lacking: dict[str, dict[str, list[str]]] = {}
    for domain in DOMAINS:
        ours, theirs = (_kept(domain, ids, cutoff_ms) for ids in (first, second))
        lacks = sorted(theirs - ours), sorted(ours - theirs)
        lacking[domain] = {
            "first_lacks": [one.hex() for one in lacks[0]],
            "second_lacks": [one.hex() for one in lacks[1]],
        }
        report.rows.append(
            {
                "domain": domain,
                "common": len(ours & theirs),
                "first_lacks": len(lacks[0]),
                "second_lacks": len(lacks[1]),
            }
        )
    _tell(report, options, logs, lacking)
    report.totals |= {"cutoff_ms": cutoff_ms}
    return report


def _tell(report: Report, options: Options, logs: list[Log], lacking: dict[str, dict[str, list[str]]]) -> None:
    differences = sum(len(ids) for sides in lacking.values() for ids in sides.values())
    report.totals = {"equal": not differences, "differences": differences, "lacking": lacking}
    if options.plan is not None:
        lines = [
            json.dumps({"domain": domain, "lacks": side.removesuffix("_lacks"), "id": one})
            for domain, sides in lacking.items()
            for side, ids in sides.items()
            for one in ids
        ]
        replace_file(RealFs(), options.plan, [f"{line}\n".encode() for line in lines])
    for domain, sides in lacking.items():
        for log, ids in zip(logs, sides.values(), strict=True):
            if ids:
                more = f" and {len(ids) - SHOWN:,} more" if len(ids) > SHOWN else ""
                report.notes.append(f"{log.name} lacks {domain}: {', '.join(ids[:SHOWN])}{more}")
    both = f"{logs[0].name} and {logs[1].name}"
    report.summary = (
        f"{both} hold the same" if not differences else f"{both} differ in {counted(differences, 'record')}"
    )


def _ids(spark: LazySpark, log: Log, progress: Progress) -> Ids:
    parts = in_each(spark, f"anti-entropy: {log.name}", log, of_view, progress)
    found = {domain: {one: ms for part in parts for one, ms in part.by_domain[domain].items()} for domain in DOMAINS}
    return Ids(found, max(part.cutoff_ms for part in parts))


def of_view(view: View) -> Ids:
    of = partial(_of_domain, view)
    return Ids({domain: of(domain) for domain in DOMAINS}, view.cutoff_ms)


def _of_domain(view: View, domain: str) -> dict[bytes, int]:
    return dict(BY_NAME[domain].ids(view.store, view.cutoff_ms))


def _kept(domain: str, ids: Ids, cutoff_ms: int) -> set[bytes]:
    found = ids.by_domain[domain]
    return {one for one, ms in found.items() if domain != "messages" or ms > cutoff_ms}
