"""`python -m tests.spark.cluster_jobs <master> <job> <arguments>`: what runs on the cluster. Its last line is JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from tests.spark.cluster import SPARK_CONF


def session(master: str) -> SparkSession:
    builder = SparkSession.builder.master(master).appName("topicd cluster tests")
    for name, value in {**SPARK_CONF, "spark.executor.memory": "512m"}.items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    return made


def source(spark: SparkSession, topic: str, options: dict[str, str]) -> DataFrame:
    return spark.read.format("topicd").options(topic=topic, minPartitions="4", **options).load().select("seq", "data")


def read(spark: SparkSession, topic: str, local: str, remote: str) -> dict[str, Any]:
    """By TLS with both executors; by socket, and one of them is lost."""
    return {
        "remote": _summary(source(spark, topic, json.loads(remote)).rdd.mapPartitions(_marked).collect()),
        "killed": _summary(source(spark, topic, json.loads(local)).rdd.mapPartitions(_marked_or_killed).collect()),
    }


def _marked(rows: Iterator[Any]) -> Iterator[tuple[int, str, int]]:
    """With the process that is this worker's executor."""
    executor = _executor()
    for row in rows:
        yield row.seq, bytes(row.data).decode(), executor


def _marked_or_killed(rows: Iterator[Any]) -> Iterator[tuple[int, str, int]]:
    """The first attempt at the first part ends with its executor, half-way."""
    context = TaskContext.get()
    first = context is not None and context.partitionId() == 0 and context.attemptNumber() == 0
    for number, found in enumerate(_marked(rows)):
        if first and number == 100:
            os.kill(_executor(), signal.SIGKILL)
        yield found


def _executor() -> int:
    import psutil

    above = psutil.Process().parents()
    return next(process.pid for process in above if "CoarseGrainedExecutorBackend" in " ".join(process.cmdline()))


def _summary(rows: list[tuple[int, str, int]]) -> dict[str, Any]:
    return {"rows": sorted((seq, data) for seq, data, _ in rows), "executors": len({pid for _, _, pid in rows})}


JOBS = {"read": read}

if __name__ == "__main__":
    master, job, *arguments = sys.argv[1:]
    spark = session(master)
    try:
        print(json.dumps(JOBS[job](spark, *arguments)))
    finally:
        spark.stop()
