"""What the storage tests share: a topic that writes segments through checkpoints, and a reader of all that
is there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from topicd import paths
from topicd._native import core
from topicd.disk.fs import Fs
from topicd.errors import StorageCorrupt
from topicd.shards.storage.ranges import Ranges
from topicd.shards.storage.segment.info import LoadedSegments, SegmentInfo
from topicd.shards.storage.segment.jobs import AppendJob, JobResult, SealJob, run_checkpoint
from topicd.shards.storage.segment.load import load_segments
from topicd.shards.storage.segment.places import resolve
from topicd.shards.storage.segment.reader import SegmentReader
from topicd.shards.storage.segment.settle_marks import DeadOnRecord

TOPICS = Path("/data/topics")
FULL = os.environ.get("TOPICD_SWEEP") == "full"
TAGS = (b"red", b"green", None, b"rose")


def payload(seq: int, size: int = 0) -> bytes:
    """What record seq holds: tells itself apart from every other."""
    return (b"record %d;" % seq) * (1 + seq % 5) + b"." * size


def tag_of(seq: int) -> bytes | None:
    return TAGS[seq % len(TAGS)]


def ts_of(seq: int) -> int:
    return 1_000 + seq // 2


def frames(topic_id: int, first_seq: int, count: int, size: int = 0) -> bytes:
    """Stamped append frames, one batch per record, so that each may have its own time."""
    parts = []
    for seq in range(first_seq, first_seq + count):
        batch = core.encode_batch([payload(seq, size)], [tag_of(seq)], None, None)
        core.stamp_frames(batch, 0, len(batch), topic_id, seq, ts_of(seq), True)
        parts.append(bytes(batch))
    return b"".join(parts)


@dataclass
class Topic:
    """Keeps the books that a delivery shard keeps: where the active segment stands."""

    topic_id: int = 7
    topics_dir: Path = TOPICS
    size: int = 0  # padding of each payload
    next_seq: int = 1
    segment: int = 1
    data_offset: int = 0
    index_offset: int = 0

    @property
    def dir(self) -> Path:
        return self.topics_dir / paths.topic_dir_name(self.topic_id)

    def file(self, part: str, first_seq: int | None = None) -> Path:
        return resolve(self.dir, self.segment if first_seq is None else first_seq).file(part)

    def job(self, count: int, seal: bool = False) -> AppendJob:
        """The next `count` records; the books move on as if it were stored."""
        data = frames(self.topic_id, self.next_seq, count, self.size)
        index = core.index_entries(data, 0, len(data), self.data_offset)
        half = len(data) // 2
        job = AppendJob(
            self.dir,
            self.segment,
            self.data_offset,
            [data[:half], memoryview(data)[half:]],
            index,
            self.index_offset,
            create=self.data_offset == 0,
            seal=SealJob(created_ms=99) if seal else None,
        )
        self.next_seq += count
        self.data_offset += len(data)
        self.index_offset += len(index)
        if seal:
            self.segment, self.data_offset, self.index_offset = self.next_seq, 0, 0
        return job

    def append(self, fs: Fs, count: int, seal: bool = False) -> JobResult:
        result = run_checkpoint(fs, [self.job(count, seal)])[0]
        assert result.ok, result.error
        return result

    def copy(self) -> Topic:
        return replace(self)


@dataclass
class Contents:
    loaded: LoadedSegments
    records: dict[int, bytes]  # living records that can be read
    corrupt: Ranges  # seqs whose reading says StorageCorrupt


def contents(fs: Fs, topic_dir: Path, dead: Mapping[int, DeadOnRecord] | None = None) -> Contents:
    """Load the topic and read every record one by one, verified. dead: what a snapshot has on record."""
    loaded = load_segments(fs, topic_dir, dead)
    records: dict[int, bytes] = {}
    corrupt = Ranges()
    for info in loaded.segments:
        marks = loaded.marks.get(info.first_seq, Ranges())
        try:
            reader = SegmentReader(fs, topic_dir, info).open()
        except StorageCorrupt:
            corrupt.add(info.first_seq, info.last_seq)
            continue
        for seq in range(info.first_seq, info.last_seq + 1):
            if seq in marks:
                continue
            try:
                reader.verify(seq, seq)
                found = core.decode_frames(reader.read(seq, seq), 0, len(reader.read(seq, seq)))
            except StorageCorrupt as error:
                assert error.detail["first_seq"] <= seq <= error.detail["last_seq"]
                corrupt.add(seq)
                continue
            assert [record[0] for record in found] == [seq]
            records[seq] = found[0][5]
        reader.close()
    return Contents(loaded, records, corrupt)


def intact(found: Contents, topic: Topic) -> None:
    """No damage that matters, and every record is what was written."""
    assert [str(d) for d in found.loaded.damage if not d.repaired] == []
    assert not found.corrupt
    for seq, data in found.records.items():
        assert data == payload(seq, topic.size), seq


def summary(loaded: LoadedSegments) -> tuple[list[SegmentInfo], dict[int, list[tuple[int, int]]]]:
    """What two loads of the same disk must agree on."""
    return loaded.segments, {first: list(ranges) for first, ranges in loaded.marks.items()}


def seqs(first: int, last: int, without: Sequence[tuple[int, int]] = ()) -> list[int]:
    dead = Ranges(without)
    return [seq for seq in range(first, last + 1) if seq not in dead]


def cut(disk: Fs, topic: Topic, part: str, first: int, size: int) -> None:
    file = disk.open(topic.file(part, first), write=True)
    file.truncate(size)
    file.sync()
    file.close()


def append_bytes(disk: Fs, topic: Topic, data: bytes) -> None:
    file = disk.open(topic.file("data"), write=True)
    file.pwrite([data], file.size())
    file.close()


def offset(topic: Topic, seq: int) -> int:
    """Where the record begins in its segment of 20."""
    first = (seq - 1) // 20 * 20 + 1
    return len(frames(topic.topic_id, first, seq - first))
