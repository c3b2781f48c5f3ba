"""The decisions about one query's batches, in a topic of their own. Promise: what was appended first counts, for
everybody who reads it; nothing is decided before it is synced.

An entry is one batch of records: its kind as tag, `batch`, `part` and `parts` as meta, a piece of a packed map as
data. Layout: docs/formats.md.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

import msgpack

from topicd.client.blocking.operations import Operations
from topicd.client.core.records import Record
from topicd.client.staging.names import commits_topic, create_internal
from topicd.client.staging.plan import NO_LIMIT, Limit, Staged
from topicd.errors import Conflict, FormatError, InvalidRequest, TopicNotFound
from topicd.limits import FETCH_BYTES_MAX, FETCH_RECORDS_MAX, KIB

PART_BYTES = 512 * KIB
BATCHES_KEPT = 100  # Spark asks again for the last one, or the one before it


class Kind(StrEnum):
    DECIDED = "decided"  # these stages are the batch
    PLACED = "placed"  # where its destinations begin, if not where the decision says
    DONE = "done"  # everything is published
    ABANDONED = "abandoned"  # given up on purpose: nobody publishes it any more


class Place(NamedTuple):
    """Where a batch's chunks go: the topic by id, the number of the first chunk, and what one chunk holds at most."""

    topic_id: int
    first_no: int
    max_records: int = NO_LIMIT.records
    max_bytes: int = NO_LIMIT.bytes

    @property
    def limit(self) -> Limit:
        return Limit(self.max_records, self.max_bytes)


@dataclass(slots=True)
class Decision:
    batch: int
    seq: int  # of its first record in the log
    stages: tuple[Staged, ...]
    places: dict[str, Place] = field(default_factory=dict)
    done: bool = False
    abandoned: bool | None = None  # given up, with what was published taken back (True) or kept (False)


class CommitLog:
    def __init__(self, client: Operations, query: str, *, ends: bool = False, topic: str = "") -> None:
        """Of a query, or whatever the topic holds."""
        self.query = query
        self.ends = ends  # there is one batch and never another
        self.topic = topic or commits_topic(query)
        self.decisions: dict[int, Decision] = {}  # by batch, in the order they were taken
        self._client = client
        self._read_to = 0
        self._parts: list[Record] = []  # of an entry that is not read to its end

    def refresh(self) -> bool:
        """Reads what is new; False if there is no log."""
        try:
            while not self._read_page():
                pass
        except TopicNotFound:
            return False
        return True

    def _read_page(self) -> bool:
        page = self._client.fetch(self.topic, self._read_to, limit=FETCH_RECORDS_MAX, max_bytes=FETCH_BYTES_MAX)
        for record in page:
            self._parts.append(record)
            if len(self._parts) == _number(record, "parts"):
                parts, self._parts = self._parts, []
                self._apply(parts)
        self._read_to = page.next_from_seq
        return page.caught_up

    def _apply(self, parts: list[Record]) -> None:
        head = parts[0]
        batch = _number(head, "batch")
        try:
            body: Any = msgpack.unpackb(zlib.decompress(b"".join(part.data for part in parts)))
            kind, decision = Kind(head.tag or ""), self.decisions.get(batch)
            self.query, self.ends = body["query"], body["ends"]
            if kind is Kind.DECIDED and batch > self.newest:
                stages = tuple(Staged.from_wire(staged) for staged in body["stages"])
                self.decisions[batch] = Decision(batch, head.seq, stages, _places(body))
            elif kind is Kind.PLACED and decision is not None:
                _move(decision.places, _places(body))
            elif kind is Kind.ABANDONED and decision is not None:
                decision.abandoned = bool(body["take_back"])
            elif kind is Kind.DONE and decision is not None:
                decision.done = True
                if decision.abandoned:
                    del self.decisions[batch]  # as if it had never been decided
        except (KeyError, TypeError, ValueError, zlib.error) as exc:
            raise FormatError(f"{self.topic}: the entry at seq {head.seq} is malformed: {exc!r}") from None

    @property
    def newest(self) -> int:
        """The last batch that was decided. Older ones never are again: who comes so late was overtaken."""
        return next(reversed(self.decisions), -1)

    @property
    def pending(self) -> list[Decision]:
        return [decision for decision in self.decisions.values() if not decision.done]

    def create(self) -> None:
        create_internal(self._client, self.topic, {"durability": "fsync"})

    def decide(self, batch: int, stages: tuple[Staged, ...], places: dict[str, Place]) -> Decision:
        """What counts, which is what somebody else decided if he was first."""
        body = {"stages": [staged.to_wire() for staged in stages], "places": places}
        self._append(Kind.DECIDED, batch, body)
        self.refresh()
        return self.find(batch)

    def find(self, batch: int) -> Decision:
        if batch not in self.decisions:
            raise Conflict(
                f"batch {batch} of query {self.query!r} comes after batch {self.newest} was committed; "
                "a query that begins anew needs a new name (in Spark: a new checkpoint)",
                batch=batch,
                newest=self.newest,
            )
        return self.decisions[batch]

    def place(self, decision: Decision, places: dict[str, Place]) -> None:
        self._append(Kind.PLACED, decision.batch, {"places": places})
        self.refresh()

    def abandon(self, decision: Decision, *, take_back: bool) -> None:
        """Nobody publishes it from now on."""
        self._append(Kind.ABANDONED, decision.batch, {"take_back": take_back})
        self.refresh()

    def finish(self, decision: Decision) -> None:
        try:
            self._append(Kind.DONE, decision.batch, {})
        except InvalidRequest:
            # It is not made again by accident. Gone it is only when somebody else was done before.
            if self.refresh():
                raise
        decision.done = True
        if decision.abandoned:
            self.decisions.pop(decision.batch, None)

    def _append(self, kind: Kind, batch: int, body: dict[str, Any]) -> None:
        packed = zlib.compress(msgpack.packb({"query": self.query, "ends": self.ends, **body}), 1)
        pieces = [packed[at : at + PART_BYTES] for at in range(0, len(packed), PART_BYTES)]
        records = [
            Record(piece, tag=kind.value, meta={"batch": batch, "part": n, "parts": len(pieces)})
            for n, piece in enumerate(pieces)
        ]
        self._client.publish_many(self.topic, records)

    def trim(self) -> None:
        """Forgets all but the last batches, from time to time."""
        done = [decision for decision in self.decisions.values() if decision.done]
        if len(done) < 2 * BATCHES_KEPT or self.pending:
            return
        self._client.delete(self.topic, before_seq=done[-BATCHES_KEPT].seq)
        for decision in done[:-BATCHES_KEPT]:
            del self.decisions[decision.batch]

    def remove(self) -> None:
        self._client.delete_topic(self.topic)


def _number(record: Record, field: str) -> int:
    value = record.meta.get(field)
    if isinstance(value, bool) or not isinstance(value, int):
        raise FormatError(f"{record.topic}: record {record.seq} has no number {field!r}")
    return value


def _places(body: dict[str, Any]) -> dict[str, Place]:
    return {name: Place(*place) for name, place in body["places"].items()}


def _move(places: dict[str, Place], moved: dict[str, Place]) -> None:
    """Of those who begin at the same number, the first one says how the batch is cut: what he sent is there."""
    for name, place in moved.items():
        known = places.get(name)
        if known is None or known[:2] != place[:2]:
            places[name] = place
