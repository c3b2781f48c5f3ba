"""A topic as a snapshot holds it. Promise: the shard that writes it, the start that reads it and the offline tools know
its fields from here only. Bytes: docs/formats.md.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import msgpack

from topicd.errors import FormatError
from topicd.shards.storage.ranges import Ranges
from topicd.shards.storage.segment.settle_marks import DeadOnRecord

Pair = tuple[int, int]

# Keys of the map in a snapshot that are not parts.
_LISTS = ("losses", "gone", "lost", "damaged")
_NUMBERS = ("id", "created_ms", "earliest", "evict_floor", "delete_below", "reserved", "head", "last_ts", "changes")


class TopicEntry(NamedTuple):
    id: int
    name: str
    config: dict[str, Any]
    created_ms: int
    earliest: int
    evict_floor: int
    losses: list[tuple[int, str, int]]  # floor, reason, records
    delete_below: int
    reserved: int
    gone: list[Pair]
    lost: list[tuple[int, ...]]  # first seq, last seq, about how many were given out
    head: int
    last_ts: int
    damaged: list[tuple[int, int, str]]  # first seq, last seq, where
    changes: int
    parts: dict[str, Any]  # state that hangs on the topic, by the part's key
    dead: dict[int, DeadOnRecord] | None = None  # deleted seqs by segment; None: written before they were recorded

    def to_wire(self) -> dict[str, Any]:
        body = self._asdict()
        del body["parts"], body["dead"]
        if self.dead is not None:
            rows = sorted(self.dead.items())
            body["dead"] = [[first, n, None if ranges is None else ranges.packed()] for first, (n, ranges) in rows]
        return {**body, **{key: [list(row) for row in body[key]] for key in _LISTS}, **self.parts}

    def packed(self) -> bytes:
        """As it stands in a snapshot's file."""
        return bytes(msgpack.packb(self.to_wire(), use_bin_type=True))

    @classmethod
    def from_wire(cls, body: Any) -> TopicEntry:
        """Raises FormatError: whole or not at all."""
        try:
            numbers: dict[str, Any] = {key: int(body[key]) for key in _NUMBERS}
            lists: dict[str, Any] = {key: [tuple(row) for row in body[key]] for key in _LISTS}
            known = {*_NUMBERS, *_LISTS, "name", "config", "dead"}
            parts = {key: value for key, value in body.items() if key not in known}
            dead = dead_on_record(body)
            return cls(name=str(body["name"]), config=dict(body["config"]), parts=parts, dead=dead, **numbers, **lists)
        except (AttributeError, KeyError, TypeError, ValueError, struct.error) as exc:
            raise FormatError(f"a topic in a snapshot cannot be read: {exc!r}") from None

    def explains(self) -> list[Pair]:
        """Seqs that no segment has to hold: deleted, lost or damaged, and known to be."""
        lost = [(first, last) for first, last, *_ in self.lost]
        return [*self.gone, *lost, *((first, last) for first, last, _ in self.damaged)]


def dead_on_record(body: dict[str, Any]) -> dict[int, DeadOnRecord] | None:
    """Of a topic's map in a snapshot."""
    if "dead" not in body:
        return None
    return {
        int(first): DeadOnRecord(int(count), None if packed is None else Ranges.unpack(packed))
        for first, count, packed in body["dead"]
    }
