"""Topics that change between plan and read, in this process: the reader as an executor runs it, without Spark."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import BinaryType, LongType, StructType

from tests.support.daemon import wait_until
from topicd.client.blocking.client import Client
from topicd.spark.loss import RecordsLost
from topicd.spark.options import ReadOptions
from topicd.spark.plan import Range
from topicd.spark.reader import BatchReader, Task

SCHEMA = StructType().add("seq", LongType()).add("data", BinaryType())
STORED = 2_000


@pytest.fixture
def reader(client: Client, socket: str, topic: str) -> Callable[..., BatchReader]:
    client.publish_many(topic, [b"%d" % n for n in range(1, STORED + 1)])

    def make(**options: Any) -> BatchReader:
        given = {"socket": socket, "topic": topic, "minPartitions": "4", **options}
        return BatchReader(ReadOptions.parse(given), SCHEMA)

    return make


def seqs(reader: BatchReader, tasks: list[Any]) -> list[int]:
    return [seq for task in tasks for batch in reader.read(task) for seq in batch.column("seq").to_pylist()]


def test_the_end_is_fixed_when_the_plan_is_made(reader: Callable[..., BatchReader], client: Client, topic: str) -> None:
    found = reader()
    tasks = found.partitions()
    client.publish_many(topic, [b"later"] * 500)
    assert seqs(found, tasks) == list(range(1, STORED + 1))


def test_deleted_records_are_no_loss_and_move_no_bound(
    reader: Callable[..., BatchReader], client: Client, topic: str
) -> None:
    client.publish_many(topic, [b"tagged"] * 100, tag="t")
    client.publish_many(topic, [b"after"] * 100)
    client.delete(topic, match="t")
    client.delete(topic, before_seq=11)
    found = reader(endingOffsets=f'{{"{topic}": 2151}}')
    assert seqs(found, found.partitions()) == [*range(11, STORED + 1), *range(2_101, 2_151)]


def test_a_topic_trimmed_while_it_is_read_fails_the_query(
    reader: Callable[..., BatchReader], client: Client, topic: str
) -> None:
    found = reader()
    first, second, *rest = found.partitions()
    assert seqs(found, [first]) == list(range(1, 501))
    trim(client, topic, 1_201)
    with pytest.raises(RecordsLost, match=rf"topic {topic}: records 501 to 1000 are gone \(cap\)"):
        seqs(found, [second])
    with pytest.raises(RecordsLost, match=rf"topic {topic}: records 1001 to 1200 are gone \(cap\)"):
        seqs(found, rest)


def test_without_failing_the_gap_is_told_and_the_rest_is_read(
    reader: Callable[..., BatchReader], client: Client, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    found = reader(failOnDataLoss="false")
    tasks = found.partitions()
    trim(client, topic, 1_201)
    with caplog.at_level(logging.WARNING, "topicd.spark"):
        assert seqs(found, tasks) == list(range(1_201, STORED + 1))
    assert [record.getMessage() for record in caplog.records] == [
        f"topic {topic}: records {first} to {last} are gone (cap); reading on without them"
        for first, last in ((1, 500), (501, 1000), (1001, 1200))
    ]


@pytest.mark.parametrize("anew", [0, 3, 3_000])
def test_another_topic_of_the_same_name_is_not_read(
    reader: Callable[..., BatchReader], client: Client, topic: str, anew: int, caplog: pytest.LogCaptureFixture
) -> None:
    strict, lenient = reader(), reader(failOnDataLoss="false")
    tasks = strict.partitions()
    client.delete_topic(topic)
    if anew:
        client.publish_many(topic, [b"other"] * anew)
    why = "recreated" if anew else "the topic was deleted"
    with pytest.raises(RecordsLost, match=rf"topic {topic}: records 1 to 500 are gone \({why}\)"):
        seqs(strict, tasks)
    assert seqs(lenient, tasks) == []
    assert f"records 1501 to 2000 are gone ({why})" in caplog.text


def test_a_topic_that_ends_before_the_plan_does_is_told(
    reader: Callable[..., BatchReader], client: Client, topic: str
) -> None:
    """As after a restore of older files: the checkpoint of a query knows more than the daemon."""
    beyond = Task((Range(topic, client.state(topic).topic_id, 1_990, 2_100),))
    with pytest.raises(RecordsLost, match=rf"topic {topic}: records 2001 to 2100 are gone \(the topic ends before"):
        seqs(reader(), [beyond])


def trim(client: Client, topic: str, floor: int) -> None:
    """What cap leaves begins at `floor`."""
    client.configure(topic, cap_records=STORED - floor + 1)
    wait_until(lambda: client.state(topic).evict_floor == floor, "the cap to be applied")
