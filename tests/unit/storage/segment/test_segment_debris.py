"""What a write that failed leaves, and what is left of it afterwards."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.fakedisk import FakeDisk
from tests.support.faultfs import FaultFs
from tests.unit.storage.segment_kit import Topic
from topicd._native import core
from topicd.shards.storage.segment.debris import clear_debris, cut_open_batch
from topicd.shards.storage.segment.info import SegmentInfo
from topicd.shards.storage.segment.jobs import AppendJob, run_checkpoint
from topicd.shards.storage.segment.load import load_segments


def last_segment(disk: FakeDisk, topic: Topic) -> SegmentInfo:
    return load_segments(disk, topic.dir).segments[-1]


def append_open_batch(disk: FakeDisk, topic: Topic, records: int) -> None:
    """All of a batch but its last frame."""
    frames = core.encode_batch([b"record"] * (records + 1), None, None, None)
    core.stamp_frames(frames, 0, len(frames), topic.topic_id, topic.next_seq, 2_000, True)
    data = bytes(frames[: len(frames) // (records + 1) * records])
    index = core.index_entries(data, 0, len(data), topic.data_offset)
    create = not topic.data_offset
    job = AppendJob(topic.dir, topic.segment, topic.data_offset, [data], index, topic.index_offset, create=create)
    assert run_checkpoint(disk, [job])[0].stored


def test_files_end_where_the_segment_says_after_any_crash(disk: FakeDisk, topic: Topic) -> None:
    topic.append(disk, 5)
    info = last_segment(disk, topic)
    before = disk.files()
    run_checkpoint(disk, [topic.job(3)])
    for name in ("data", "idx", "tags"):
        disk.open(topic.dir / f"seg-{9:020}.{name}", write=True, create=True).pwrite([b"half"], 0)
    disk.open(topic.file("tags.tmp"), write=True, create=True).pwrite([b"half"], 0)
    clear_debris(disk, topic.dir, info)
    assert disk.files() == before
    for seed in range(14):
        assert disk.image(seed).files() == before, seed


def test_nothing_is_left_where_nothing_was(disk: FakeDisk, topic: Topic) -> None:
    clear_debris(disk, topic.dir, None)
    run_checkpoint(disk, [topic.job(3)])
    clear_debris(disk, topic.dir, None)
    assert disk.files() == {}


def test_a_sealed_segment_and_those_before_it_are_not_touched(disk: FakeDisk, topic: Topic) -> None:
    topic.append(disk, 5)
    info = replace(last_segment(disk, topic), sealed=True)
    faults = FaultFs(disk)
    clear_debris(faults, topic.dir, info)
    assert [name for name, _ in faults.calls] == ["sync_dir"]


@pytest.mark.parametrize("whole", [0, 1, 3])
def test_an_open_batch_is_cut_and_stays_cut(disk: FakeDisk, topic: Topic, whole: int) -> None:
    for _ in range(whole):
        topic.append(disk, 1)
    before = disk.files()
    append_open_batch(disk, topic, 3)
    left = cut_open_batch(disk, topic.dir, last_segment(disk, topic))
    assert (left.count if left else 0) == whole
    assert disk.files() == before
    for image in (disk, *(disk.image(seed) for seed in range(14))):
        assert [info.count for info in load_segments(image, topic.dir).segments] == ([whole] if whole else [])


def test_whole_batches_stay(disk: FakeDisk, topic: Topic) -> None:
    topic.append(disk, 4)
    info, before = last_segment(disk, topic), disk.files()
    assert cut_open_batch(disk, topic.dir, info) is info
    assert disk.files() == before
