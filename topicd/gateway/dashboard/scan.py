"""Records of a topic that somebody looks for: behind a seq or a time, before a seq, by tag, by what they contain.
Promise: at most SCAN records, BYTES and SECONDS are spent on one question, and the answer says how far it looked.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

from topicd._native.interface import Decoded
from topicd.client.core.requests import fetch
from topicd.gateway.batches import TopicBatch
from topicd.gateway.dashboard.showing import shown
from topicd.gateway.shards import Shards
from topicd.limits import KIB, MIB
from topicd.model import TagMatch

SCAN = 20_000
BYTES = 32 * MIB
SECONDS = 1.5
_BLOCK = 1_000  # seqs that are read at once
_BLOCK_BYTES = 1 * MIB


class Wanted(NamedTuple):
    from_seq: int | None = None  # behind this one
    from_ts: int | None = None
    before_seq: int | None = None  # the newest before this one; with none of the three: the newest
    tag: TagMatch | None = None
    text: str = ""
    limit: int = 50


class Scan:
    def __init__(self, shards: Shards, topic: str, wanted: Wanted) -> None:
        self._shards = shards
        self._topic = topic
        self._wanted = wanted
        self._needle = wanted.text.lower().encode()
        self._ends = time.monotonic() + SECONDS
        self._bytes = 0
        self.looked = 0  # seqs
        self.rows: list[dict[str, Any]] = []
        self.gaps: list[dict[str, Any]] = []
        self.head_seq = self.earliest_seq = 0

    async def run(self) -> dict[str, Any]:
        wanted = self._wanted
        older = wanted.from_seq is None and wanted.from_ts is None
        first, last, stopped = await (self._backwards() if older else self._forwards())
        self.rows.sort(key=lambda row: int(row["seq"]), reverse=older)
        return {
            "topic": self._topic,
            "records": self.rows,
            "gaps": self.gaps,
            "order": "newest first" if older else "oldest first",
            "looked_at": self.looked,
            "looked_from": first,
            "looked_to": last,
            "stopped": stopped,  # end, limit, scan
            "head_seq": self.head_seq,
            "earliest_seq": self.earliest_seq,
        }

    # ---- the two directions ----

    async def _forwards(self) -> tuple[int, int, str]:
        wanted = self._wanted
        at, when = wanted.from_seq or 0, wanted.from_ts
        began: int | None = None
        while True:
            batch = await self._read(at, when)
            when = None
            if began is None:
                at = max(at, batch.earliest_seq - 1) if batch.count == 0 else at
                began = batch.records[0][0] if batch.count else at + 1
                self.looked -= max(0, began - 1 - at)
            full = self._take(batch.records, batch)
            if full is not None:
                return began, full, "limit"
            self.looked += max(0, batch.to_seq - at)
            at = max(at, batch.to_seq)
            if at >= batch.head_seq:
                return began, batch.head_seq, "end"
            if self._spent():
                return began, at, "scan"

    async def _backwards(self) -> tuple[int, int, str]:
        wanted = self._wanted
        first = await self._read(0, None, limit=1, all_tags=True)  # for where the topic begins and ends
        end = min(wanted.before_seq or first.head_seq + 1, first.head_seq + 1)  # not this one, but those before it
        top, floor = end - 1, max(1, first.earliest_seq)
        block = _BLOCK if self._needle or wanted.tag else wanted.limit
        while end > floor:
            begin = max(floor, end - block)
            found: list[Decoded] = []
            async for batch in self._between(begin, end):
                found += [record for record in batch.records if record[0] < end]
            for record in reversed(found):
                if self._fits(record):
                    self.rows.append(shown(record))
                    if len(self.rows) >= wanted.limit:
                        self.looked += end - record[0]
                        return record[0], top, "limit" if record[0] > floor else "end"
            self.looked += end - begin
            end = begin
            if self._spent() and end > floor:
                return end, top, "scan"
        return floor, max(top, floor - 1), "end"

    async def _between(self, begin: int, end: int) -> AsyncIterator[TopicBatch]:
        at = begin - 1
        while at < end - 1:
            batch = await self._read(at, None, limit=end - 1 - at)
            self._note_gap(batch)
            yield batch
            if batch.to_seq <= at:
                return
            at = batch.to_seq

    # ---- pieces ----

    async def _read(self, seq: int, when: int | None, limit: int = _BLOCK, *, all_tags: bool = False) -> TopicBatch:
        request = fetch(
            seq,
            limit=min(limit, _BLOCK),
            max_bytes=_BLOCK_BYTES,
            match=None if all_tags else self._wanted.tag,
            nodes=None,
            from_time=None if when is None else datetime.fromtimestamp(when / 1000, UTC),
            metadata_only=False,
            performance=False,
            epoch=None,
        )
        batch = TopicBatch(self._topic, seq, await self._shards.fetch(self._topic, request))
        self._bytes += batch.size
        self.head_seq, self.earliest_seq = batch.head_seq, batch.earliest_seq
        return batch

    def _take(self, records: list[Decoded], batch: TopicBatch) -> int | None:
        """The seq at which there are enough; None: not yet."""
        self._note_gap(batch)
        for record in records:
            if self._fits(record):
                self.rows.append(shown(record))
                if len(self.rows) >= self._wanted.limit:
                    self.looked += record[0] - records[0][0] + 1
                    return int(record[0])
        return None

    def _note_gap(self, batch: TopicBatch) -> None:
        gap = batch.gap()
        if gap is not None:
            told = {name: gap[name] for name in ("gap_from", "gap_to", "reason")}
            if told not in self.gaps:
                self.gaps.append(told)

    def _fits(self, record: Decoded) -> bool:
        needle = self._needle
        if not needle:
            return True
        _, _, node, tag, meta, data = record
        return any(needle in bytes(part).lower() for part in (data, tag, node, meta) if part)

    def _spent(self) -> bool:
        return self.looked >= SCAN or self._bytes >= BYTES or time.monotonic() > self._ends


TEXT_MAX = 1 * KIB  # what is looked for
