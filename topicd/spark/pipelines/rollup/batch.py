"""A rollup of all there is: one Spark job. Promise: the directory is replaced as a whole, and only when something has
changed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topicd.client.core.answers import TopicState
from topicd.spark.pipelines import place
from topicd.spark.pipelines.parts import checksum, sync_file
from topicd.spark.pipelines.report import Progress, Report
from topicd.spark.pipelines.rollup.numbers import READ_SCHEMA, as_records, rolled
from topicd.spark.pipelines.rollup.options import NUMBERS, Options
from topicd.spark.pipelines.session import LazySpark
from topicd.spark.pipelines.store import PART_PREFIX, PART_SUFFIX, Move, Store
from topicd.words import counted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KIND, VERSION = "topicd-rollup", 1
SHOWN = 20  # rows of the table; all are in the output


def run_batch(spark: LazySpark, options: Options, states: dict[str, TopicState], progress: Progress) -> Report:
    ends = {name: state.settled_seq + 1 for name, state in states.items()}

    def table(session: SparkSession) -> DataFrame:
        reader = session.read.format("topicd").schema(READ_SCHEMA).options(**place.source_options(options.place))
        reader = reader.option("topics", ",".join(states)).option("endingOffsets", json.dumps(ends))
        return rolled(reader.load(), options).orderBy("start", *options.keys)

    if options.to_topic is not None:
        return spark.run("rollup", lambda session: _to_topic(table(session), options), progress)
    with Store(options.to or Path(), KIND, VERSION) as store:
        made = made_from(options, states)
        before = store.load() or {}
        if before.get("made_from") != made:
            files = spark.run("rollup", lambda session: _to_staging(table(session), store), progress)
            moves = [Move(store.staging / "out" / path.name, name) for name, path in files.items()]
            listed = [
                dict(zip(("bytes", "sha256"), checksum(path), strict=True)) | {"path": n} for n, path in files.items()
            ]
            store.publish(moves, {"made_from": made, "files": listed})
            before = {"files": listed}
        paths = [str(entry["path"]) for entry in before["files"]]
        store.sweep(set(paths))
        absolute = [str(store.root / path) for path in paths]
        return spark.run("rollup", lambda session: _report(session.read.parquet(*absolute), options), progress)


def made_from(options: Options, states: dict[str, TopicState]) -> dict[str, Any]:
    """Equal means that nothing would come out differently."""
    topics = {
        name: [state.topic_id, state.settled_seq, state.earliest_seq, state.count] for name, state in states.items()
    }
    return {"topics": topics, "window_ms": options.window_ms, "by": list(options.keys), "latency": options.latency}


def _to_staging(table: DataFrame, store: Store) -> dict[str, Path]:
    """Files by the name they will have."""
    target = store.staging / "out"
    table.coalesce(1).write.parquet(str(target))
    files = sorted(path for path in target.iterdir() if path.name.startswith(PART_PREFIX))
    for path in files:
        sync_file(path)
    return {f"{PART_PREFIX}{number:05d}-{store.run}{PART_SUFFIX}": path for number, path in enumerate(files)}


def _to_topic(table: DataFrame, options: Options) -> Report:
    table = table.persist()
    try:
        as_records(table).write.format("topicd").mode("append").options(**place.source_options(options.place)).option(
            "topic", options.to_topic or ""
        ).save()
        return _report(table, options)
    finally:
        table.unpersist()


def _report(table: DataFrame, options: Options) -> Report:
    from pyspark.sql import functions as F

    report = Report("rollup", ("start", *options.keys, *NUMBERS))
    total = table.agg(F.count("*"), F.sum("records"), F.sum("bytes")).first()
    windows, records, size = (total[0], total[1] or 0, total[2] or 0) if total is not None else (0, 0, 0)
    shown = table.orderBy(F.desc("start"), *options.keys).limit(SHOWN).drop("end").collect()
    report.rows = [{**row.asDict(), "start": f"{row['start']:%Y-%m-%d %H:%M:%S}"} for row in reversed(shown)]
    report.totals = {"windows": windows, "records": records, "bytes": size, "to": str(options.to or options.to_topic)}
    report.summary = f"{counted(windows, 'row')} over {counted(records, 'record')} in {options.to or options.to_topic}"
    if windows > SHOWN:
        report.notes.append(f"the newest {SHOWN} of {windows:,} rows are shown")
    return report
