"""Rows into topics. Promise: what a job or a micro-batch wrote is seen when it is committed, whole and once, however
often its tasks, its driver or the daemon are started again; nothing of one that failed is ever seen.

A task attempt writes a stage; the commit names the stages that count and publishes them. See topicd.client.staging.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from topicd.client.blocking.client import Client
from topicd.client.staging.plan import Staged
from topicd.client.staging.stages import Stages
from topicd.client.staging.sweep import drop_expired
from topicd.client.staging.writing import check_destination
from topicd.clock import SystemClock
from topicd.errors import InvalidRequest, TopicdError
from topicd.spark import connection
from topicd.spark.given import Given
from topicd.spark.options import CONNECTION_NAMES, ConnectionOptions
from topicd.spark.rows import check_columns, lay_out

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql.types import StructType

_WRITE_NAMES = ("topic", "stageTtl")
_SWEEP_EVERY = 100  # micro-batches
_BATCH_ID = "streaming.sql.batchId"
_QUERY_ID = "sql.streaming.queryId"


@dataclass(frozen=True, slots=True)
class WriteOptions:
    connection: ConnectionOptions
    topic: str | None  # for all rows, whatever the column says
    stage_ttl: float

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> WriteOptions:
        given = Given(options)
        given.check_names((*_WRITE_NAMES, *CONNECTION_NAMES))
        topic = given.text("topic")
        if topic is not None:
            check_destination(topic)
        return cls(ConnectionOptions.parse(options), topic, given.seconds("stageTtl", default=86_400.0))

    def client(self) -> Client:
        return connection.client(self.connection)

    def stages(self, query: str, *, ends: bool) -> Stages:
        return self.client().stages(query, ends=ends, ttl=self.stage_ttl)

    def sweep(self) -> None:
        """What others have left behind. Not worth failing for."""
        with suppress(TopicdError):
            drop_expired(self.client(), SystemClock().now_ms(), int(self.stage_ttl * 1000))


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What one task attempt staged."""

    query: str
    staged: Staged


class BatchWriter(DataSourceArrowWriter):
    """`df.write.format("topicd")`: a job of one batch."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise InvalidRequest('topics are appended to: mode("append") is possible, mode("overwrite") is not')
        self._options = WriteOptions.parse(options)
        self._job = f"job-{uuid.uuid4()}"
        check_columns(schema, self._options.topic)

    def write(self, iterator: Iterator[RecordBatch]) -> Written:
        stages = self._options.stages(self._job, ends=True)
        return Written(self._job, stages.write(0, _partition(), lay_out(iterator, self._options.topic)))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._options.stages(self._job, ends=True).commit(0, _staged(messages))
        self._options.sweep()

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        with suppress(TopicdError):
            self._options.stages(self._job, ends=True).drop(0)


class StreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream.format("topicd")`: a query with a batch at each trigger."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise InvalidRequest('topics are appended to: outputMode("append") is possible, "complete" is not')
        self._options = WriteOptions.parse(options)
        check_columns(schema, self._options.topic)

    def write(self, iterator: Iterator[RecordBatch]) -> Written:
        query, batch = _property(_QUERY_ID), int(_property(_BATCH_ID))
        stages = self._options.stages(query, ends=False)
        return Written(query, stages.write(batch, _partition(), lay_out(iterator, self._options.topic)))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        for query in _queries(messages):
            self._options.stages(query, ends=False).commit(batchId, _staged(messages))
        if batchId % _SWEEP_EVERY == 0:
            self._options.sweep()

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        with suppress(TopicdError):
            for query in _queries(messages):
                self._options.stages(query, ends=False).drop(batchId)


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    return [message.staged for message in messages if isinstance(message, Written)]


def _queries(messages: Sequence[WriterCommitMessage | None]) -> set[str]:
    """One, or none where no task has written."""
    return {message.query for message in messages if isinstance(message, Written)}


def _partition() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


def _property(name: str) -> str:
    from pyspark import TaskContext

    context = TaskContext.get()
    found = None if context is None else context.getLocalProperty(name)
    if not found:
        raise InvalidRequest(f"Spark tells no {name}: a stream can be written only by a streaming query")
    return found
