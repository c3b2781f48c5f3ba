"""Stream reads: where each batch ends, and what becomes of what was read. Promise: a batch that is repeated reads the
same records; what cannot be read any more is reported; a query that begins at `latest` skips nothing if it fails
before its first batch is done, for its start is kept in the daemon.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from topicd.client.blocking.client import Client
from topicd.client.core.answers import TopicState
from topicd.errors import Conflict, ConsumerNotFound, InvalidRequest, TopicNotFound
from topicd.model import GapReason
from topicd.spark import connection, loss, offsets
from topicd.spark.bounds import LATEST, Bound
from topicd.spark.offsets import Offset, Place, Places
from topicd.spark.options import ReadOptions
from topicd.spark.plan import (
    check_named,
    check_not_shrunk,
    cursor_at,
    matching,
    newest,
    split,
    topic_names,
    topic_state,
)
from topicd.spark.reader import Task, read_ranges
from topicd.spark.schema import check_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)

_POLL_S = 0.05


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        check_schema(schema, options)
        if options.starting.has(LATEST) and options.consumer is None:
            raise InvalidRequest(
                "a stream that begins at latest needs option consumer: the daemon keeps the start under that name, "
                "so that a query that is restarted before its first batch is done skips nothing"
            )
        if options.ending != Bound(LATEST):
            raise InvalidRequest("a stream has no end: endingOffsets and endingTimestamp belong to batch queries")
        self._options = options
        self._schema = schema
        self._triggered: float | None = None  # when a batch was last planned
        self._target: Places | None = None  # where Trigger.AvailableNow ends
        self._missing: set[str] = set()  # topics whose end was reported

    # ---- offsets ----

    def initialOffset(self) -> Offset:
        client = self._client()
        states = (topic_state(client, topic) for topic in topic_names(client, self._options))
        found = [state for state in states if state is not None]
        check_named(self._options, [state.topic for state in found])
        return offsets.encode({state.topic: self._first_place(client, state) for state in found})

    def _first_place(self, client: Client, state: TopicState) -> Place:
        options = self._options
        latest = options.starting.ts_ms is None and options.starting.of(state.topic) == LATEST
        if latest and options.consumer is not None:
            at = newest(state, options) if options.committed else LATEST
            return Place(state.topic_id, client.open_consumer(state.topic, options.consumer, at))
        after = cursor_at(client, state, options, options.starting, "startingOffsets")
        if options.consumer is not None:
            client.open_consumer(state.topic, options.consumer, after)
        return Place(state.topic_id, after)

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.max_records_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Waits a little when there is nothing new, or too little: Spark asks again at once."""
        before = offsets.decode(start)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        client = self._client()
        until = time.monotonic() + (self._options.idle_wait if self._target is None else 0.0)
        while True:
            reachable = self._reachable(client, before)
            too_few = reachable != before and self._waits_for_more(before, reachable)
            end = before if too_few else offsets.limited(before, reachable, most)
            left = until - time.monotonic()
            if end != before:
                self._triggered = time.monotonic()
                return offsets.encode(end)
            if left <= 0:
                return start
            if too_few:
                time.sleep(min(_POLL_S, left))
            else:
                self._wait(client, before, left)

    def _waits_for_more(self, before: Places, reachable: Places) -> bool:
        """Never at the start, when nobody knows how long the last batch is ago, and not where the end is fixed."""
        least = self._options.min_records_per_trigger
        if least is None or self._target is not None or self._triggered is None:
            return False
        waited = time.monotonic() - self._triggered
        return waited < self._options.max_trigger_delay and sum(offsets.backlogs(before, reachable).values()) < least

    def reportLatestOffset(self) -> Offset | None:
        return offsets.encode(self._heads(self._client()))

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._heads(self._client())

    # ---- batches ----

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        return [Task(ranges) for ranges in split(list(offsets.ranges(start, end)), self._options)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_ranges(cast("Task", partition), self._options, self._schema)

    def commit(self, end: Offset) -> None:
        """Spark calls this one batch late."""
        name = self._options.consumer
        if name is None:
            return
        client = self._client()
        for topic, place in offsets.decode(end).items():
            state = topic_state(client, topic)
            if state is None or state.topic_id != place.topic_id:
                continue
            try:
                client.ack_consumer(topic, name, place.seq)
            except ConsumerNotFound:
                client.open_consumer(topic, name, place.seq)
            except (TopicNotFound, Conflict) as exc:
                log.warning("consumer %s of topic %s stays where it is: %s", name, topic, exc)

    # ---- what there is ----

    def _client(self) -> Client:
        return connection.client(self._options.connection, wait=connection.PLAN_WAIT_S)

    def _heads(self, client: Client) -> Places:
        """Where each topic ends now. Those of a pattern come with the list of their names."""
        options = self._options
        if options.pattern is not None:
            listed = matching(client, options.pattern)
            return {found.topic: Place(found.topic_id, newest(found, options)) for found in listed}
        states = (topic_state(client, topic) for topic in options.topics)
        return {state.topic: Place(state.topic_id, newest(state, options)) for state in states if state is not None}

    def _reachable(self, client: Client, before: Places) -> Places:
        """How far each topic could be read now."""
        heads = self._heads(client)
        missing = before.keys() - heads.keys()
        for topic in sorted(missing - self._missing):
            self._options.losses.report_rest(topic, before[topic].topic_id, before[topic].seq, loss.DELETED)
        self._missing = missing
        reached = ((topic, self._reach(client, topic, before.get(topic), head)) for topic, head in heads.items())
        found = {topic: place for topic, place in reached if place is not None}
        if self._target is not None:
            found = offsets.at_most(found, self._target)
        return {**before, **{topic: place for topic, place in found.items() if not _behind(place, before.get(topic))}}

    def _reach(self, client: Client, topic: str, known: Place | None, head: Place) -> Place | None:
        if known is not None and (known.topic_id, known.seq) == (head.topic_id, head.seq):
            return known
        state = topic_state(client, topic)
        return known if state is None else self._head_of(client, known, state)

    def _head_of(self, client: Client, known: Place | None, state: TopicState) -> Place:
        end, losses = newest(state, self._options), self._options.losses

        def place(after: int, lost: str | None = None) -> Place:
            # Whole commits may end before the first record there is: cap or TTL took the beginning of one under way.
            return Place(state.topic_id, max(end, after), after, lost)

        first = state.earliest_seq - 1
        if known is None:
            if self._options.consumer is not None:  # keeps the start, should the first batch with this topic fail
                client.open_consumer(state.topic, self._options.consumer, first)
            return place(first)
        if known.topic_id != state.topic_id:
            losses.report_rest(state.topic, known.topic_id, known.seq, GapReason.RECREATED.value)
            return place(first, f"{known.seq + 1}-")
        check_not_shrunk(state, known.seq, "the checkpoint")
        floor = state.evict_floor - 1
        if floor <= known.seq:
            return Place(state.topic_id, end)
        losses.report(state.topic, state.topic_id, known.seq + 1, floor, "cap or ttl")
        return place(floor, f"{known.seq + 1}-{floor}")

    def _wait(self, client: Client, before: Places, left: float) -> None:
        """Until there may be something new."""
        if len(before) == 1 and self._options.pattern is None and len(self._options.topics) == 1:
            ((topic, place),) = before.items()
            try:
                client.fetch(
                    topic,
                    place.seq,
                    limit=1,
                    wait=left,
                    metadata_only=True,
                    epoch=place.topic_id,
                    committed=self._options.committed,
                )
            except TopicNotFound:
                time.sleep(min(_POLL_S, left))
        else:
            time.sleep(min(_POLL_S, left))


def _behind(place: Place, known: Place | None) -> bool:
    """What was read before only whole commits were wanted may go further."""
    return known is not None and known.topic_id == place.topic_id and place.seq < known.seq
