"""How a queue has done: throughput, how long jobs waited and ran, retries and failures, by group. Promise: every job
that is done and still readable (`keep_done_ms`) and every dead letter of the queue is counted once; nothing is taken.

Waiting is from the put to the last start, delays and earlier deliveries included; running from there to the end. Jobs
whose start nobody knows (held over a restart) are counted and not timed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from topicd.client.blocking.client import Client
from topicd.client.blocking.queue import Queue
from topicd.errors import TopicNotFound
from topicd.spark import connection
from topicd.spark.options import ConnectionOptions
from topicd.spark.pipelines import place
from topicd.spark.pipelines.report import Progress, Report, no_progress
from topicd.spark.pipelines.session import LazySpark, run_here
from topicd.words import counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
TIMES = tuple(f"{what}_{name}_ms" for what in ("waiting", "running") for name in QUANTILES)
COLUMNS = ("group", "done", "per_s", *TIMES, "retried", "retries", "dead")
TILE = 50_000  # seqs for one task
PAGE = 1_000
SHOWN = 20  # reasons in the notes
NO_REASON = "no reason given"


@dataclass(frozen=True)
class Options:
    place: ConnectionOptions
    queue: str
    dry_run: bool = False


class Tile(NamedTuple):
    """Seqs above `after`, up to `up_to`."""

    after: int
    up_to: int


class Ran(NamedTuple):
    """A job that is done."""

    group: str
    done_ms: int
    waiting_ms: int | None
    running_ms: int | None
    deliveries: int
    reason: str  # of the last delivery that failed


class Summary(NamedTuple):
    """Of the jobs of one group that are done."""

    done: int
    first_ms: int
    last_ms: int
    times: tuple[float | None, ...]  # as TIMES
    retried: int
    retries: int


class Found(NamedTuple):
    groups: dict[str, Summary]
    failures: Counter[tuple[str, str]]  # (group, reason) of jobs that failed and are done now


def run(spark: LazySpark, options: Options, progress: Progress = no_progress) -> Report:
    client = place.client(options.place)
    queue = client.queue(options.queue)
    stats = queue.stats()
    tiles = tiles_of(client, options.queue)
    report = Report("queue-report", COLUMNS, dry_run=options.dry_run)
    if options.dry_run:
        report.summary = f"would look at {counted(stats.kept, 'done job')}, and the dead letters"
        return report
    if not stats.config.keep_done_ms:
        report.notes.append("keep_done_ms is 0: jobs that are done leave nothing behind to report")
    if spark.is_needless(stats.kept, 0):
        parts = run_here("queue-report", tiles, lambda tile: list(look(client, options.queue, tile)), progress)
        found = summed([ran for part in parts for ran in part])
    else:
        found = spark.run("queue-report", lambda session: _in_tasks(session, options, tiles), progress)
    dead, failures = _letters(queue) if stats.config.dead_letter else (Counter[str](), Counter[tuple[str, str]]())
    failures += found.failures
    _tell(report, found.groups, dead, failures)
    return report


def tiles_of(client: Client, queue: str) -> list[Tile]:
    state = client.state(queue, touch=False)
    starts = range(max(0, state.earliest_seq - 1), state.head_seq, TILE)
    return [Tile(at, min(at + TILE, state.head_seq)) for at in starts]


def look(client: Client, queue: str, tile: Tile) -> Iterator[Ran]:
    jobs, at = client.queue(queue), tile.after
    while True:
        page = jobs.peek("done", from_seq=at, limit=PAGE)
        for job in page:
            if job.seq > tile.up_to:
                return
            start, end = job.started_ts, job.done_ts or 0
            put = None if job.record is None else job.record.ts
            waiting = None if put is None or start is None else max(0, start - put)
            running = None if start is None else max(0, end - start)
            yield Ran(job.group, end, waiting, running, job.deliveries, job.reason)
        if page.next is None:
            return
        at = page.next


# ---- here ----


def summed(jobs: Iterable[Ran]) -> Found:
    by_group: dict[str, list[Ran]] = {}
    failures: Counter[tuple[str, str]] = Counter()
    for job in jobs:
        by_group.setdefault(job.group, []).append(job)
        if job.deliveries > 1:
            failures[job.group, job.reason or NO_REASON] += 1
    return Found({group: _summary(ran) for group, ran in by_group.items()}, failures)


def _summary(jobs: list[Ran]) -> Summary:
    waiting = sorted(job.waiting_ms for job in jobs if job.waiting_ms is not None)
    running = sorted(job.running_ms for job in jobs if job.running_ms is not None)
    ends = [job.done_ms for job in jobs]
    again = [job.deliveries - 1 for job in jobs if job.deliveries > 1]
    times = tuple(percentile(values, q) for values in (waiting, running) for q in QUANTILES.values())
    return Summary(len(jobs), min(ends), max(ends), times, len(again), sum(again))


def percentile(ordered: list[int], q: float) -> float | None:
    """Between two values, in proportion: as Spark's percentile does it."""
    if not ordered:
        return None
    at = q * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


# ---- on executors ----


def _in_tasks(session: SparkSession, options: Options, tiles: list[Tile]) -> Found:
    from pyspark.sql import functions as F

    schema = "group STRING, done_ms LONG, waiting_ms LONG, running_ms LONG, deliveries INT, reason STRING"
    rows: Any = session.sparkContext.parallelize(tiles, max(1, len(tiles))).flatMap(partial(_look, options))
    jobs = session.createDataFrame(rows, schema).cache()
    quantiles = ", ".join(map(str, QUANTILES.values()))
    summaries = jobs.groupBy("group").agg(
        F.count("*").alias("done"),
        F.min("done_ms").alias("first"),
        F.max("done_ms").alias("last"),
        F.expr(f"percentile(waiting_ms, array({quantiles}))").alias("waiting"),
        F.expr(f"percentile(running_ms, array({quantiles}))").alias("running"),
        F.sum(F.when(F.col("deliveries") > 1, 1).otherwise(0)).alias("retried"),
        F.sum(F.greatest(F.col("deliveries") - 1, F.lit(0))).alias("retries"),
    )
    reasons = jobs.where("deliveries > 1").groupBy("group", "reason").count()
    none = [None] * len(QUANTILES)
    try:
        groups = {
            row["group"]: Summary(
                row["done"],
                row["first"],
                row["last"],
                (*(row["waiting"] or none), *(row["running"] or none)),
                row["retried"],
                row["retries"],
            )
            for row in summaries.collect()
        }
        failures = Counter({(row["group"], row["reason"] or NO_REASON): row["count"] for row in reasons.collect()})
        return Found(groups, failures)
    finally:
        jobs.unpersist()


def _look(options: Options, tile: Tile) -> Iterator[Ran]:
    return look(connection.client(options.place), options.queue, tile)


# ---- the report ----


def _letters(queue: Queue) -> tuple[Counter[str], Counter[tuple[str, str]]]:
    dead: Counter[str] = Counter()
    failures: Counter[tuple[str, str]] = Counter()
    with suppress(TopicNotFound):  # it is made with the first letter
        for letter in queue.dead():
            dead[letter.group] += 1
            failures[letter.group, letter.reason or NO_REASON] += 1
    return dead, failures


def _tell(report: Report, groups: dict[str, Summary], dead: Counter[str], failures: Counter[tuple[str, str]]) -> None:
    for group in sorted({*groups, *dead}):
        row: dict[str, Any] = {"group": group or None, "done": 0, "retried": 0, "retries": 0, "dead": dead[group]}
        if (found := groups.get(group)) is not None:
            row |= {"done": found.done, "per_s": _rate(found), "retried": found.retried, "retries": found.retries}
            row |= {name: None if ms is None else round(ms, 1) for name, ms in zip(TIMES, found.times, strict=True)}
        report.rows.append(row)
    ordered = sorted(failures.items(), key=lambda item: (-item[1], item[0]))
    report.totals = {
        "done": sum(found.done for found in groups.values()),
        "dead": sum(dead.values()),
        "retries": sum(found.retries for found in groups.values()),
        "failures": [{"group": group or None, "reason": why, "jobs": many} for (group, why), many in ordered],
    }
    for (group, why), many in ordered[:SHOWN]:
        report.notes.append(f"{counted(many, 'job')}{f' of {group}' if group else ''} failed: {why}")
    report.summary = (
        f"{counted(report.totals['done'], 'job')} done, {counted(report.totals['retries'], 'retry', 'retries')}, "
        f"{counted(report.totals['dead'], 'dead letter')}"
    )


def _rate(found: Summary) -> float | None:
    """Between the first end and the last."""
    span = (found.last_ms - found.first_ms) / 1000
    return round(found.done / span, 2) if span > 0 else None
