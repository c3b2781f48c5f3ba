"""`python -m tests.spark.write_jobs <master> write <rows> <topic> <options>`: a write in which much is tried twice. Its
last line is JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

from pyspark import TaskContext
from pyspark.sql import SparkSession

from tests.spark.cluster import SPARK_CONF
from tests.spark.cluster_jobs import executor_pid

PARTS = 4
DEATH_AT = 2_000
SLOW_S = 8.0  # a copy of the task is long done by then
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "200ms",
}


def troubled(rows: Iterator[Any]) -> Iterator[Any]:
    """The first attempt at part 0 fails behind its last row, that at part 1 ends with its executor, that at part 2 is
    overtaken by a copy of itself."""
    context = TaskContext.get()
    part = context.partitionId() if context is not None and context.attemptNumber() == 0 else -1
    for number, row in enumerate(rows):
        yield row
        if part == 1 and number == DEATH_AT:
            os.kill(executor_pid(), signal.SIGKILL)
    if part == 0:
        raise RuntimeError("told to fail")
    if part == 2:
        time.sleep(SLOW_S)


def main(master: str, rows: str, topic: str, options: str) -> None:
    builder = SparkSession.builder.master(master).appName("topicd write tests")
    for name, value in {**SPARK_CONF, **SPECULATION, "spark.executor.memory": "512m"}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        numbers = spark.range(0, int(rows), 1, PARTS).selectExpr("cast(id as string) as data")
        frame = numbers.rdd.mapPartitions(troubled).toDF("data string")
        frame.write.format("topicd").options(topic=topic, **json.loads(options)).mode("append").save()
        print(json.dumps("written"))
    finally:
        spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], *sys.argv[3:])
