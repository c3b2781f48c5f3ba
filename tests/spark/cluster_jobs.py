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


def source(spark: SparkSession, topic: str, options: str) -> DataFrame:
    frame = spark.read.format("topicd").options(topic=topic, minPartitions="2", **json.loads(options)).load()
    return frame.select("seq", "data")


def read(spark: SparkSession, topic: str, local: str, remote: str) -> list[tuple[int, str]]:
    """The topic by socket and, once more, by TLS; half-way one of the executors is lost."""
    both = source(spark, topic, local).union(source(spark, topic, remote))
    return sorted(both.rdd.mapPartitions(_rows).collect())


def _rows(rows: Iterator[Any]) -> Iterator[tuple[int, str]]:
    """The first attempt at the first part ends with its executor."""
    context = TaskContext.get()
    first = context is not None and context.partitionId() == 0 and context.attemptNumber() == 0
    for number, row in enumerate(rows):
        if first and number == 100:
            os.kill(executor_pid(), signal.SIGKILL)
        yield row.seq, bytes(row.data).decode()


def executor_pid() -> int:
    import psutil

    above = psutil.Process().parents()
    return next(process.pid for process in above if "CoarseGrainedExecutorBackend" in " ".join(process.cmdline()))


JOBS = {"read": read}

if __name__ == "__main__":
    master, job, *arguments = sys.argv[1:]
    spark = session(master)
    try:
        print(json.dumps(JOBS[job](spark, *arguments)))
    finally:
        spark.stop()
