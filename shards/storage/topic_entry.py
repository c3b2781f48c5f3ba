"""A topic as a snapshot holds it. Promise: the shard that writes it, the start that reads it and the offline tools know
its fields from here only. Bytes: docs/formats.md.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from topicd.errors import FormatError

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

    def to_wire(self) -> dict[str, Any]:
        body = self._asdict()
        del body["parts"]
        return {**body, **{key: [list(row) for row in body[key]] for key in _LISTS}, **self.parts}

    @classmethod
    def from_wire(cls, body: Any) -> TopicEntry:
        """Raises FormatError: whole or not at all."""
        try:
            numbers: dict[str, Any] = {key: int(body[key]) for key in _NUMBERS}
            lists: dict[str, Any] = {key: [tuple(row) for row in body[key]] for key in _LISTS}
            known = {*_NUMBERS, *_LISTS, "name", "config"}
            parts = {key: value for key, value in body.items() if key not in known}
            return cls(name=str(body["name"]), config=dict(body["config"]), parts=parts, **numbers, **lists)
        except (AttributeError, KeyError, TypeError, ValueError) as exc:
            raise FormatError(f"a topic in a snapshot cannot be read: {exc!r}") from None

    def explains(self) -> list[Pair]:
        """Seqs that no segment has to hold: deleted, lost or damaged, and known to be."""
        lost = [(first, last) for first, last, *_ in self.lost]
        return [*self.gone, *lost, *((first, last) for first, last, _ in self.damaged)]
