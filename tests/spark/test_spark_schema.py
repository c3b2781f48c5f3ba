"""Rows into a topic with a schema: a job with a bad one fails whole, says which, and the next one succeeds."""

from __future__ import annotations

from typing import Any

import pytest

from topicd.client.blocking.client import Client
from topicd.client.staging import sweep

ORDER = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}


def test_a_row_that_breaks_the_schema_fails_the_job_and_is_named(
    spark: Any, client: Client, socket: str, topic: str
) -> None:
    client.configure(topic, schema=ORDER)

    def write(column: str) -> None:
        rows = spark.range(0, 1_000, 1, 2).selectExpr(f"{column} AS data")
        rows.write.format("topicd").option("socket", socket).option("topic", topic).mode("append").save()

    with pytest.raises(Exception, match=r"record 400 of partition 1, /id.*nothing was published"):
        write("""if(id = 900, '{"id": "x"}', concat('{"id": ', id, '}'))""")
    assert client.state(topic).head_seq == 0 and sweep.unfinished(client) == []
    write("""concat('{"id": ', id, '}')""")
    assert [record.json()["id"] for record in client.read(topic)] == list(range(1_000))
