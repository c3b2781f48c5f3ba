"""Parquet files on the same disk, read and written by the same Spark: what a table of these rows would do."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Mapping

from benchmarks.drivers import spark
from benchmarks.peers.base import Address, Driver, Peer
from topicd.bench.load import Load


class Parquet(Peer):
    name = "parquet"
    is_server = False
    has_sessions = False

    @classmethod
    def missing(cls) -> str | None:
        if importlib.util.find_spec("pyspark") is None:
            return "pyspark is not installed"
        return None if shutil.which("java") else "there is no java on the path"

    def drivers(self, test: str, load: Load) -> Mapping[str, Driver]:
        return {spark.READ: spark.read_parquet, spark.WRITE: spark.write_parquet} if test == "spark" else {}

    def facts(self) -> dict[str, str]:
        from importlib.metadata import version

        return {"version": f"pyspark {version('pyspark')}", "settings": "local[2], snappy"}

    def address(self, durable: bool) -> Address:
        raise NotImplementedError("files have no server")

    def end_case(self) -> None:
        super().end_case()
        spark.stop()
