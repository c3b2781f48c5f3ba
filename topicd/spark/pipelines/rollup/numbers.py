"""The numbers of a window: a table of rows per window, topic and, if wanted, tag and node. Promise: every record counts
in exactly one row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from topicd.spark.pipelines.rollup.options import NUMBERS, Options

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

READ_SCHEMA = "topic string, seq bigint, ts timestamp, node string, tag string, meta string, data binary"
# Above this a number is milliseconds since 1970, below it seconds.
_MS_FROM = 100_000_000_000


def rolled(records: DataFrame, options: Options) -> DataFrame:
    from pyspark.sql import functions as F

    window = F.window("ts", f"{options.window_ms} milliseconds")
    keys = [*options.keys, "window"]
    records = records.withColumn("ms", F.unix_millis("ts")).withColumn("size", F.length("data"))
    if options.latency is not None:
        records = records.withColumn("latency", F.col("ms") - _made_ms(options.latency))
        found = _aggregated(records.groupBy(*options.keys, window.alias("window")), _spread("latency"))
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


def _made_ms(latency: str) -> Column:
    """Milliseconds since 1970 out of a number (seconds or milliseconds) or a date and time."""
    from pyspark.sql import functions as F

    kind, _, path = latency.partition(":")
    text = F.get_json_object(F.col("meta") if kind == "meta" else F.col("data").cast("string"), path)
    number = text.try_cast("double")
    moment = F.unix_millis(F.try_to_timestamp(text))
    scaled = F.when(number >= _MS_FROM, number).otherwise(number * 1000)
    return F.coalesce(F.round(scaled).cast("bigint"), moment)


def as_records(table: DataFrame, *kept: str) -> DataFrame:
    """A row as JSON, tagged with the topic it speaks of; some columns beside it."""
    from pyspark.sql import functions as F

    return table.select(
        F.to_json(F.struct(*table.columns)).cast("binary").alias("data"),
        F.substring("topic", 1, 256).alias("tag"),
        *kept,
    )
