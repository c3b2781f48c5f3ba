"""Which bytes of a topic's tail go to which segment. Pure planning: no disk, no change of state.

A segment is sealed at segment_max_records, segment_max_bytes or segment_max_age_ms; a hole in the seqs begins a new
one too, for a segment is contiguous, and so does a direct write that does not fit in what is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from pathlib import Path

from topicd._native.interface import Buffer
from topicd.config import Settings
from topicd.frames import core, ts_at
from topicd.shards.delivery.topic.tail import Blob
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.storage.segment.index import ENTRY_BYTES
from topicd.shards.storage.segment.info import SegmentInfo
from topicd.shards.storage.segment.jobs import AppendJob, SealJob


@dataclass
class Draft:
    """One segment as it will be when the job is done."""

    first_seq: int
    old_count: int
    old_bytes: int
    created_ms: int
    create: bool
    first_ts: int = 0
    last_ts: int = 0
    data: list[memoryview] = field(default_factory=list)
    count: int = 0
    bytes: int = 0
    seal: bool = False
    direct: bool = False  # holds records that are in no log: what its index names was acknowledged
    label: Buffer = b""  # whose the directory is, for the first segment in it

    @property
    def last_seq(self) -> int:
        return self.first_seq + self.count - 1

    def job(self, topic_dir: Path) -> AppendJob:
        """Looks at every record: not for the shard's own thread."""
        entries, at = [], self.old_bytes
        for piece in self.data:
            entries.append(core.index_entries(piece, 0, len(piece), at))
            at += len(piece)
        return AppendJob(
            topic_dir,
            self.first_seq,
            self.old_bytes,
            self.data,
            b"".join(entries),
            self.old_count * ENTRY_BYTES,
            create=self.create,
            seal=SealJob(self.created_ms) if self.seal else None,
            direct=self.direct,
            label=self.label,
        )

    def info(self) -> SegmentInfo:
        return SegmentInfo(
            self.first_seq, self.count, self.bytes, self.first_ts, self.last_ts, self.created_ms, sealed=False
        )


def plan(topic: Topic, settings: Settings, now_ms: int, direct: Sequence[Blob] = ()) -> list[Draft]:
    """Drafts in seq order; they hold every blob of the tail and, each in one piece, the direct ones behind it."""
    drafts: list[Draft] = []
    current = _reopen(topic)
    max_records, max_bytes = topic.policy.segment_limits(settings)
    if current is not None:
        # Full and not sealed: that failed. It takes no more, for a successor may have left its name on the disk.
        current.seal = current.count >= max_records or current.bytes >= max_bytes
        drafts.append(current)
    tail, stored = topic.contents.tail, topic.seqs.stored
    tail.close_open()
    for blob, whole in chain(zip(tail, repeat(False)), zip(direct, repeat(True))):
        first = max(blob.first_seq, stored + 1)
        if whole and current is not None and not _has_room(current, blob, max_records, max_bytes):
            current.seal = True
        while first <= blob.last_seq:
            if current is None or current.seal or first != current.last_seq + 1:
                if current is not None:
                    current.seal = True
                current = Draft(first, 0, 0, now_ms, create=True)
                drafts.append(current)
            first = _fill(current, blob, first, max_records, max_bytes)
            # Who commits a stage counts its records, and needs no index to tell whether any are missing.
            current.direct = current.direct or (whole and not topic.policy.internal)
    age = settings.segment_max_age_ms
    if current is not None and age and now_ms - current.created_ms >= age:
        current.seal = True
    return [draft for draft in drafts if draft.data or draft.seal]


def _reopen(topic: Topic) -> Draft | None:
    info = topic.contents.active
    if info is None:
        return None
    return Draft(
        info.first_seq,
        info.count,
        info.data_bytes,
        info.created_ms,
        create=False,
        first_ts=info.first_ts,
        last_ts=info.last_ts,
        count=info.count,
        bytes=info.data_bytes,
    )


def _has_room(draft: Draft, blob: Blob, max_records: int, max_bytes: int) -> bool:
    return draft.count + blob.count <= max_records and draft.bytes + blob.end - blob.start <= max_bytes


def _fill(draft: Draft, blob: Blob, first: int, max_records: int, max_bytes: int) -> int:
    """Take records from first on until the segment is full; the first seq that is left."""
    last = min(blob.last_seq, first + max(1, max_records - draft.count) - 1)
    start, end = blob.offset_of(first), blob.offset_of(last + 1)
    while last > first and draft.bytes + end - start > max_bytes:
        last = first + (last - first) // 2
        end = blob.offset_of(last + 1)
    # Times of the records themselves: a blob gathers batches of different times.
    if not draft.count:
        draft.first_ts = ts_at(blob.data, start)
    draft.last_ts = ts_at(blob.data, blob.offset_of(last))
    draft.data.append(memoryview(blob.data)[start:end])
    draft.count += last - first + 1
    draft.bytes += end - start
    draft.seal = draft.count >= max_records or draft.bytes >= max_bytes
    return last + 1
