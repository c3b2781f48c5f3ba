"""Frames move between the plain file, the packed one and the cold directory: whatever call fails or is the last before
a crash, every record can be read, once, and running it again ends where it should."""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.fakedisk import FakeDisk
from tests.support.monitorfs import MonitorFs
from tests.unit.storage.segment_kit import TOPICS, Topic, contents, intact, payload, seqs
from tests.unit.storage.sweep import failures, images, noting, sweep
from topicd.disk.cold import ColdDir, ColdMissing, adopt, recorded
from topicd.disk.fs import Fs
from topicd.errors import StorageCorrupt
from topicd.paths import DataDir
from topicd.shards.storage.segment.deletions import append_marks
from topicd.shards.storage.segment.drop import drop_segments
from topicd.shards.storage.segment.info import Lies, SegmentInfo
from topicd.shards.storage.segment.load import load_segments
from topicd.shards.storage.segment.places import resolve
from topicd.shards.storage.segment.relocate import Move, Packing, drop_cold_topic, finish_drop, move_frames, strays
from topicd.shards.storage.segment.verify import verify_segment
from topicd.shards.storage.segment.words import Words
from topicd.shards.storage.topic_dir import deleted_in_cold, finish_deletes, forget_cold, start_delete

DATA_DIR = DataDir(TOPICS.parent)
COLD_ROOT = Path("/cold")
ALL = list(Lies)


def make() -> tuple[FakeDisk, Topic, ColdDir]:
    """Two sealed segments of 12, the second with marks, and an active one."""
    disk, topic = FakeDisk(directories=[TOPICS, DATA_DIR.meta, COLD_ROOT]), Topic(size=300)
    cold = adopt(disk, DATA_DIR, COLD_ROOT, "a1")
    topic.append(disk, 12, seal=True)
    topic.append(disk, 12, seal=True)
    topic.append(disk, 6)
    append_marks(disk, topic.dir, 13, [(14, 15)])
    disk.sync_filesystem(Path("/"))
    return disk, topic, cold


def move_to(topic: Topic, info: SegmentInfo, lies: Lies, cold: ColdDir) -> Move:
    return Move(topic.dir, info, cold if lies.cold else None, Packing(3, Words()) if lies.packed else None)


def info_of(fs: Fs, topic: Topic, first: int = 13) -> SegmentInfo:
    return next(info for info in load_segments(fs, topic.dir).segments if info.first_seq == first)


def bring(fs: Fs, topic: Topic, lies: Lies, cold: ColdDir, first: int = 13) -> None:
    info = info_of(fs, topic, first)
    if info.lies is not lies:
        move_frames(fs, move_to(topic, info, lies, cold), cold)


def check_records(fs: Fs, topic: Topic) -> None:
    found = contents(fs, topic.dir)
    intact(found, topic)
    assert sorted(found.records) == seqs(1, 30, [(14, 15)])


@pytest.mark.fault("TIR-01")
@pytest.mark.parametrize("target", ALL, ids=lambda lies: lies.name)
@pytest.mark.parametrize("source", ALL, ids=lambda lies: lies.name)
def test_a_move_crashes_anywhere(source: Lies, target: Lies) -> None:
    if source is target:
        return
    disk, topic, cold = make()
    bring(disk, topic, source, cold)
    disk.sync_filesystem(Path("/"))
    info = info_of(disk, topic)
    assert info.lies is source

    def run(fs: Fs) -> None:
        move_frames(fs, move_to(topic, info, target, cold), cold)

    def check(left: FakeDisk, done: bool) -> None:
        before = left.image(0)
        # What the first look says is what it leaves.
        after = info_of(left, topic)
        assert after.lies in (source, target) and after.lies is resolve(topic.dir, 13).lies(left)
        check_records(MonitorFs(left), topic)
        after = info_of(left, topic)
        assert not done or after.lies is target
        # Once more, from where the crash left it: there, and nowhere else.
        bring(left, topic, target, cold)
        check_records(left, topic)
        place = resolve(topic.dir, 13)
        for path in strays(left, topic.dir, cold):
            left.unlink(path)
        files = [
            *((lies, place.file(part)) for lies, part in ((Lies.HERE, "data"), (Lies.PACKED, "data.z"))),
            *(
                (lies, place.cold_file(cold, part))
                for lies, part in ((Lies.COLD, "data"), (Lies.COLD_PACKED, "data.z"))
            ),
        ]
        assert [lies for lies, path in files if left.exists(path)] == [target]
        assert left.exists(place.file("cold")) == target.cold
        assert before.files()  # the image was not touched by what was tried on it

    sweep(disk, run, check)


@pytest.mark.fault("TIR-02")
@pytest.mark.parametrize("target", [Lies.PACKED, Lies.COLD, Lies.COLD_PACKED], ids=lambda lies: lies.name)
def test_a_move_fails_anywhere_and_is_repeated(target: Lies) -> None:
    disk, topic, cold = make()
    info = info_of(disk, topic)

    def run(fs: Fs) -> None:
        move_frames(fs, move_to(topic, info, target, cold), cold)

    for what, failing, used in failures(disk, run):
        with suppress(OSError, StorageCorrupt):
            run(failing)
        with noting(what):
            check_records(used.image(1), topic)
            for left in images(used):
                check_records(left, topic)
            bring(used, topic, target, cold)
            check_records(used, topic)


def test_the_original_goes_only_behind_a_durable_copy_and_a_durable_pointer() -> None:
    disk, topic, cold = make()
    place = resolve(topic.dir, 13)
    monitor = MonitorFs(disk)
    monitor.watch(place.cold_file(cold, "data.z"), place.file("cold"), place.file("data"))
    bring(monitor, topic, Lies.COLD_PACKED, cold)
    assert monitor.violations == []
    assert not disk.exists(place.file("data"))


def test_marks_made_while_frames_are_away_hold_and_index_and_seal_stay() -> None:
    disk, topic, cold = make()
    bring(disk, topic, Lies.COLD_PACKED, cold, 1)
    append_marks(disk, topic.dir, 1, [(3, 5)])
    found = contents(disk, topic.dir)
    assert sorted(found.records) == seqs(1, 30, [(3, 5), (14, 15)])
    assert disk.exists(resolve(topic.dir, 1).file("idx")) and disk.exists(resolve(topic.dir, 1).file("tags"))
    bring(disk, topic, Lies.HERE, cold, 1)
    assert sorted(contents(disk, topic.dir).records) == seqs(1, 30, [(3, 5), (14, 15)])


@pytest.mark.fault("TIR-04")
def test_an_unmounted_cold_disk_takes_nothing_and_keeps_nobody_from_loading() -> None:
    disk, topic, cold = make()
    bring(disk, topic, Lies.COLD, cold, 1)
    disk.unlink(cold.mark)
    disk.unlink(resolve(topic.dir, 1).cold_file(cold, "data"))
    loaded = load_segments(disk, topic.dir)
    assert (loaded.segments[0].first_seq, loaded.segments[0].lies) == (1, Lies.COLD)
    assert loaded.damage == []
    with pytest.raises(ColdMissing):
        resolve(topic.dir, 1).open(disk, "data")
    with pytest.raises(ColdMissing):
        move_frames(disk, move_to(topic, info_of(disk, topic), Lies.COLD, cold))
    assert info_of(disk, topic).lies is Lies.HERE


def test_another_directory_is_not_taken_for_the_cold_one() -> None:
    disk, _, cold = make()
    disk.mkdir(Path("/other"))
    with pytest.raises(ColdMissing):
        adopt(disk, DATA_DIR, Path("/other"), "b2")
    assert recorded(disk, DATA_DIR) == cold
    disk.rename(cold.mark, Path("/other") / cold.mark.name)
    assert adopt(disk, DATA_DIR, Path("/other"), "b2").root == Path("/other")
    with pytest.raises(ColdMissing):
        adopt(disk, DataDir(Path("/data2")), Path("/other"), "c3")


def test_damaged_frames_do_not_move() -> None:
    disk, topic, cold = make()
    file = disk.open(topic.file("data", 13), write=True)
    file.pwrite([b"\xff" * 8], 700)
    with pytest.raises(StorageCorrupt):
        bring(disk, topic, Lies.COLD_PACKED, cold)
    assert info_of(disk, topic).lies is Lies.HERE


@pytest.mark.fault("TIR-03")
@pytest.mark.parametrize("lies", [Lies.PACKED, Lies.COLD_PACKED, Lies.COLD], ids=lambda lies: lies.name)
def test_a_drop_crashes_anywhere(lies: Lies) -> None:
    disk, topic, cold = make()
    bring(disk, topic, lies, cold)
    disk.sync_filesystem(Path("/"))

    def run(fs: Fs) -> None:
        left = drop_segments(fs, topic.dir, [13])
        assert left == ([13] if lies.cold else [])
        if left:
            finish_drop(fs, topic.dir, left, cold)

    def check(left: FakeDisk, done: bool) -> None:
        found = contents(left, topic.dir)
        intact(found, topic)
        there = set(found.records)
        assert there in (set(seqs(1, 30, [(14, 15)])), set(seqs(1, 30, [(13, 24)])))
        assert not done or 13 not in there
        drop_segments(left, topic.dir, [13])
        finish_drop(left, topic.dir, [13], cold)
        assert [path for path in left.files() if "seg-00000000000000000013" in str(path)] == []

    sweep(disk, run, check)


@pytest.mark.fault("TIR-03")
def test_deleting_a_topic_crashes_anywhere_and_leaves_nothing_in_either_directory() -> None:
    disk, topic, cold = make()
    bring(disk, topic, Lies.COLD_PACKED, cold)
    disk.sync_filesystem(Path("/"))

    def run(fs: Fs) -> None:
        start_delete(fs, TOPICS, 7)
        finish_deletes(fs, TOPICS)
        for topic_id in deleted_in_cold(fs, TOPICS):
            drop_cold_topic(fs, topic.dir, cold)
            forget_cold(fs, TOPICS, topic_id)

    def check(left: FakeDisk, done: bool) -> None:
        assert not done or not left.exists(topic.dir)
        run(left)
        assert [path for path in left.files() if "seg-" in str(path)] == []

    sweep(disk, run, check)


@pytest.mark.fault("TIR-07")
def test_a_packed_segment_without_index_or_seal_is_unpacked_and_served() -> None:
    for part in ("idx", "tags"):
        disk, topic, cold = make()
        bring(disk, topic, Lies.PACKED, cold)
        disk.unlink(topic.file(part, 13))
        check_records(disk, topic)
        assert info_of(disk, topic).lies is Lies.HERE


@pytest.mark.fault("TIR-07")
def test_a_cold_segment_without_index_is_reported_and_comes_back_with_its_frames() -> None:
    disk, topic, cold = make()
    bring(disk, topic, Lies.COLD, cold)
    disk.unlink(topic.file("idx", 13))
    loaded = load_segments(disk, topic.dir)
    [info] = loaded.stranded
    assert (info.first_seq, info.last_seq, info.lies) == (13, 24, Lies.COLD)
    assert [(d.first_seq, d.last_seq) for d in loaded.damage if not d.repaired] == [(13, 24)]
    move_frames(disk, move_to(topic, info, Lies.HERE, cold), cold)
    check_records(disk, topic)


@pytest.mark.fault("TIR-06")
def test_a_flipped_bit_in_a_packed_file_costs_its_block_and_verify_names_it() -> None:
    disk, topic, cold = make()
    topic.size = 3_000
    topic.append(disk, 60, seal=False)
    topic.append(disk, 30, seal=True)
    first = 25
    bring(disk, topic, Lies.COLD_PACKED, cold, first)
    path = resolve(topic.dir, first).cold_file(cold, "data.z")
    size = disk.size(path)
    file = disk.open(path, write=True)
    byte = file.pread(1, size - 20)
    file.pwrite([bytes([byte[0] ^ 1])], size - 20)
    assert any("frames cannot be read" in d.what or "bytes" in d.what for d in verify_segment(disk, topic.dir, first))
    found = contents(disk, topic.dir)
    assert found.corrupt and set(range(1, 25)) - {14, 15} <= set(found.records)
    assert found.records[40] == payload(40, 3_000)
    assert all(seq in found.records or seq in found.corrupt for seq in range(25, 121))


def test_what_came_back_leaves_no_pointer_and_no_file_behind() -> None:
    disk, topic, cold = make()
    bring(disk, topic, Lies.COLD_PACKED, cold)
    bring(disk, topic, Lies.HERE, cold)
    place = resolve(topic.dir, 13)
    assert disk.exists(place.file("data")) and not disk.exists(place.file("cold"))
    assert disk.listdir(cold.topic(topic.dir)) == []


@pytest.mark.parametrize("lies", [Lies.PACKED, Lies.COLD, Lies.COLD_PACKED], ids=lambda lies: lies.name)
def test_a_near_copy_that_is_not_whole_is_put_away_and_the_other_counts(lies: Lies) -> None:
    disk, topic, cold = make()
    whole = bytes(resolve(topic.dir, 13).load(disk, "data").view)
    bring(disk, topic, lies, cold)
    file = disk.open(topic.file("data", 13), write=True, create=True)
    file.pwrite([whole[:-10]], 0)
    check_records(disk, topic)
    assert info_of(disk, topic).lies is lies
    assert any("quarantine" in str(path) for path in disk.files())


def test_a_full_disk_is_named() -> None:
    disk, topic, cold = make()
    disk.capacity = sum(map(len, disk.files().values())) + 64
    with pytest.raises(OSError, match=str(cold.topic(topic.dir))) as caught:
        bring(disk, topic, Lies.COLD, cold)
    assert caught.value.errno == errno.ENOSPC
