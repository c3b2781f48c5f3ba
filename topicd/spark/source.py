"""`format("topicd")`. Promise: nothing is connected before Spark plans or runs something; what Spark pickles is options
and schemas, never a connection.

Filters are options, never push-down: Spark shares one planned read among all scans of a DataFrame, so a filter that is
pushed into it leaks into the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

NAME = "topicd"


class TopicdSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        from topicd.spark.options import ReadOptions
        from topicd.spark.schema import default_schema

        return default_schema(ReadOptions.parse(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        from topicd.spark.options import ReadOptions
        from topicd.spark.reader import BatchReader

        return BatchReader(ReadOptions.parse(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from topicd.spark.options import ReadOptions
        from topicd.spark.stream import StreamReader

        return StreamReader(ReadOptions.parse(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from topicd.spark.writer import BatchWriter

        return BatchWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from topicd.spark.writer import StreamWriter

        return StreamWriter(self.options, schema, overwrite)
