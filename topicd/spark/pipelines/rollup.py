"""Numbers per window of time, topic and, if wanted, tag and node. Promise: every record counts in exactly one window; a
streaming rollup writes each window once, when it is over.

Each topic is a stream of its own: within a topic times never fall, so a window is over when the first record behind it
comes, and nothing is ever late. One watermark for several topics would drop those that lag.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topicd.client.core.answers import TopicState
from topicd.errors import InvalidRequest
from topicd.spark.options import ConnectionOptions
from topicd.spark.pipelines import place
from topicd.spark.pipelines.parts import checksum, sync_file
from topicd.spark.pipelines.report import Progress, Report, no_progress
from topicd.spark.pipelines.session import LazySpark
from topicd.spark.pipelines.store import PART_PREFIX, PART_SUFFIX, Move, Store

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

KIND, VERSION = "topicd-rollup", 1
GROUPS = ("topic", "tag", "node")
NUMBERS = ("records", "bytes", "rate", "first_seq", "last_seq", "gaps", "p50_ms", "p95_ms", "p99_ms", "max_ms")
SHOWN = 20  # rows of the table; all are in the output
READ_SCHEMA = "topic string, seq bigint, ts timestamp, node string, tag string, meta string, data binary"
AVAILABLE, CONTINUOUS = "available", "continuous"
_WINDOW = re.compile(r"(\d+)\s*(ms|s|m|h|d)")
_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
# Above this a number is milliseconds since 1970, below it seconds.
_MS_FROM = 100_000_000_000


@dataclass(frozen=True)
class Options:
    place: ConnectionOptions
    topics: tuple[str, ...]
    window: str = "1m"
    by: tuple[str, ...] = ()  # tag, node beside the topic
    latency: str | None = None  # json:$.path or meta:$.path of the time a record was made; None: between arrivals
    to: Path | None = None
    to_topic: str | None = None
    stream: str | None = None  # available or continuous
    checkpoint: Path | None = None
    dry_run: bool = False

    @property
    def window_ms(self) -> int:
        found = _WINDOW.fullmatch(self.window.strip())
        if found is None or not int(found[1]):
            raise InvalidRequest(f"--window must be a length like 500ms, 10s, 1m, 1h or 1d, not {self.window!r:.50}")
        return int(found[1]) * _MS[found[2]]

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(name for name in GROUPS if name == "topic" or name in self.by)


def run(spark: LazySpark, options: Options, progress: Progress = no_progress) -> Report:
    _check(options)
    client = place.client(options.place)
    states = {name: client.state(name, touch=False) for name in place.resolve(client, options.topics)}
    if options.dry_run:
        report = Report("rollup", ("topic", "records"), dry_run=True)
        report.rows = [{"topic": name, "records": state.count} for name, state in states.items()]
        report.summary = f"would roll up {sum(state.count for state in states.values()):,} records"
        return report
    if options.stream is not None:
        return spark.run("rollup", lambda session: _stream(session, options, list(states)), progress)
    return _batch(spark, options, states, progress)


def _check(options: Options) -> None:
    options.window_ms  # noqa: B018  (says early what is wrong with it)
    if (options.to is None) == (options.to_topic is None):
        raise InvalidRequest("say where the rollup goes: --to DIR or --to-topic TOPIC, one of them")
    if options.stream is not None and options.to_topic is not None and options.checkpoint is None:
        raise InvalidRequest("a streaming rollup to a topic needs --checkpoint DIR, where it remembers how far it is")
    wrong = [name for name in options.by if name not in GROUPS]
    if wrong:
        raise InvalidRequest(f"--by must be tag or node, not {wrong[0]!r:.50}")
    if options.latency is not None and not re.match(r"(json|meta):\$", options.latency):
        raise InvalidRequest(f"--latency must be json:$.path or meta:$.path, not {options.latency!r:.100}")


# ---- the numbers ----


def rolled(records: DataFrame, options: Options, *, streaming: bool) -> DataFrame:
    from pyspark.sql import functions as F

    window = F.window("ts", f"{options.window_ms} milliseconds")
    keys = [*options.keys, "window"]
    records = records.withColumn("ms", F.unix_millis("ts")).withColumn("size", F.length("data"))
    if options.latency is not None:
        records = records.withColumn("latency", F.col("ms") - _made_ms(options.latency))
        found = _aggregated(records.groupBy(*options.keys, window.alias("window")), _spread("latency"))
    elif streaming:
        # Spark has no lag() in streams: the arrivals of a window are collected and compared when it is over.
        waited = F.sort_array(F.collect_list("ms")).alias("arrivals")
        found = _aggregated(records.groupBy(*options.keys, window.alias("window")), [waited])
        found = found.select("*", *_between("arrivals")).drop("arrivals")
    else:
        found = _aggregated(_with_waits(records, window, keys).groupBy(*keys), _spread("latency"))
    seconds = options.window_ms / 1000
    # Other tags and nodes lie between: only of a whole topic a missing seq means something.
    gaps = F.col("last_seq") - F.col("first_seq") + 1 - F.col("records")
    return found.select(
        F.col("window.start").alias("start"),
        F.col("window.end").alias("end"),
        *options.keys,
        *(
            {
                "rate": F.round(F.col("records") / seconds, 3).alias("rate"),
                "gaps": (gaps if options.keys == ("topic",) else F.lit(None).cast("bigint")).alias("gaps"),
            }.get(name, F.col(name))
            for name in NUMBERS
        ),
    )


def _aggregated(groups: Any, more: list[Column]) -> DataFrame:
    from pyspark.sql import functions as F

    found: DataFrame = groups.agg(
        F.count("*").alias("records"),
        F.sum("size").alias("bytes"),
        F.min("seq").alias("first_seq"),
        F.max("seq").alias("last_seq"),
        *more,
    )
    return found


def _spread(column: str) -> list[Column]:
    from pyspark.sql import functions as F

    shares = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99}
    found = [F.percentile_approx(column, share).alias(name) for name, share in shares.items()]
    return [*found, F.max(column).alias("max_ms")]


def _with_waits(records: DataFrame, window: Column, keys: list[str]) -> DataFrame:
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    before = F.lag("ms").over(Window.partitionBy(*keys).orderBy("seq"))
    return records.withColumn("window", window).withColumn("latency", F.col("ms") - before)


def _between(column: str) -> list[Column]:
    """The same percentiles over the differences of a sorted array of times."""
    from pyspark.sql import functions as F

    waits = f"array_sort(transform(sequence(2, size({column})), i -> {column}[i - 1] - {column}[i - 2]))"
    many = f"size({column}) > 1"
    shares = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99, "max_ms": 1.0}
    return [
        F.expr(f"IF({many}, element_at({waits}, CAST(ceil({share}D * (size({column}) - 1)) AS INT)), NULL)").alias(name)
        for name, share in shares.items()
    ]


def _made_ms(latency: str) -> Column:
    """Milliseconds since 1970 out of a number (seconds or milliseconds) or a date and time."""
    from pyspark.sql import functions as F

    kind, _, path = latency.partition(":")
    text = F.get_json_object(F.col("meta") if kind == "meta" else F.col("data").cast("string"), path)
    number = text.try_cast("double")
    moment = F.unix_millis(F.try_to_timestamp(text))
    scaled = F.when(number >= _MS_FROM, number).otherwise(number * 1000)
    return F.coalesce(F.round(scaled).cast("bigint"), moment)


# ---- batch ----


def _batch(spark: LazySpark, options: Options, states: dict[str, TopicState], progress: Progress) -> Report:
    ends = {name: state.head_seq + 1 for name, state in states.items()}

    def table(session: SparkSession) -> DataFrame:
        reader = session.read.format("topicd").schema(READ_SCHEMA).options(**place.source_options(options.place))
        reader = reader.option("topics", ",".join(states)).option("endingOffsets", json.dumps(ends))
        return rolled(reader.load(), options, streaming=False).orderBy("start", *options.keys)

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
    topics = {name: [state.topic_id, state.head_seq, state.earliest_seq, state.count] for name, state in states.items()}
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


def as_records(table: DataFrame) -> DataFrame:
    """A row as JSON, tagged with the topic it speaks of."""
    from pyspark.sql import functions as F

    return table.select(
        F.to_json(F.struct(*table.columns)).cast("binary").alias("data"), F.substring("topic", 1, 256).alias("tag")
    )


def _report(table: DataFrame, options: Options) -> Report:
    from pyspark.sql import functions as F

    report = Report("rollup", ("start", *options.keys, *NUMBERS))
    total = table.agg(F.count("*"), F.sum("records"), F.sum("bytes")).first()
    windows, records, size = (total[0], total[1] or 0, total[2] or 0) if total is not None else (0, 0, 0)
    shown = table.orderBy(F.desc("start"), *options.keys).limit(SHOWN).drop("end").collect()
    report.rows = [{**row.asDict(), "start": f"{row['start']:%Y-%m-%d %H:%M:%S}"} for row in reversed(shown)]
    report.totals = {"windows": windows, "records": records, "bytes": size, "to": str(options.to or options.to_topic)}
    report.summary = f"{windows:,} rows over {records:,} records in {options.to or options.to_topic}"
    if windows > SHOWN:
        report.notes.append(f"the newest {SHOWN} of {windows:,} rows are shown")
    return report


# ---- stream ----


def _stream(session: SparkSession, options: Options, topics: list[str]) -> Report:
    queries = {topic: _query(session, options, topic) for topic in topics}
    try:
        for query in queries.values():
            query.awaitTermination()
    except KeyboardInterrupt:
        pass  # the way to end one that is continuous
    finally:
        for query in queries.values():
            query.stop()
    report = Report("rollup", ("topic", "records", "batches"))
    for topic, query in queries.items():
        rows = [progress.numInputRows for progress in query.recentProgress]
        report.rows.append({"topic": topic, "records": sum(rows), "batches": sum(1 for row in rows if row)})
    report.totals = {"records": sum(row["records"] for row in report.rows), "to": str(options.to or options.to_topic)}
    report.summary = f"rolled up {report.totals['records']:,} new records into {report.totals['to']}"
    report.notes.append("windows that are not over yet are written by a later run")
    return report


def _query(session: SparkSession, options: Options, topic: str) -> StreamingQuery:
    reader = session.readStream.format("topicd").schema(READ_SCHEMA).options(**place.source_options(options.place))
    records = reader.option("topic", topic).option("startingOffsets", "earliest").load()
    table = rolled(records.withWatermark("ts", "0 seconds"), options, streaming=True)
    folder = f"topic={topic.replace(':', '%3A')}"
    kept = options.checkpoint or (options.to or Path()) / "_checkpoint"
    if options.to is not None:
        writer = table.drop("topic").writeStream.format("parquet").option("path", str(options.to.absolute() / folder))
    else:
        place_options = place.source_options(options.place)
        writer = as_records(table).writeStream.format("topicd").options(**place_options)
        writer = writer.option("topic", options.to_topic or "")
    writer = writer.outputMode("append").option("checkpointLocation", str(kept.absolute() / folder))
    writer = writer.trigger(availableNow=True) if options.stream == AVAILABLE else writer
    return writer.start()
