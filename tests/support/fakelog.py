"""One topic of the fake daemon: the rules of the contract over a list in memory, written for reading, not
for speed."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgpack

from topicd._native import core
from topicd.errors import OutOfOrder, TopicFull
from topicd.limits import LASTING, SCATTERED
from topicd.model import TagMatch, Tombstone, TopicConfig


class Stored(NamedTuple):
    seq: int
    ts: int
    tag: bytes | None
    node: bytes | None
    data: bytes
    frame: bytes


class FakeTopic:
    def __init__(self, name: str, topic_id: int, config: dict[str, Any]) -> None:
        self.name = name
        self.id = topic_id
        self.config = TopicConfig.from_stored(config)
        self.queue: Any = None  # its FakeQueue, if it is one
        self.records: list[Stored] = []
        self.head = 0
        self.evict_floor = 1
        self.producers: dict[int, tuple[int, dict[int, tuple[int, int]]]] = {}
        self.keys: dict[bytes, tuple[int, int]] = {}
        self.consumers: dict[str, int] = {}

    @property
    def earliest(self) -> int:
        return self.records[0].seq if self.records else self.head + 1

    def payloads(self) -> list[bytes]:
        return [record.data for record in self.records]

    def configure(self, fields: dict[str, Any]) -> None:
        self.config = self.config.updated(fields)

    # ---- writing ----

    def append(
        self, producer: int, number: int, key: bytes, frames: bytearray, count: int, ts: int
    ) -> tuple[int, int, bool]:
        last, answers = self.producers.get(producer, (0, {}))
        if producer and number in answers:
            return (*answers[number], True)
        if producer and number != last + 1 and not SCATTERED <= producer < LASTING:
            raise OutOfOrder(f"batch {number} came before batch {last + 1}", expected=last + 1)
        if key and key in self.keys:
            return (*self.keys[key], True)
        cap = self.config.cap_records
        if cap and self.config.discard == "reject" and len(self.records) + count > cap:
            raise TopicFull(f"{self.name} is full")
        first = self._store(frames, ts)
        if producer:
            self.producers[producer] = (number, {**answers, number: (first, count)})
        if key:
            self.keys[key] = (first, count)
        self._evict()
        return first, count, False

    def _store(self, frames: bytearray, ts: int) -> int:
        first = self.head + 1
        offsets = memoryview(core.stamp_frames(frames, 0, len(frames), self.id, first, ts, False)).cast("I")
        for at, end in zip(offsets, [*offsets[1:], len(frames)], strict=True):
            frame = bytes(frames[at:end])
            seq, ts, node, tag, _meta, data = core.decode_frames(frame, 0, len(frame))[0]
            self.records.append(Stored(seq, ts, tag, node, data, frame))
            self.head = seq
        return first

    def _evict(self) -> None:
        cap = self.config.cap_records
        if cap and len(self.records) > cap:
            self.records = self.records[-cap:]
            self.evict_floor = self.records[0].seq

    def delete(self, before_seq: int | None, match: Any) -> dict[str, Any]:
        chosen = TagMatch.from_wire(match) if match is not None else None
        kept = [
            r
            for r in self.records
            if (before_seq is not None and r.seq >= before_seq) or (chosen is not None and not chosen.matches(r.tag))
        ]
        gone = len(self.records) - len(kept)
        self.records = kept
        return {"deleted": gone, "deleted_bytes": 0, "examined": gone, **self.line(), "bytes": 0}

    # ---- reading ----

    def before_ts(self, ts: int) -> int:
        return next((r.seq - 1 for r in self.records if r.ts >= ts), self.head)

    def start_of(self, entry: dict[str, Any]) -> int:
        if "from_ts" in entry:
            return self.before_ts(entry["from_ts"])
        return self.head if entry.get("tail") else int(entry.get("from_seq", 0))

    def position(self, start: dict[str, Any]) -> int:
        if "ts" in start:
            return self.before_ts(start["ts"])
        if "seq" in start:
            return int(start["seq"])
        return self.head if start["at"] == "latest" else self.earliest - 1

    def select(
        self, from_seq: int, limit: int, max_bytes: int, filters: dict[str, Any]
    ) -> tuple[bytes, int, int, bytes]:
        """(frames, their number, last seq examined, packed extra map)"""
        tombstone = None
        if filters.get("epoch") not in (None, self.id):
            tombstone = Tombstone(0, 0, "recreated", 0, self.earliest, self.head)
            from_seq = 0
        elif from_seq + 1 < self.evict_floor:
            gap_to = self.evict_floor - 1
            tombstone = Tombstone(from_seq + 1, gap_to, "cap", gap_to - from_seq, self.earliest, self.head)
        match = filters.get("match")
        chosen = TagMatch.from_wire(match) if match is not None else None
        nodes = {node.encode() for node in filters.get("nodes") or []}
        found: list[bytes] = []
        position, size = from_seq, 0
        for record in self.records:
            if record.seq <= from_seq:
                continue
            wanted = (chosen is None or chosen.matches(record.tag)) and record.node not in nodes
            if wanted and found and (len(found) >= limit or size + len(record.frame) > max_bytes):
                break
            if wanted:
                found.append(record.frame)
                size += len(record.frame)
            position = record.seq
        else:
            position = max(self.head, from_seq)
        extra = msgpack.packb({"tombstone": tombstone.to_wire()}) if tombstone else b""
        return b"".join(found), len(found), position, extra

    # ---- telling ----

    def line(self) -> dict[str, Any]:
        return {
            "topic": self.name,
            "topic_id": self.id,
            "head_seq": self.head,
            "earliest_seq": self.earliest,
            "count": len(self.records),
            "bytes": sum(len(r.data) for r in self.records),
            "durability": self.config.durability,
            "settled_seq": self.head,
            "type": self.config.type,
        }

    def state(self) -> dict[str, Any]:
        return {
            **self.line(),
            "next_seq": self.head + 1,
            "evict_floor": self.evict_floor,
            "last_write_ts": self.records[-1].ts if self.records else None,
            "last_read_ts": None,
            "effective_priority": 0,
            "open_commits": 0,
            "lost": [],
            "config": self.config.to_fields(),
        }

    # ---- consumers ----

    def open_consumer(self, name: str, start: dict[str, Any]) -> dict[str, Any]:
        created = name not in self.consumers
        if created:
            self.consumers[name] = self.position(start)
        line = self.consumer_line(name)
        return {**line, "head_seq": self.head, "created": created, "topic_id": self.id}

    def consumer_line(self, name: str) -> dict[str, Any]:
        acked = self.consumers[name]
        return {"name": name, "acked_seq": acked, "lag": self.head - acked, "updated_ts": 0}
