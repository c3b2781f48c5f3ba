"""Staging as its users see it: write parts, commit them together, finish what somebody left, drop what nobody wants.

    stage    rows go to topics that only topicd knows
    decide   one synced record names the stages that count; the first decision for a batch stands
    publish  the stages are copied into their destinations, numbered so that nobody's repetition is stored
    done     one more record, and the stages go

Whoever comes next finishes what is decided. Nothing of what is not decided is ever seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from topicd.client.blocking.operations import Operations
from topicd.client.core import requests
from topicd.client.core.encode import Serializer, encode_many
from topicd.client.core.options import STAGE_TTL_S
from topicd.client.core.records import default_bytes
from topicd.client.staging import names
from topicd.client.staging.commitlog import CommitLog, Decision, Place
from topicd.client.staging.copying import Copier
from topicd.client.staging.plan import Staged, chunks_by_destination, destinations
from topicd.client.staging.writing import Laid, check_destination, write_stage
from topicd.clock import Clock, SystemClock
from topicd.errors import Conflict, TopicdError, TopicNotFound

_AT_ONCE = 8  # requests about stages
_REPLACED_AT_MOST = 3  # times a destination may be deleted while it is published to


class Stages:
    """The batches of one query, or of one job with a single batch. Made by `client.stages`."""

    def __init__(
        self,
        client: Operations,
        query: str,
        *,
        ends: bool = False,
        ttl: float = STAGE_TTL_S,
        serialize: Serializer = default_bytes,
        clock: Clock | None = None,
    ) -> None:
        self.query = query
        self._client = client
        self._ends = ends  # there is one batch and never another
        self._ttl_ms = max(1, int(ttl * 1000))
        self._serialize = serialize
        self._clock = clock or SystemClock()

    # ---- staging ----

    def write(self, batch: int, partition: int, laid: Iterable[Laid]) -> Staged:
        """Stages batches of ready-made frames, each with its destination."""

        def topic_for(destination: str) -> str:
            return self._stage_topic(batch, partition, destination)

        return write_stage(self._client, topic_for, laid, ttl_ms=self._ttl_ms)

    def _stage_topic(self, batch: int, partition: int, destination: str) -> str:
        """In the shard of the destination, which can copy it by itself."""
        shard_map = self._client.caller.shard_map
        while True:
            topic = names.stage_topic(self.query, batch, partition, self._clock.now_ms())
            if shard_map.shard_of(topic) == shard_map.shard_of(destination):
                return topic

    def write_records(self, batch: int, partition: int, topic: str, records: Sequence[Any]) -> Staged:
        """Stages a list like that of `publish_many`."""
        check_destination(topic)
        encoded = encode_many(records, None, None, self._serialize)
        return self.write(batch, partition, ((topic, frames, count) for frames, count in encoded))

    # ---- committing ----

    def commit(self, batch: int, stages: Sequence[Staged]) -> int:
        """Publishes the stages, in order; how many records that were. If this batch was decided before, what was
        decided then is published instead, once."""
        log = self._log()
        there = log.refresh()
        self._finish_pending(log)
        given = tuple(staged for staged in stages if staged.runs)
        if batch <= log.newest:
            decision = log.find(batch)
        elif given:
            if not there:
                log.create()
            decision = self._decide(log, batch, given)
            self._publish_decided(log, decision)
        else:
            decision = Decision(batch, 0, ())
        self._clean(log, decision)
        return sum(staged.records for staged in decision.stages)

    def finish(self) -> list[int]:
        """Publishes what was decided and left; the batches."""
        log = self._log()
        if not log.refresh():
            return []
        finished = self._finish_pending(log)
        for decision in finished:
            self._clean(log, decision)
        return [decision.batch for decision in finished]

    def drop(self, batch: int) -> int:
        """Drops the stages of a batch that was not decided; how many."""
        log = self._log()
        log.refresh()
        if any(decision.batch == batch for decision in log.pending):
            raise Conflict(f"batch {batch} of query {self.query!r} is decided and will be published", batch=batch)
        return self._drop_stages(lambda name: name.batch == batch)

    def _log(self) -> CommitLog:
        return CommitLog(self._client, self.query, ends=self._ends)

    def _finish_pending(self, log: CommitLog) -> list[Decision]:
        pending = log.pending
        for decision in pending:
            self._publish_decided(log, decision)
        return pending

    def _decide(self, log: CommitLog, batch: int, stages: tuple[Staged, ...]) -> Decision:
        with ThreadPoolExecutor(min(_AT_ONCE, len(stages))) as pool:
            list(pool.map(self._hold, stages))
        places = {name: Place(*self._copier(name).where()) for name in destinations(stages)}
        return log.decide(batch, stages, places)

    def _hold(self, staged: Staged) -> None:
        """What is decided does not expire."""
        try:
            self._client.caller.ask(requests.configure(staged.topic, {"ttl_ms": 0}, create=False))
            state = self._client.state(staged.topic, touch=False)
        except TopicNotFound:
            raise _expired(staged) from None
        if (state.earliest_seq, state.head_seq) != (1, staged.records):
            raise _expired(staged)

    def _copier(self, destination: str) -> Copier:
        return Copier(self._client, destination, names.producer_id(self.query, destination))

    def _publish_decided(self, log: CommitLog, decision: Decision) -> None:
        if decision.done:
            return  # by somebody who was first
        try:
            self._publish(log, decision)
        except TopicdError as error:
            raise type(error)(
                f"{error.message}; batch {decision.batch} is decided and goes on with the next commit or with "
                "`topicctl stages finish`",
                **error.detail,
            ) from error

    def _publish(self, log: CommitLog, decision: Decision) -> None:
        for destination, chunks in chunks_by_destination(decision.stages).items():
            copier = self._copier(destination)
            for attempt in range(_REPLACED_AT_MOST + 1):
                topic_id, expected = copier.where()
                place = decision.places.get(destination)
                if place is None or place.topic_id != topic_id or expected < place.first_no:
                    # The topic was made anew, or lost its unsynced tail with the power: nothing of this batch is
                    # there. Said before it is acted upon, so that the next one counts from the same number.
                    log.place(decision, {destination: Place(topic_id, expected)})
                place = decision.places[destination]
                try:
                    copier.copy(place.topic_id, place.first_no, chunks)
                    break
                except TopicNotFound:
                    if attempt == _REPLACED_AT_MOST:
                        raise
        log.finish(decision)

    # ---- cleaning ----

    def _clean(self, log: CommitLog, decision: Decision) -> None:
        """Everything here may be left undone: it is done by the next, or expires."""
        self._drop_stages(lambda name: name.batch <= decision.batch)
        if not log.ends:
            log.trim()
            return
        for destination in destinations(decision.stages):
            with suppress(TopicNotFound):
                self._copier(destination).release()
        with suppress(TopicNotFound):
            log.remove()

    def _drop_stages(self, chosen: Callable[[names.StageName], bool]) -> int:
        key = names.query_key(self.query)
        found = [
            info.topic
            for info in self._client.topics(f"{names.STAGES}{key}.")
            if (name := names.parse_stage(info.topic)) is not None and chosen(name)
        ]
        return drop_topics(self._client, found)


def drop_topics(client: Operations, topics: Sequence[str]) -> int:
    def drop(topic: str) -> None:
        with suppress(TopicNotFound):
            client.delete_topic(topic)

    if topics:
        with ThreadPoolExecutor(min(_AT_ONCE, len(topics))) as pool:
            list(pool.map(drop, topics))
    return len(topics)


def _expired(staged: Staged) -> Conflict:
    return Conflict(
        f"stage {staged.topic} was dropped or has expired before it was committed; nothing was published "
        "(a stage lives for stageTtl after its last record)",
        stage=staged.topic,
    )
