"""A streaming rollup in a process of its own that is killed, as by SIGKILL from outside and with its JVM, at the n-th
passing of one point.

python -m tests.spark.rollup_victim SOCKET TARGET TOPIC[,TOPIC...] POINT N [inline]

TARGET is a directory, or TOPIC@DIR: a topic to write to and where to remember that. `inline`: without Spark, counted by
a function here.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.spark.pipeline_victim import arm
from tests.support.inlinespark import InlineSpark
from topicd.client.blocking.client import Client
from topicd.client.staging.commitlog import CommitLog
from topicd.client.staging.stages import Stages
from topicd.disk.fs import RealFs
from topicd.spark.pipelines import rollup
from topicd.spark.pipelines.place import connection_options
from topicd.spark.pipelines.rollup import steps
from topicd.spark.pipelines.rollup.progress import Due
from topicd.spark.pipelines.session import LazySpark
from topicd.spark.pipelines.store import Store

WINDOW_MS = 20
# A JVM that is killed soon: what makes long ones fast only costs.
SUBMIT_ARGS = "--driver-java-options '-XX:+UseSerialGC -XX:TieredStopAtLevel=1' pyspark-shell"
# What to die at: before or after the call of that function.
BOTH: dict[str, tuple[Any, str]] = {
    "planned": (steps, "plan"),
    "manifest": (Store, "write_manifest"),
    "renamed": (RealFs, "rename"),
}
POINTS: dict[str, dict[str, tuple[Any, str]]] = {
    "directory": {**BOTH, "written": (steps, "_write_files"), "moved": (Store, "move")},
    "topic": {
        **BOTH,
        "staged": (Stages, "write_records"),
        "decided": (CommitLog, "decide"),
        "published": (CommitLog, "finish"),
        "committed": (Stages, "commit"),
    },
}


def die() -> None:
    os.killpg(0, signal.SIGKILL)


def arm_clock(milliseconds: int) -> None:
    """So long after Spark was given its job: somewhere in its work."""
    original = steps._Steps._table

    def table(*args: Any, **kwargs: Any) -> Any:
        threading.Timer(milliseconds / 1000, die).start()
        return original(*args, **kwargs)

    changed: Any = steps._Steps
    changed._table = table


def options(socket: str, target: str, topics: list[str]) -> rollup.Options:
    where = connection_options(socket, 30.0)
    topic, at, directory = target.rpartition("@")
    if at:
        to: dict[str, Any] = {"to_topic": topic, "checkpoint": Path(directory)}
    else:
        to = {"to": Path(target)}
    return rollup.Options(where, tuple(topics), f"{WINDOW_MS}ms", stream=rollup.AVAILABLE, **to)


# ---- without Spark ----


class InlineTable:
    """Rows like those of `rolled`, as many columns as the tests look at."""

    def __init__(self, client: Client, due: list[Due]) -> None:
        found: dict[tuple[int, str], int] = {}
        for one in due:
            for batch in client.history(one.topic, one.after or 0, to_seq=one.up_to, epoch=one.topic_id):
                for record in batch:
                    key = (record.ts // WINDOW_MS * WINDOW_MS, one.topic)
                    found[key] = found.get(key, 0) + 1
        self.rows = [{"start": start, "topic": topic, "records": n} for (start, topic), n in sorted(found.items())]

    def toLocalIterator(self) -> Any:
        import json

        return ({**row, "tag": row["topic"], "data": json.dumps(row).encode()} for row in iter(self.rows))


def write_inline(table: InlineTable, target: Path) -> list[tuple[str, Path]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    files = []
    for topic in sorted({row["topic"] for row in table.rows}):
        path = target / f"topic={topic}" / "part-0.parquet"
        path.parent.mkdir(parents=True)
        rows = [row for row in table.rows if row["topic"] == topic]
        starts = pa.array([row["start"] for row in rows], pa.timestamp("ms", "UTC"))
        pq.write_table(pa.table({"start": starts, "records": [row["records"] for row in rows]}), path)
        files.append((topic, path))
    return files


def inline(change: Callable[[Any, str, Any], None] = setattr) -> LazySpark:
    change(steps._Steps, "_table", lambda self, session, due: InlineTable(self._client, due))
    change(steps, "_write_files", write_inline)
    change(steps, "as_records", lambda table, *kept: table)
    spark: Any = InlineSpark()
    found: LazySpark = spark
    return found


def main(socket: str, target: str, topics: str, point: str, passing: str, how: str = "") -> None:
    os.environ["PYSPARK_SUBMIT_ARGS"] = SUBMIT_ARGS
    spark = inline() if how == "inline" else LazySpark("local[1]")
    when, _, name = point.partition("-")
    if when == "ms":
        arm_clock(int(name))
    elif point != "never":
        kind = "topic" if "@" in target else "directory"
        arm(*POINTS[kind][name], before=when == "before", passing=int(passing), die=die)
    rollup.run(spark, options(socket, target, topics.split(",")))


if __name__ == "__main__":
    main(*sys.argv[1:])
