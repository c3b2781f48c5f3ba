"""The digests of a chat store, from its log. Promise: equal to what the store itself answers when it has applied the
same entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from topicd.shards.chat.digest import Digest
from topicd.shards.chat.domains import BY_NAME, DOMAINS
from topicd.shards.chat.view import View
from topicd.spark.options import ConnectionOptions
from topicd.spark.pipelines.chat_log import in_each, open_log
from topicd.spark.pipelines.report import Progress, Report, no_progress
from topicd.spark.pipelines.session import LazySpark

COLUMNS = ("domain", "records", "digest")


@dataclass(frozen=True)
class Options:
    place: ConnectionOptions
    archive: Path | None = None  # None: the live store
    dry_run: bool = False


class Made(NamedTuple):
    digests: dict[str, Digest]
    cutoff_ms: int


def run(spark: LazySpark, options: Options, progress: Progress = no_progress) -> Report:
    log = open_log(options.place, options.archive)
    report = Report("digests", COLUMNS, dry_run=options.dry_run)
    if options.dry_run:
        report.summary = f"would apply {log.entries:,} entries of {log.name}"
        return report
    made = together(in_each(spark, "digests", log, of_view, progress))
    for domain in DOMAINS:
        digest = made.digests[domain]
        report.rows.append({"domain": domain, "records": digest.count, "digest": digest.root.hex()})
    report.totals = {"entries": log.entries, "cutoff_ms": made.cutoff_ms}
    report.summary = f"{log.entries:,} entries of {log.name}"
    return report


def of_view(view: View) -> Made:
    found: dict[str, Digest] = {}
    for domain in DOMAINS:
        digest = found[domain] = Digest()
        for record, _ in BY_NAME[domain].ids(view.store, view.cutoff_ms):
            digest.insert(record)
    return Made(found, view.cutoff_ms)


def together(parts: list[Made]) -> Made:
    """A record is in one of them."""
    total = {domain: Digest() for domain in DOMAINS}
    for part in parts:
        for domain, digest in part.digests.items():
            total[domain].add(digest)
    return Made(total, max(part.cutoff_ms for part in parts))
