"""Staging as its users see it: write parts, commit them together, finish what somebody left, drop what nobody wants.

    stage    rows go to topics that only topicd knows
    reserve  every destination holds room for what it gets, and its schema wants it as it is, or the commit is refused
             and nothing has happened
    decide   one synced record names the stages that count; the first decision for a batch stands
    publish  the stages are copied into their destinations, numbered so that nobody's repetition is stored
    done     the commit is closed in every destination, one more record, and the stages go

Whoever comes next finishes what is decided. Nothing of what is not decided is ever seen. What is decided and cannot be
published can be abandoned on purpose. Why: docs/adr/0012.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple

from topicd.client.blocking.operations import Operations
from topicd.client.core import requests
from topicd.client.core.encode import Serializer, encode_many
from topicd.client.core.options import STAGE_TTL_S
from topicd.client.core.records import default_bytes
from topicd.client.staging import names
from topicd.client.staging.commitlog import CommitLog, Decision, Place
from topicd.client.staging.copying import Copier
from topicd.client.staging.judging import Judge
from topicd.client.staging.plan import Chunk, Staged, chunks_for, destinations, size_for
from topicd.client.staging.writing import Laid, check_destination, write_stage
from topicd.clock import Clock, SystemClock
from topicd.errors import Conflict, InvalidRequest, TopicdError, TopicNotFound
from topicd.lists import check_list

_AT_ONCE = 8  # requests about stages
_REPLACED_AT_MOST = 3  # times a destination may be deleted while it is published to
_JUDGED_AT_MOST = 3  # times a destination's schema may change while it is looked at


class Abandoned(NamedTuple):
    """What became of one destination of a commit that was given up."""

    query: str
    batch: int
    topic: str
    records: int  # that it should have got
    published: int  # that it had
    seqs: list[tuple[int, int]]  # of these
    taken_back: int  # deleted again


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
        self._copiers: dict[str, Copier] = {}

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
        check_list(records, "records")
        encoded = encode_many(records, None, None, self._serialize)
        return self.write(batch, partition, ((topic, frames, count) for frames, count in encoded))

    # ---- committing ----

    def commit(self, batch: int, stages: Sequence[Staged]) -> int:
        """Publishes the stages, in order; how many records that were. If this batch was decided before, what was
        decided then is published instead, once."""
        check_list(stages, "stages")
        if wrong := [one for one in stages if not isinstance(one, Staged)]:
            raise InvalidRequest(f"a stage is what write or write_records returned, not {wrong[0]!r:.100}")
        log = self._log()
        there = log.refresh()
        self._finish_pending(log)
        given = tuple(staged for staged in stages if staged.runs)
        if batch <= log.newest:
            decision = log.find(batch)
        elif given:
            places = self._reserve(given)
            if not there:
                log.create()
            decision = log.decide(batch, given, places)
            self._publish_decided(log, decision, held=decision.stages == given)
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

    def abandon(self, *, take_back: bool = True) -> list[Abandoned]:
        """Gives up what was decided and left. With take_back what was published of it is deleted, and the batch counts
        as never decided; without, it stays, and the batch is over. Conflict: all of it is published."""
        log = self._log()
        log.refresh()
        found: list[Abandoned] = []
        for decision in log.pending:
            if decision.abandoned is None:
                self._check_incomplete(decision)
                log.abandon(decision, take_back=take_back)
            found += self._abandon(log, decision)
        return found

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
            if decision.abandoned is not None:
                self._abandon(log, decision)  # begun by somebody else
            else:
                self._publish_decided(log, decision, held=False)
        return [decision for decision in pending if decision.abandoned is None]

    def _reserve(self, stages: tuple[Staged, ...]) -> dict[str, Place]:
        """What is decided does not expire, and there is room for it. Refused, nothing is held."""
        with ThreadPoolExecutor(min(_AT_ONCE, len(stages))) as pool:
            list(pool.map(self._hold, stages))
        held: dict[str, requests.CommitPlace] = {}
        try:
            for name in destinations(stages):
                held[name] = self._reserved(name, stages)
            for name, found in held.items():
                held[name] = self._judged(name, stages, found)
        except TopicdError as error:
            for name, found in held.items():
                with suppress(TopicdError):
                    self._copier(name).close(found.first_no)
            raise type(error)(
                f"{error.message}; the commit is refused and nothing was published", **error.detail
            ) from error
        return {name: _place(found) for name, found in held.items()}

    def _reserved(self, destination: str, stages: tuple[Staged, ...]) -> requests.CommitPlace:
        """Where a batch that has nothing there yet begins, with room for all of it."""
        return self._copier(destination).reserve(*size_for(destination, stages))

    def _judged(
        self, destination: str, stages: tuple[Staged, ...], found: requests.CommitPlace
    ) -> requests.CommitPlace:
        """Its place, when the schema that it has by then has nothing against any record."""
        for _ in range(_JUDGED_AT_MOST):
            if not found.schema:
                return found
            chunks = chunks_for(destination, stages, _place(found).limit)
            Judge(self._client, destination).judge(found.topic_id, chunks)
            known, found = found, self._reserved(destination, stages)  # it may have taken as long as room is held
            if (found.schema, found.topic_id) == (known.schema, known.topic_id):
                return found
        raise Conflict(f"topic {destination} got another schema {_JUDGED_AT_MOST} times meanwhile", topic=destination)

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
        found = self._copiers.get(destination)
        if found is None:
            found = Copier(self._client, destination, names.producer_id(self.query, destination))
            self._copiers[destination] = found
        return found

    def _publish_decided(self, log: CommitLog, decision: Decision, *, held: bool) -> None:
        """held: room was reserved just now, in all destinations."""
        if decision.done:
            return  # by somebody who was first
        try:
            self._publish(log, decision, held)
        except TopicdError as error:
            raise type(error)(
                f"{error.message}; batch {decision.batch} is decided: do not write it again. It goes on with the next "
                "commit or with `topicctl stages finish`; `topicctl stages abandon` gives it up",
                **error.detail,
            ) from error

    def _publish(self, log: CommitLog, decision: Decision, held: bool) -> None:
        topics = destinations(decision.stages)
        for destination in () if held else topics:
            # Room in all of them before the first one gets anything more.
            place = self._find_place(log, decision, destination)
            self._copier(destination).reserve_rest(place.first_no, self._chunks(decision, destination))
        for destination in topics:
            self._publish_to(log, decision, destination, held)
        for destination in topics:
            # Not before all of it is there: readers of whole commits see nothing of it until now.
            with suppress(TopicNotFound):
                self._copier(destination).close(decision.places[destination].first_no)
        log.finish(decision)

    def _publish_to(self, log: CommitLog, decision: Decision, destination: str, held: bool) -> None:
        for attempt in range(_REPLACED_AT_MOST + 1):
            place = self._find_place(log, decision, destination)
            chunks = self._chunks(decision, destination)
            try:
                self._copier(destination).copy(place.topic_id, place.first_no, chunks, held=held and not attempt)
                return
            except TopicNotFound:
                if attempt == _REPLACED_AT_MOST:
                    raise

    def _find_place(self, log: CommitLog, decision: Decision, destination: str) -> Place:
        topic_id, expected = self._copier(destination).where()
        place = decision.places.get(destination)
        if place is None or place.topic_id != topic_id or expected < place.first_no:
            # The topic was created again, or lost its unsynced tail with the power: nothing of this batch is there.
            # Said before it is acted upon, so that the next one counts from the same number.
            log.place(decision, {destination: _place(self._reserved(destination, decision.stages))})
        return decision.places[destination]

    def _chunks(self, decision: Decision, destination: str) -> list[Chunk]:
        return chunks_for(destination, decision.stages, decision.places[destination].limit)

    # ---- giving up ----

    def _check_incomplete(self, decision: Decision) -> None:
        for destination in destinations(decision.stages):
            place, (topic_id, expected) = decision.places.get(destination), self._copier(destination).where()
            if place is None or place.topic_id != topic_id:
                return
            if not place.first_no + len(self._chunks(decision, destination)) <= expected:
                return
        raise Conflict(
            f"batch {decision.batch} of query {self.query!r} is published to its end; `topicctl stages finish` says so",
            batch=decision.batch,
        )

    def _abandon(self, log: CommitLog, decision: Decision) -> list[Abandoned]:
        found: list[Abandoned] = []
        for destination in destinations(decision.stages):
            place, part = decision.places.get(destination), None
            with suppress(TopicNotFound):
                if place is not None:
                    part = self._copier(destination).abandon(place.first_no, take_back=bool(decision.abandoned))
            records, _ = size_for(destination, decision.stages)
            published, seqs, deleted = (0, [], 0) if part is None else (part.records, part.seqs, part.deleted)
            found.append(Abandoned(self.query, decision.batch, destination, records, published, seqs, deleted))
        log.finish(decision)
        drop_topics(self._client, [staged.topic for staged in decision.stages])
        if log.ends:
            self._forget_job(log, decision)
        return found

    # ---- cleaning ----

    def _clean(self, log: CommitLog, decision: Decision) -> None:
        """Everything here may be left undone: it is done by the next, or expires."""
        self._drop_stages(lambda name: name.batch <= decision.batch)
        if not log.ends:
            log.trim()
            return
        self._forget_job(log, decision)

    def _forget_job(self, log: CommitLog, decision: Decision) -> None:
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


def _place(found: requests.CommitPlace) -> Place:
    return Place(found.topic_id, found.first_no, found.max_records, found.max_bytes)


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
