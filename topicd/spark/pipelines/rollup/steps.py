"""A rollup that goes on where the last run ended. Promise: each window is written once, when it is over; a run that
dies at any point has done a step whole or not at all, and the next run goes on.

A step is one Spark job over all topics. In a directory its files and the places it came to are published by one
manifest. For a topic it is noted before it is begun and committed under its number, so that whoever repeats it
publishes what was decided first. Spark keeps nothing: no checkpoint of its own could be left half written.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from topicd.client.blocking.client import Client
from topicd.client.core.records import Record
from topicd.client.staging.plan import Staged
from topicd.client.staging.stages import Stages
from topicd.errors import Conflict
from topicd.limits import MAX_BATCH_RECORDS
from topicd.spark.bounds import EARLIEST
from topicd.spark.loss import OPTION, Policy, parse_gaps
from topicd.spark.pipelines import place
from topicd.spark.pipelines.parts import checksum, sync_file
from topicd.spark.pipelines.report import Progress, Report
from topicd.spark.pipelines.rollup.numbers import READ_SCHEMA, as_records, rolled
from topicd.spark.pipelines.rollup.options import AVAILABLE, Options
from topicd.spark.pipelines.rollup.progress import KIND, VERSION, Book, Due, plan
from topicd.spark.pipelines.session import LazySpark
from topicd.spark.pipelines.store import PART_PREFIX, PART_SUFFIX, Move, Store
from topicd.words import counted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOOK_EVERY_S = 1.0  # for windows that are over, when all are written


class Count(NamedTuple):
    windows: int
    records: int


Counts = dict[str, Count]  # by topic


def run_steps(spark: LazySpark, options: Options, topics: list[str], progress: Progress) -> Report:
    counts = {topic: Count(0, 0) for topic in topics}
    with Store(options.to or options.checkpoint or Path(), KIND, VERSION) as store:
        steps = _Steps(spark, options, store, progress)
        try:
            for made in steps.all(topics):
                for topic, count in made.items():
                    counts[topic] = Count(*map(sum, zip(counts.get(topic, Count(0, 0)), count, strict=True)))
        except KeyboardInterrupt:
            pass  # the way to end one that is continuous; the step that was begun is the next run's
    return _report(options, counts)


class _Steps:
    def __init__(self, spark: LazySpark, options: Options, store: Store, progress: Progress) -> None:
        self._spark = spark
        self._options = options
        self._store = store
        self._progress = progress
        self._client: Client = place.client(options.place)
        self._losses = Policy(acknowledged=parse_gaps(options.acknowledge_gaps) if options.acknowledge_gaps else ())
        self._book = Book.of(options, store.load())
        store.sweep({str(entry["path"]) for entry in self._book.files})

    def all(self, topics: list[str]) -> Iterator[Counts]:
        """What each step has written. One that was begun by a run that died comes first."""
        if self._book.planned:
            yield self._to_topic(self._book.planned)
        while True:
            due = plan(self._client, topics, self._book, self._losses)
            if due:
                yield self._to_directory(due) if self._options.to is not None else self._to_topic(due)
            elif self._options.stream != AVAILABLE:
                time.sleep(LOOK_EVERY_S)
            if self._options.stream == AVAILABLE:
                return

    # ---- to a directory ----

    def _to_directory(self, due: list[Due]) -> Counts:
        out = self._store.staging / str(self._book.step)
        files = self._run(lambda session: _write_files(self._table(session, due), out))
        self._check_unchanged(due)
        counts, moves = {}, []
        after = {one.topic: one.after or 0 for one in due}
        for topic, path in files:
            counts[topic] = _counted(path)
            name = f"{path.parent.name}/{PART_PREFIX}{after[topic] + 1:020d}-{self._store.run}{PART_SUFFIX}"
            size, digest = checksum(path)
            self._book.files.append({"path": name, "bytes": size, "sha256": digest})
            moves.append(Move(path, name))
        self._book.advance(due)
        self._store.publish(moves, self._book.to_json())
        shutil.rmtree(out, ignore_errors=True)  # what Spark leaves beside the files
        return counts

    # ---- to a topic ----

    def _to_topic(self, due: list[Due]) -> Counts:
        stages = self._client.stages(self._book.query)
        counts: Counts = {}
        if not self._book.planned:
            self._book.planned = due
            self._store.write_manifest(self._book.to_json())
        elif stages.commit(self._book.step, ()):  # it was decided already, whatever has become of the records
            return self._advanced(due, counts)
        self._run(lambda session: self._commit(stages, self._table(session, due), counts))
        return self._advanced(due, counts)

    def _commit(self, stages: Stages, table: DataFrame, counts: Counts) -> None:
        target, step = self._options.to_topic or "", self._book.step
        rows = as_records(table, "topic", "records").toLocalIterator()
        staged: list[Staged] = []
        while some := list(islice(rows, MAX_BATCH_RECORDS)):
            for row in some:
                before = counts.get(row["topic"], Count(0, 0))
                counts[row["topic"]] = Count(before.windows + 1, before.records + row["records"])
            records = [Record(bytes(row["data"]), tag=row["tag"]) for row in some]
            staged.append(stages.write_records(step, len(staged), target, records))
        self._check_unchanged(self._book.planned)
        stages.commit(step, staged)

    def _advanced(self, due: list[Due], counts: Counts) -> Counts:
        self._book.advance(due)
        self._store.write_manifest(self._book.to_json())
        return counts

    # ---- both ----

    def _run(self, job: Any) -> Any:
        return self._spark.run("rollup", job, self._progress)

    def _table(self, session: SparkSession, due: list[Due]) -> DataFrame:
        reader = session.read.format("topicd").schema(READ_SCHEMA).options(**place.source_options(self._options.place))
        starts = {one.topic: EARLIEST if one.after is None else one.after + 1 for one in due}
        reader = reader.options(
            topics=",".join(starts),
            startingOffsets=json.dumps(starts),
            endingOffsets=json.dumps({one.topic: one.up_to + 1 for one in due}),
        )
        if self._options.acknowledge_gaps:
            reader = reader.option(OPTION, self._options.acknowledge_gaps)
        return rolled(reader.load(), self._options).orderBy("start", *self._options.keys)

    def _check_unchanged(self, due: list[Due]) -> None:
        """Before anything is published: were those the topics that were meant?"""
        for one in due:
            if self._client.state(one.topic, touch=False).topic_id != one.topic_id:
                raise Conflict(f"topic {one.topic!r} was deleted and created again meanwhile; run the rollup again")


def _write_files(table: DataFrame, target: Path) -> list[tuple[str, Path]]:
    """A file for each topic that has rows, in a folder by its name."""
    table.coalesce(1).write.partitionBy("topic").parquet(str(target))
    files = sorted(target.glob(f"topic=*/{PART_PREFIX}*{PART_SUFFIX}"))
    for path in files:
        sync_file(path)
    return [(path.parent.name.removeprefix("topic=").replace("%3A", ":"), path) for path in files]


def _counted(path: Path) -> Count:
    import pyarrow.parquet as pq

    records = pq.read_table(path, columns=["records"], partitioning=None).column("records").to_pylist()
    return Count(len(records), sum(records))


def _report(options: Options, counts: Counts) -> Report:
    report = Report("rollup", ("topic", "records", "windows"))
    for topic, count in counts.items():
        report.rows.append({"topic": topic, "records": count.records, "windows": count.windows})
    report.totals = {"records": sum(row["records"] for row in report.rows), "to": str(options.to or options.to_topic)}
    report.summary = f"rolled up {counted(report.totals['records'], 'new record')} into {report.totals['to']}"
    report.notes.append("windows that are not over yet are written by a later run")
    return report
