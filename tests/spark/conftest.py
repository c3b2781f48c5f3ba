"""One Spark session and one daemon for all Spark tests: starting either costs seconds. Each test has topics of its
own."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import LIVELY, Daemon
from topicd.client.client import Client

pyspark_sql = pytest.importorskip("pyspark.sql")

SHARDS = 2
# For tests that start sessions and clusters of their own.
SPARK_CONF = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.pollingDelay": "50ms",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """local[2], with no checkpoint of its own: streams name theirs."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    warehouse = tmp_path_factory.mktemp("warehouse")
    builder = pyspark_sql.SparkSession.builder.master("local[2]").appName("topicd tests")
    for name, value in {**SPARK_CONF, "spark.sql.warehouse.dir": str(warehouse)}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def spark_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Segments of 500 records: a few thousand make a topic with history."""
    settings = {**LIVELY, "wal_shards": SHARDS, "delivery_shards": SHARDS}
    with Daemon(tmp_path_factory.mktemp("d"), **settings) as daemon:
        yield daemon


@pytest.fixture(scope="session")
def socket(spark_daemon: Daemon) -> str:
    """For .option("socket", ...)."""
    return str(spark_daemon.run.socket)


@pytest.fixture(scope="session")
def client(spark_daemon: Daemon) -> Client:
    return spark_daemon.client()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses."""
    return re.sub(r"[^A-Za-z0-9.:-]+", "-", request.node.name)[:200] + f".{os.urandom(4).hex()}"


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """For .option("checkpointLocation", ...)."""
    return str(tmp_path / "checkpoint")
