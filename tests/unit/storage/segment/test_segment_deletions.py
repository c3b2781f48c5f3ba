from __future__ import annotations

import errno
import struct
from collections.abc import Callable

import pytest

from tests.support.fakedisk import FakeDisk
from tests.support.faultfs import FaultFs
from tests.support.monitorfs import MonitorFs
from tests.unit.storage.segment_kit import Topic
from topicd._native import core
from topicd.shards.storage.ranges import Ranges
from topicd.shards.storage.segment.deletions import append_marks, drop_marks, load_marks, pack_marks
from topicd.shards.storage.segment.jobs import SINGLE_SYNCS, MarkJob, run_marks
from topicd.shards.storage.segment.load import load_segments


@pytest.fixture
def marked(disk: FakeDisk, topic: Topic) -> Topic:
    topic.append(disk, 50, seal=True)
    return topic


def marks(disk: FakeDisk, topic: Topic) -> list[tuple[int, int]]:
    return list(load_marks(disk, topic.dir, 1).ranges)


def test_a_mark_is_24_bytes_seeded_with_the_segment() -> None:
    bounds = struct.pack("<QQ", 12, 15)
    assert pack_marks(10, [(12, 15)]) == bounds + struct.pack("<Q", core.xxh3_64(bounds, 10))


def test_marks_add_up_and_show_in_the_load(disk: FakeDisk, marked: Topic) -> None:
    append_marks(disk, marked.dir, 1, [(3, 3), (10, 20)])
    append_marks(disk, marked.dir, 1, [])
    append_marks(disk, marked.dir, 1, [(4, 5), (15, 25)])
    assert marks(disk, marked) == [(3, 5), (10, 25)]
    loaded = load_segments(disk, marked.dir)
    assert list(loaded.marks[1]) == [(3, 5), (10, 25)]
    assert loaded.segments[0].dead == 19
    assert 0 < loaded.segments[0].dead_bytes < loaded.segments[0].data_bytes
    assert loaded.segments[0].data_bytes == disk.size(marked.file("data", 1))


def test_marks_outside_the_segment_are_refused() -> None:
    with pytest.raises(ValueError, match="not inside"):
        pack_marks(10, [(9, 12)])
    with pytest.raises(ValueError, match="not inside"):
        pack_marks(10, [(12, 11)])


def test_synced_marks_survive_every_crash(disk: FakeDisk, marked: Topic) -> None:
    append_marks(disk, marked.dir, 1, [(3, 5)])
    append_marks(disk, marked.dir, 1, [(7, 7)])
    for seed in range(20):
        assert marks(disk.image(seed), marked) == [(3, 5), (7, 7)]


@pytest.mark.parametrize("cut", [1, 8, 23])
def test_a_torn_tail_is_cut_and_later_marks_count(disk: FakeDisk, marked: Topic, cut: int) -> None:
    append_marks(disk, marked.dir, 1, [(3, 3), (9, 9)])
    file = disk.open(marked.file("del", 1), write=True)
    file.truncate(24 + cut)
    file.close()
    assert marks(disk, marked) == [(3, 3)]
    assert disk.size(marked.file("del", 1)) == 24
    append_marks(disk, marked.dir, 1, [(11, 11)])
    assert marks(disk, marked) == [(3, 3), (11, 11)]


def test_without_a_load_a_half_written_mark_is_overwritten(disk: FakeDisk, marked: Topic) -> None:
    append_marks(disk, marked.dir, 1, [(3, 3)])
    failing = FaultFs(disk, fail_at=1, short=True, only=lambda name, path: name == "pwrite")
    with pytest.raises(OSError):
        append_marks(failing, marked.dir, 1, [(9, 9)])
    assert disk.size(marked.file("del", 1)) == 36
    append_marks(disk, marked.dir, 1, [(11, 11)])
    assert marks(disk, marked) == [(3, 3), (11, 11)]


def test_one_rotten_mark_costs_one_mark_and_is_reported(disk: FakeDisk, marked: Topic) -> None:
    append_marks(disk, marked.dir, 1, [(3, 3), (9, 9), (11, 11)])
    disk.damage(marked.file("del", 1), 24, b"\xff")
    loaded = load_segments(disk, marked.dir)
    assert list(loaded.marks[1]) == [(3, 3), (11, 11)]
    assert [damage.what for damage in loaded.damage] == ["1 deletion marks cannot be read"]
    assert load_segments(disk, marked.dir).damage == loaded.damage


def test_marks_of_another_segment_are_not_believed(disk: FakeDisk, marked: Topic) -> None:
    file = disk.open(marked.file("del", 1), write=True, create=True)
    file.pwrite([pack_marks(2, [(3, 4)])], 0)
    file.close()
    assert marks(disk, marked) == []


def test_marks_of_the_active_segment_are_kept_for_records_still_to_come(disk: FakeDisk, topic: Topic) -> None:
    topic.append(disk, 10)
    append_marks(disk, topic.dir, 1, [(9, 12)])
    loaded = load_segments(disk, topic.dir)
    assert list(loaded.marks[1]) == [(9, 12)]
    assert loaded.segments[0].dead == 2


def test_the_name_is_durable_even_if_its_first_sync_failed(disk: FakeDisk, marked: Topic) -> None:
    failing = FaultFs(disk, fail_at=1, only=lambda name, path: name == "sync_dir")
    with pytest.raises(OSError):
        append_marks(failing, marked.dir, 1, [(3, 3)])
    append_marks(disk, marked.dir, 1, [(3, 3)])
    assert marks(disk.image(0), marked) == [(3, 3)]


def test_a_failed_sync_is_repaired_by_marking_again(disk: FakeDisk, marked: Topic) -> None:
    append_marks(disk, marked.dir, 1, [(1, 1)])
    failing = FaultFs(disk, fail_at=1, only=lambda name, path: name == "sync_data")
    with pytest.raises(OSError):
        append_marks(failing, marked.dir, 1, [(3, 3)])
    append_marks(disk, marked.dir, 1, [(3, 3)])
    assert Ranges(marks(disk.image(0), marked)) == Ranges([(1, 1), (3, 3)])


def test_drop_marks_keeps_a_file_that_says_more(disk: FakeDisk, marked: Topic) -> None:
    append_marks(disk, marked.dir, 1, [(3, 5)])
    assert not drop_marks(disk, marked.dir, 1, Ranges([(3, 4)]))
    assert marks(disk, marked) == [(3, 5)]
    assert drop_marks(disk, marked.dir, 1, Ranges([(2, 6)]))
    assert not disk.exists(marked.file("del", 1))
    assert drop_marks(disk, marked.dir, 1, Ranges([(2, 6)]))


@pytest.mark.parametrize("count", [1, SINGLE_SYNCS, SINGLE_SYNCS + 1])
def test_run_marks_marks_many_segments_durably(disk: FakeDisk, count: int) -> None:
    topic = Topic()
    firsts = []
    for _ in range(count):
        firsts.append(topic.segment)
        topic.append(disk, 3, seal=True)
    fs = FaultFs(MonitorFs(disk))
    results = run_marks(fs, [MarkJob(topic.dir, first, [(first, first + 1)]) for first in firsts])
    assert all(result.ok and result.stored for result in results)
    syncs = [name for name, _ in fs.calls if name in {"sync_data", "sync_filesystem"}]
    assert len(syncs) == (count if count <= SINGLE_SYNCS else 1)
    loaded = load_segments(disk.image(0), topic.dir)
    assert {first: list(ranges) for first, ranges in loaded.marks.items()} == {
        first: [(first, first + 1)] for first in firsts
    }


FAILURES: dict[str, Callable[[str], bool]] = {
    "write": lambda name: name == "pwrite",
    "sync": lambda name: name == "sync_data",
}


@pytest.mark.parametrize("what", FAILURES)
def test_run_marks_fails_one_and_stores_the_others(disk: FakeDisk, what: str) -> None:
    topic = Topic()
    topic.append(disk, 3, seal=True)
    topic.append(disk, 3, seal=True)
    failing = FaultFs(disk, fail_at=1, errno=errno.ENOSPC, only=lambda name, path: FAILURES[what](name))
    results = run_marks(failing, [MarkJob(topic.dir, 1, [(1, 1)]), MarkJob(topic.dir, 4, [(4, 4)])])
    assert [result.stored for result in results] == [False, True]
    assert [result.errno for result in results] == [errno.ENOSPC, None]
    assert 4 in load_segments(disk.image(0), topic.dir).marks
