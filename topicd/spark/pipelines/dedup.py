"""Repeated records: which they are, and what the daemon can delete of them. Promise: a plan is exact; `apply` deletes
what the plan names and nothing else, and says how much of it no delete can express.

The daemon deletes below a seq, by tag, or both. So a repeated record can go if everything older in its topic, or
everything older with its tag, goes as well. Keeping the newest of each tag (`--by tag --keep last`) can always be said.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from topicd.client.blocking.client import Client
from topicd.client.core.answers import TopicState
from topicd.disk.fs import RealFs, tmp_path
from topicd.errors import Conflict, InvalidRequest
from topicd.model import TagMatch
from topicd.spark.options import ConnectionOptions
from topicd.spark.pipelines import place
from topicd.spark.pipelines.parts import sync_file
from topicd.spark.pipelines.report import Progress, Report, no_progress
from topicd.spark.pipelines.session import LazySpark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = ("topic", "records", "keys", "repeated", "bytes", "deletable", "deleted")
BY_DATA, BY_TAG, BY_JSON = "data", "tag", "json:"
FIRST, LAST = "first", "last"
TASK_RECORDS = 500_000
# Spark shows it where the bytes of a tag are no text: such a tag cannot be named in a delete.
NO_TEXT = "\ufffd"


@dataclass(frozen=True)
class Options:
    place: ConnectionOptions
    topics: tuple[str, ...]
    by: str = BY_DATA  # data, tag or json:$.path
    keep: str = FIRST
    plan: Path | None = None
    apply: bool = False
    dry_run: bool = False


class Step(NamedTuple):
    """A delete of the daemon: everything below the seq, or what has the tag of it."""

    topic: str
    before_seq: int
    tag: str | None
    records: int


def run(spark: LazySpark, options: Options, progress: Progress = no_progress) -> Report:
    _check(options)
    client = place.client(options.place)
    states = {name: client.state(name, touch=False) for name in place.resolve(client, options.topics)}
    return spark.run("dedup", lambda session: _run(session, client, options, states), progress)


def _check(options: Options) -> None:
    if options.by not in (BY_DATA, BY_TAG) and not options.by.startswith(f"{BY_JSON}$"):
        raise InvalidRequest(f"--by must be data, tag or json:$.path, not {options.by!r:.100}")
    if options.keep not in (FIRST, LAST):
        raise InvalidRequest(f"--keep must be first or last, not {options.keep!r:.100}")


def _run(session: SparkSession, client: Client, options: Options, states: dict[str, TopicState]) -> Report:
    marked = _marked(session, options, states).persist()
    try:
        totals = {row["topic"]: row.asDict() for row in _totals(marked).collect()}
        steps = deletable(marked)
        if options.plan is not None and not options.dry_run:
            write_plan(options, states, marked)
    finally:
        marked.unpersist()
    deleted = _apply(client, states, steps) if options.apply and not options.dry_run else {}
    return _report(options, states, totals, steps, deleted)


def _marked(session: SparkSession, options: Options, states: dict[str, TopicState]) -> DataFrame:
    """Every record without its data, its key, and whether another of that key is to be kept instead."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    keys = {BY_DATA: F.sha2("data", 256), BY_TAG: F.col("tag")}
    path = options.by.removeprefix(BY_JSON)
    key = keys.get(options.by)
    records = (
        session.read.format("topicd")
        .schema("topic string, seq bigint, tag string, data binary")
        .options(**place.source_options(options.place))
        .option("topics", ",".join(states))
        .option("endingOffsets", json.dumps({name: state.settled_seq + 1 for name, state in states.items()}))
        .load()
    ).select(
        "topic",
        "seq",
        "tag",
        F.length("data").alias("bytes"),
        (F.get_json_object(F.col("data").cast("string"), path) if key is None else key).alias("key"),
    )
    # So many parts that each is worth a task; Spark's 200 cost more than they do for most topics.
    total = sum(state.count for state in states.values())
    parts = max(session.sparkContext.defaultParallelism, total // TASK_RECORDS)
    records = records.repartition(parts, "topic", "key")
    same = Window.partitionBy("topic", "key")
    kept = F.min("seq").over(same) if options.keep == FIRST else F.max("seq").over(same)
    marked = records.withColumn("keep", F.when(F.col("key").isNotNull(), kept).otherwise(F.col("seq")))
    return marked.withColumn("repeated", F.col("seq") != F.col("keep"))


def _totals(marked: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return marked.groupBy("topic").agg(
        F.count("*").alias("records"),
        F.countDistinct("key").alias("keys"),
        F.sum(F.col("repeated").cast("int")).alias("repeated"),
        F.sum(F.when(F.col("repeated"), F.col("bytes")).otherwise(0)).alias("bytes"),
    )


def deletable(marked: DataFrame) -> list[Step]:
    """Below the first record that stays, of the topic and then of each tag, everything goes: that can be said."""
    from pyspark.sql import functions as F

    def before(*by: str) -> DataFrame:
        stays = F.min(F.when(~F.col("repeated"), F.col("seq")))
        return marked.groupBy(*by).agg(F.coalesce(stays, F.max("seq") + 1).alias("before"))

    doomed = marked.where("repeated")
    whole = before("topic").withColumnRenamed("before", "floor")
    of_topic = doomed.join(whole, "topic").where("seq < floor").groupBy("topic", "floor").count()
    of_tag = (
        doomed.join(whole, "topic")
        .join(before("topic", "tag"), ["topic", "tag"])
        .where("seq >= floor AND seq < before")
        .groupBy("topic", "tag", "before")
        .count()
    )
    steps = [Step(row["topic"], row["floor"], None, row["count"]) for row in of_topic.collect()]
    tagged = [Step(row["topic"], row["before"], row["tag"], row["count"]) for row in of_tag.collect()]
    return steps + [step for step in tagged if NO_TEXT not in (step.tag or "")]


def write_plan(options: Options, states: dict[str, TopicState], marked: DataFrame) -> None:
    """A line that says what it is, then a line per key that is there more than once."""
    from pyspark.sql import functions as F

    groups = (
        marked.where("repeated")
        .groupBy("topic", "key", "keep")
        .agg(F.sort_array(F.collect_list("seq")).alias("delete"))
        .orderBy("topic", "keep")
    )
    target = (options.plan or Path()).absolute()
    beside = tmp_path(target)
    with beside.open("w", encoding="utf-8") as file:
        for line in _plan_lines(options, states, groups):
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
    sync_file(beside)
    RealFs().rename(beside, target)


def _plan_lines(options: Options, states: dict[str, TopicState], groups: DataFrame) -> Iterator[dict[str, Any]]:
    topics = {name: {"topic_id": state.topic_id, "head_seq": state.settled_seq} for name, state in states.items()}
    yield {"kind": "topicd-dedup-plan", "version": 1, "by": options.by, "keep": options.keep, "topics": topics}
    for row in groups.toLocalIterator():
        yield row.asDict()


def _apply(client: Client, states: dict[str, TopicState], steps: list[Step]) -> dict[str, int]:
    deleted = dict.fromkeys(states, 0)
    for step in steps:
        if client.state(step.topic, touch=False).topic_id != states[step.topic].topic_id:
            raise Conflict(f"topic {step.topic!r} was deleted and made anew since it was read; nothing more is deleted")
        match = None if step.tag is None else TagMatch(step.tag.encode("utf-8", "surrogateescape"))
        deleted[step.topic] += client.delete(step.topic, before_seq=step.before_seq, match=match).deleted
    return deleted


def _report(
    options: Options,
    states: dict[str, TopicState],
    totals: dict[str, dict[str, Any]],
    steps: list[Step],
    deleted: dict[str, int],
) -> Report:
    report = Report("dedup", COLUMNS, dry_run=options.dry_run)
    none = {"records": 0, "keys": 0, "repeated": 0, "bytes": 0}
    for name in states:
        can = sum(step.records for step in steps if step.topic == name)
        row = {"topic": name, **none, **totals.get(name, {}), "deletable": can, "deleted": deleted.get(name, 0)}
        report.rows.append(row)
        left = row["repeated"] - can
        if left:
            report.notes.append(
                f"{name}: {left:,} of {row['repeated']:,} repeated records cannot be deleted exactly: the daemon "
                "deletes below a seq and by tag, and older records that stay are in the way"
            )
    keys = ("records", "repeated", "bytes", "deletable", "deleted")
    report.totals = {key: sum(row[key] for row in report.rows) for key in keys}
    report.totals |= {"plan": str(options.plan.absolute()) if options.plan and not options.dry_run else None}
    report.summary = f"{report.totals['repeated']:,} of {report.totals['records']:,} records are repeated; " + (
        f"deleted {report.totals['deleted']:,}" if deleted else f"{report.totals['deletable']:,} can be deleted exactly"
    )
    return report
