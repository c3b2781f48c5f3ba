"""Neighbouring records of a topic on their way to many readers: decoded once, made into text once per shape, cut once
per size. Promise: what one reader made of a batch is there for the next that wants the same.
"""

from __future__ import annotations

from typing import Any

from topicd._native import core
from topicd._native.interface import Decoded
from topicd.errors import FormatError
from topicd.gateway.records_json import Shape, compact, records_text
from topicd.ipc.protocol.codec import Fetched
from topicd.model import Tombstone


class TopicBatch:
    """What lies between two cursors; records may be none."""

    def __init__(self, topic: str, from_seq: int, fetched: Fetched) -> None:
        self.topic = topic
        self.from_seq = from_seq
        self.to_seq = fetched.next_from_seq
        self.head_seq = fetched.head_seq
        self.earliest_seq = fetched.earliest_seq
        self.tombstone: Tombstone | None = fetched.tombstone
        self.count = fetched.records
        self.size = fetched.end - fetched.start
        self.made: dict[object, bytes] = {}  # by readers: whole messages that others may want, too
        self._fetched = fetched
        self._records: list[Decoded] | None = None
        self._nodes: frozenset[bytes] | None = None
        self._texts: dict[Shape, bytes] = {}
        self._pieces: dict[tuple[int, int], list[TopicBatch]] = {}

    @property
    def records(self) -> list[Decoded]:
        if self._records is None:
            found = self._fetched
            try:
                self._records = core.decode_frames(found.buffer, found.start, found.end)
            except ValueError as exc:
                raise FormatError(f"a shard sent records that are malformed: {exc.args[-1]}") from None
        return self._records

    @property
    def nodes(self) -> frozenset[bytes]:
        """Where its records come from."""
        if self._nodes is None:
            self._nodes = frozenset({record[2] for record in self.records if record[2]})
        return self._nodes

    def text(self, shape: Shape) -> bytes:
        """The JSON array of its records."""
        found = self._texts.get(shape)
        if found is None:
            found = self._texts[shape] = records_text(self.records, shape)
        return found

    def line(self, shape: Shape) -> bytes:
        """The same on one line, without spaces between its tokens, which are as they came."""
        return compact(self.text(shape))

    def gap(self, *, recreated: bool = False) -> dict[str, Any] | None:
        """What is missing before its first record, as it is told; `recreated`: the cursor was an earlier topic's."""
        head = self.head_seq
        if recreated:
            gap = {"gap_from": 1, "gap_to": head, "reason": "recreated", "missed_estimate": head}
            return {**gap, "earliest_seq": self.earliest_seq, "head_seq": head}
        if self.tombstone is None:
            return None
        found = {**self.tombstone.to_wire(), "earliest_seq": self.earliest_seq, "head_seq": head}
        if found["reason"] != "power_loss":
            found["gap_to"] = self.earliest_seq - 1
        return found

    # ---- parts ----

    def starting(self, seq: int) -> TopicBatch:
        """It, as seen by a cursor that has passed its gap."""
        return self if seq == self.from_seq and self.tombstone is None else self._part(self.records, seq, self.to_seq)

    def pieces(self, limit: int, max_bytes: int) -> list[TopicBatch]:
        """It, in parts of at most so many records and bytes (one record may be larger)."""
        if self.count <= limit and (self.size <= max_bytes or self.count <= 1):
            return [self]
        found = self._pieces.get((limit, max_bytes))
        if found is None:
            found = self._pieces[limit, max_bytes] = self._cut(limit, max_bytes)
        return found

    def behind(self, seq: int) -> TopicBatch:
        """The part of it with higher seqs."""
        if seq <= self.from_seq:
            return self
        return self._part([record for record in self.records if record[0] > seq], seq, self.to_seq)

    def _cut(self, limit: int, max_bytes: int) -> list[TopicBatch]:
        groups: list[list[Decoded]] = [[]]
        size = 0
        for record in self.records:
            length = len(record[5]) + len(record[4] or b"")
            if groups[-1] and (len(groups[-1]) >= limit or size + length > max_bytes):
                groups.append([])
                size = 0
            groups[-1].append(record)
            size += length
        at, found = self.from_seq, []
        for group in groups:
            to = self.to_seq if group is groups[-1] else group[-1][0]
            found.append(self._part(group, at, to))
            at = to
        found[0].tombstone = self.tombstone
        return found

    def _part(self, records: list[Decoded], from_seq: int, to_seq: int) -> TopicBatch:
        part = TopicBatch(self.topic, from_seq, self._fetched._replace(next_from_seq=to_seq, tombstone=None))
        part._records = records
        part.count = len(records)
        part.size = sum(len(record[5]) + len(record[4] or b"") for record in records)
        return part
