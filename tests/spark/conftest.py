"""One Spark session, one daemon and one cluster for all Spark tests: starting any of them costs seconds. Each test has
topics of its own."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.certs import Authority
from tests.support.daemon import LIVELY, Daemon
from tests.support.ports import free_ports
from topicd.cli.offline import token_file
from topicd.client.blocking.client import Client
from topicd.spark.python import python_for_spark

if os.environ.get("CI"):
    import pyspark.sql as pyspark_sql  # a run that counts does not pass over what it could not test
else:
    pyspark_sql = pytest.importorskip("pyspark.sql")

from tests.spark.cluster import SPARK_CONF, Cluster

SHARDS = 2


@pytest.fixture(scope="session")
def java() -> None:
    if not os.environ.get("JAVA_HOME") and shutil.which("java") is None:
        missing = "Spark needs Java 17: there is no java on the path and no JAVA_HOME; `make java` installs it"
        if os.environ.get("CI"):
            pytest.fail(missing)  # a run that counts says what it could not test
        pytest.skip(missing)


@pytest.fixture(scope="session")
def spark(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """local[2]."""
    os.environ["PYSPARK_PYTHON"] = python_for_spark()
    warehouse = tmp_path_factory.mktemp("warehouse")
    builder = pyspark_sql.SparkSession.builder.master("local[2]").appName("topicd tests")
    for name, value in {**SPARK_CONF, "spark.sql.warehouse.dir": str(warehouse)}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")  # failures are asserted, their traces say nothing new
    yield session
    session.stop()


@pytest.fixture(scope="session")
def cluster(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture(scope="session")
def spark_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Segments of 500 records: a few thousand make a topic with history. It listens on TLS, too."""
    root = tmp_path_factory.mktemp("d")
    certificate = Authority(root).issue("server")
    secret = token_file.create(root / "tokens.toml", "spark", ["admin"])
    (root / "secret").write_text(secret)
    settings = {
        **LIVELY,
        "wal_shards": SHARDS,
        "delivery_shards": SHARDS,
        "listen_tcp": f"127.0.0.1:{free_ports(SHARDS)}",
        "tokens_file": root / "tokens.toml",
        "tls_cert": certificate.cert,
        "tls_key": certificate.key,
    }
    with Daemon(root, **settings) as daemon:
        yield daemon


@pytest.fixture(scope="session")
def socket(spark_daemon: Daemon) -> str:
    """For .option("socket", ...)."""
    return str(spark_daemon.run.socket)


@pytest.fixture(scope="session")
def remote(spark_daemon: Daemon) -> dict[str, str]:
    """Options that reach the same daemon by TLS."""
    root, host = spark_daemon.root, spark_daemon.settings["listen_tcp"]
    return {"host": host, "token": (root / "secret").read_text(), "caFile": str(root / "ca.pem")}


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
