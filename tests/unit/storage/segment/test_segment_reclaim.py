"""Rewriting, dropping and deleting: what they leave on an honest disk, and what a failing one may not make
of them.
"""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.support.fakedisk import FakeDisk
from tests.support.faultfs import FaultFs
from tests.support.monitorfs import MonitorFs
from tests.unit.storage.segment_kit import TOPICS, Topic, contents, intact, seqs
from topicd.errors import StorageCorrupt
from topicd.model import TagMatch
from topicd.shards.storage.ranges import Ranges
from topicd.shards.storage.segment.deletions import append_marks
from topicd.shards.storage.segment.drop import drop_segment, drop_segments
from topicd.shards.storage.segment.index import GONE
from topicd.shards.storage.segment.load import load_segments
from topicd.shards.storage.segment.reader import SegmentReader
from topicd.shards.storage.segment.rewrite import rewrite_segment
from topicd.shards.storage.topic_dir import finish_deletes, start_delete

DEAD = [(1, 3), (10, 25), (38, 40)]


@pytest.fixture
def marked(disk: FakeDisk, topic: Topic) -> Topic:
    """1..40 sealed and partly deleted, 41..50 active."""
    topic.append(disk, 40, seal=True)
    topic.append(disk, 10)
    append_marks(disk, topic.dir, 1, DEAD)
    return topic


def test_a_rewrite_frees_the_dead_and_keeps_every_seq_in_its_place(disk: FakeDisk, marked: Topic) -> None:
    before = load_segments(disk, marked.dir)
    old = before.segments[0]
    info = rewrite_segment(MonitorFs(disk), marked.dir, old, before.marks[1])
    assert info.data_bytes == old.data_bytes - old.dead_bytes
    assert (info.count, info.dead, info.dead_bytes) == (40, 22, 0)
    assert sorted(disk.listdir(marked.dir)) == [
        f"seg-{first:020d}.{part}" for first, part in ((1, "data"), (1, "idx"), (1, "tags"), (41, "data"), (41, "idx"))
    ]
    for seed in range(7):
        found = contents(disk.image(seed), marked.dir)
        intact(found, marked)
        assert list(found.records) == seqs(1, 50, DEAD)
        assert found.loaded.segments[0] == info
        assert list(found.loaded.marks[1]) == DEAD
    reader = SegmentReader(disk, marked.dir, info).open()
    assert (reader.entry(10).length, reader.entry(10).flags, reader.entry(10).ts) == (0, GONE, 1005)
    living = seqs(1, 40, DEAD)
    assert reader.tags().find(TagMatch(b"red")) == [seq for seq in living if seq % 4 == 0]
    assert reader.locate(9, 100, 0) is not None


def test_a_second_rewrite_takes_more_away(disk: FakeDisk, marked: Topic) -> None:
    loaded = load_segments(disk, marked.dir)
    info = rewrite_segment(disk, marked.dir, loaded.segments[0], loaded.marks[1])
    append_marks(disk, marked.dir, 1, [(5, 6), (20, 30)])
    loaded = load_segments(disk, marked.dir)
    assert loaded.segments[0].dead_bytes > 0
    info = rewrite_segment(disk, marked.dir, loaded.segments[0], loaded.marks[1])
    assert info.dead == 29
    found = contents(disk.image(0), marked.dir)
    intact(found, marked)
    assert list(found.records) == seqs(1, 50, [*DEAD, (5, 6), (20, 30)])


def test_a_rewrite_without_new_dead_changes_nothing(disk: FakeDisk, marked: Topic) -> None:
    loaded = load_segments(disk, marked.dir)
    info = rewrite_segment(disk, marked.dir, loaded.segments[0], loaded.marks[1])
    before = disk.files()
    assert rewrite_segment(disk, marked.dir, info, loaded.marks[1]) == info
    assert disk.files() == before


def test_marks_that_arrive_during_a_rewrite_are_kept(disk: FakeDisk, marked: Topic) -> None:
    loaded = load_segments(disk, marked.dir)
    append_marks(disk, marked.dir, 1, [(30, 30)])
    rewrite_segment(disk, marked.dir, loaded.segments[0], loaded.marks[1])
    found = contents(disk, marked.dir)
    assert list(found.records) == seqs(1, 50, [*DEAD, (30, 30)])


def test_a_rewrite_refuses_what_it_cannot_do(disk: FakeDisk, marked: Topic) -> None:
    loaded = load_segments(disk, marked.dir)
    with pytest.raises(ValueError, match="no record of segment 1 lives"):
        rewrite_segment(disk, marked.dir, loaded.segments[0], Ranges([(1, 40)]))
    with pytest.raises(ValueError, match="not sealed"):
        rewrite_segment(disk, marked.dir, loaded.segments[1], Ranges([(41, 42)]))


@pytest.mark.parametrize("part", ["data", "idx"])
def test_a_damaged_segment_is_not_rewritten(disk: FakeDisk, marked: Topic, part: str) -> None:
    loaded = load_segments(disk, marked.dir)
    living = SegmentReader(disk, marked.dir, loaded.segments[0]).open().entry(30).offset
    disk.damage(marked.file(part, 1), living + 3 if part == "data" else 103, b"\xa5\xa5")
    before = disk.files()
    with pytest.raises(StorageCorrupt):
        rewrite_segment(disk, marked.dir, loaded.segments[0], loaded.marks[1])
    assert disk.files() == before


def test_a_rewrite_that_fails_early_leaves_no_trace(disk: FakeDisk, marked: Topic) -> None:
    loaded = load_segments(disk, marked.dir)
    before = disk.files()
    for number in (1, 2, 3):
        failing = FaultFs(disk, fail_at=number, errno=errno.ENOSPC, only=lambda name, path: name == "pwrite")
        with pytest.raises(OSError):
            rewrite_segment(failing, marked.dir, loaded.segments[0], loaded.marks[1])
        assert disk.files() == before


# ---- drop ----


def test_a_dropped_segment_is_gone_for_good(disk: FakeDisk, marked: Topic) -> None:
    drop_segment(MonitorFs(disk), marked.dir, 1)
    for seed in range(7):
        found = contents(disk.image(seed), marked.dir)
        assert list(found.records) == seqs(41, 50)
        assert found.loaded.damage == []
    drop_segment(disk, marked.dir, 1)


def test_many_segments_go_with_three_syncs(disk: FakeDisk, topic: Topic) -> None:
    for _ in range(10):
        topic.append(disk, 4, seal=True)
    fs = FaultFs(disk)
    drop_segments(fs, topic.dir, [1, 5, 9, 13])
    assert [name for name, _ in fs.calls].count("sync_dir") == 3
    assert list(contents(disk.image(0), topic.dir).records) == seqs(17, 40)


def test_an_unlink_that_fails_may_be_repeated(disk: FakeDisk, marked: Topic) -> None:
    count = FaultFs(disk.image(0))
    drop_segment(count, marked.dir, 1)
    for number in range(1, count.count + 1):
        image = disk.image(0)
        with pytest.raises(OSError):
            drop_segment(FaultFs(image, fail_at=number), marked.dir, 1)
        drop_segment(image, marked.dir, 1)
        assert list(contents(image.image(0), marked.dir).records) == seqs(41, 50)


# ---- topic directories ----


def test_a_deleted_topic_does_not_come_back(disk: FakeDisk, marked: Topic) -> None:
    other = Topic(topic_id=8)
    other.append(disk, 5)
    start_delete(disk, TOPICS, 7)
    for seed in range(7):
        image = disk.image(seed)
        assert contents(image, marked.dir).records == {}
        assert sorted(image.listdir(TOPICS)) == [marked.dir.name + ".deleted", other.dir.name]
    assert finish_deletes(disk, TOPICS) == [7]
    assert disk.image(0).listdir(TOPICS) == [other.dir.name]
    assert finish_deletes(disk, TOPICS) == []
    assert list(contents(disk, other.dir).records) == seqs(1, 5)


def test_deleting_nothing_or_twice_is_fine(disk: FakeDisk, marked: Topic) -> None:
    start_delete(disk, TOPICS, 99)
    start_delete(disk, Path("/data/elsewhere"), 99)
    start_delete(disk, TOPICS, 7)
    start_delete(disk, TOPICS, 7)
    assert finish_deletes(disk, TOPICS) == [7]
    assert finish_deletes(disk, Path("/data/elsewhere")) == []


def test_a_directory_that_came_back_is_deleted_again(disk: FakeDisk, marked: Topic) -> None:
    start_delete(disk, TOPICS, 7)
    Topic().append(disk, 3)
    start_delete(disk, TOPICS, 7)
    assert disk.listdir(TOPICS) == [marked.dir.name + ".deleted"]
    assert finish_deletes(disk, TOPICS) == [7]


def test_a_rename_that_was_not_durable_is_made_so_by_repeating(disk: FakeDisk, marked: Topic) -> None:
    failing = FaultFs(disk, fail_at=1, only=lambda name, path: name == "sync_dir")
    with pytest.raises(OSError):
        start_delete(failing, TOPICS, 7)
    start_delete(disk, TOPICS, 7)
    assert contents(disk.image(0), marked.dir).records == {}
