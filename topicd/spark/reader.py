"""Batch reads, and the part of stream reads that runs on executors. Promise: exactly the records of the planned ranges
that are still there; those that are not are reported."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql.datasource import DataSourceReader, InputPartition

from topicd.client.blocking.client import Client
from topicd.client.core.batch import Batch
from topicd.errors import TopicNotFound
from topicd.model import GapReason
from topicd.spark import connection, loss
from topicd.spark.options import ReadOptions
from topicd.spark.plan import Range, batch_ranges, split, topic_state
from topicd.spark.schema import check_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class Task(InputPartition):
    ranges: tuple[Range, ...]


class BatchReader(DataSourceReader):
    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        check_schema(schema, options)
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        client = connection.client(self._options.connection, wait=connection.PLAN_WAIT_S)
        tasks = split(batch_ranges(client, self._options), self._options)
        return [Task(ranges) for ranges in tasks] or [Task(())]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_ranges(cast("Task", partition), self._options, self._schema)


def read_ranges(task: Task, options: ReadOptions, schema: StructType) -> Iterator[Any]:
    """Arrow batches of the schema."""
    from topicd.spark.arrow import Shape, joined

    shape = Shape(schema, options)
    for wanted in task.ranges:
        found = batches(connection.client(options.connection), wanted, options)
        yield from joined(map(shape.record_batch, found))


def batches(client: Client, wanted: Range, options: ReadOptions) -> Iterator[Batch]:
    def lost(first: int, last: int, reason: str, gap_to: int | None = None) -> None:
        options.losses.report(wanted.topic, wanted.topic_id, first, last, reason, gap_to=gap_to)

    position = wanted.after
    try:
        for batch in client.history(
            wanted.topic, wanted.after, to_seq=wanted.up_to, match=options.match, epoch=wanted.topic_id
        ):
            if batch.topic_id != wanted.topic_id:
                lost(position + 1, wanted.up_to, GapReason.RECREATED.value)
                return
            gap = batch.tombstone
            if gap is not None and gap.gap_from <= wanted.up_to:
                lost(gap.gap_from, min(gap.gap_to, wanted.up_to), gap.reason, gap.gap_to)
            position = batch.next_from_seq
            if len(batch):
                yield batch
    except TopicNotFound:
        lost(position + 1, wanted.up_to, loss.DELETED)
        return
    state = topic_state(client, wanted.topic)
    if state is not None and state.topic_id == wanted.topic_id and state.head_seq < wanted.up_to:
        lost(max(state.head_seq, position) + 1, wanted.up_to, loss.ENDS_EARLY)
