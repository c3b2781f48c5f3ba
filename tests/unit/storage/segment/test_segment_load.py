"""Every state in which a crash or a bad disk may leave a topic's files, and what loading makes of it."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.fakedisk import FakeDisk
from tests.support.faultfs import FaultFs
from tests.support.monitorfs import MonitorFs
from tests.unit.storage.segment_kit import (
    Topic,
    append_bytes,
    contents,
    cut,
    frames,
    intact,
    offset,
    payload,
    seqs,
    summary,
)
from topicd._native import core
from topicd.disk.fs import RealFs, replace_file
from topicd.shards.storage.ranges import Ranges
from topicd.shards.storage.segment.deletions import append_marks
from topicd.shards.storage.segment.load import load_segments
from topicd.shards.storage.segment.rewrite import rewrite_segment


def test_a_topic_without_a_directory_has_nothing(disk: FakeDisk, topic: Topic) -> None:
    loaded = load_segments(disk, topic.dir)
    assert (loaded.segments, loaded.marks, loaded.damage, loaded.gaps) == ([], {}, [], [])


def test_whole_segments_load_as_they_were_written(disk: FakeDisk, three: Topic) -> None:
    before = disk.files()
    fs = FaultFs(disk)
    loaded = load_segments(fs, three.dir)
    assert [(i.first_seq, i.count, i.sealed) for i in loaded.segments] == [
        (1, 20, True),
        (21, 20, True),
        (41, 20, False),
    ]
    assert loaded.segments[0].created_ms == 99
    assert loaded.segments[2].created_ms == loaded.segments[2].first_ts == 1020
    assert loaded.segments[1].last_ts == 1020
    assert (loaded.damage, loaded.gaps, loaded.cuts, loaded.torn_bytes) == ([], [], [], 0)
    assert fs.calls == []
    assert disk.files() == before


def test_sealed_segments_are_opened_by_their_header_and_first_frame(disk: FakeDisk, topic: Topic) -> None:
    for _ in range(10):
        topic.append(disk, 20, seal=True)
    fs = FaultFs(disk, reads=True)
    load_segments(fs, topic.dir)
    read = [path.suffix for name, path in fs.calls if name in {"pread", "read_into"}]
    assert read == [".tags"] * 10 + [".data"] * 10


def test_five_hundred_sealed_segments_load_in_no_time(real: Topic) -> None:
    fs = RealFs()
    topic = FakeDisk(directories=[real.topics_dir])
    for _ in range(500):
        real.append(topic, 3, seal=True)
    real.dir.mkdir(parents=True)
    for path, data in topic.files().items():
        path.write_bytes(data)
    best = 1.0
    for _ in range(3):
        start = time.thread_time()
        assert len(load_segments(fs, real.dir).segments) == 500
        best = min(best, time.thread_time() - start)
    assert best < 500 * 400e-6, f"{best / 500 * 1e6:.0f} us per segment"


def test_a_read_that_fails_once_is_repeated_or_stops_the_load_and_harms_nothing(disk: FakeDisk, three: Topic) -> None:
    append_marks(disk, three.dir, 21, [(25, 30)])
    append_bytes(disk, three, frames(7, 61, 2)[:-5])
    disk.unlink(three.file("tags", 21))
    disk.sync_filesystem(three.dir)
    counting = FaultFs(disk.image(0), reads=True)
    expected = contents(counting, three.dir)
    load_segments(counting := FaultFs(disk.image(0), reads=True), three.dir)
    for number in range(1, counting.count + 1):
        image = disk.image(0)
        failing = FaultFs(image, fail_at=number, reads=True)
        with suppress(OSError):
            assert summary(load_segments(failing, three.dir)) == summary(expected.loaded)
        assert failing.failures == 1
        found = contents(image, three.dir)
        intact(found, three)
        assert found.records == expected.records, number
        assert summary(found.loaded) == summary(expected.loaded)


# ---- older segments ----


@pytest.mark.parametrize("lost", [["tags"], ["tags", "idx"]])
def test_a_seal_that_was_not_finished_is_finished(disk: FakeDisk, three: Topic, lost: list[str]) -> None:
    whole = disk.files()
    for part in lost:
        disk.unlink(three.file(part, 21))
    found = contents(MonitorFs(disk), three.dir)
    intact(found, three)
    assert list(found.records) == seqs(1, 60)
    assert found.loaded.damage == []
    assert found.loaded.segments[1].sealed
    assert found.loaded.segments[1].created_ms == found.loaded.segments[1].first_ts
    assert disk.files()[three.file("idx", 21)] == whole[three.file("idx", 21)]
    assert contents(disk.image(0), three.dir).loaded.segments == found.loaded.segments


def test_an_unsealed_older_segment_is_never_cut(disk: FakeDisk, three: Topic) -> None:
    disk.unlink(three.file("tags", 21))
    disk.damage(three.file("data", 21), offset(three, 40) + 40, b"\xa5")
    size = disk.size(three.file("data", 21))
    found = contents(disk, three.dir)
    assert disk.size(three.file("data", 21)) == size
    assert list(found.corrupt) == [(40, 40)]
    assert list(found.records) == seqs(1, 60, [(40, 40)])
    assert [(d.first_seq, d.last_seq, d.repaired) for d in found.loaded.damage] == [(40, 40, False)]
    again = contents(disk, three.dir)
    assert again.records == found.records
    assert [(d.first_seq, d.last_seq) for d in again.loaded.damage] == [(40, 40)]


@pytest.mark.parametrize("seq", [21, 30, 40])
@pytest.mark.parametrize("at", [0, 10, 45])
def test_a_rotten_frame_in_an_unsealed_segment_costs_that_frame(
    disk: FakeDisk, three: Topic, seq: int, at: int
) -> None:
    for part in ("tags", "idx"):
        disk.unlink(three.file(part, 21))
    disk.damage(three.file("data", 21), offset(three, seq) + at, b"\xff")
    found = contents(disk, three.dir)
    assert list(found.corrupt) == [(seq, seq)]
    assert list(found.records) == seqs(1, 60, [(seq, seq)])
    assert found.loaded.gaps == []


def test_a_rotten_stretch_is_given_to_the_seqs_that_lay_there(disk: FakeDisk, three: Topic) -> None:
    for part in ("tags", "idx"):
        disk.unlink(three.file(part, 21))
    start = offset(three, 30)
    disk.damage(three.file("data", 21), start, bytes(offset(three, 34) - start))
    found = contents(disk, three.dir)
    assert list(found.corrupt) == [(30, 33)]
    assert [(d.first_seq, d.last_seq) for d in found.loaded.damage] == [(30, 33)]


def test_an_unreadable_seal_is_made_anew(disk: FakeDisk, three: Topic) -> None:
    for first in (1, 21):
        disk.damage(three.file("tags", first), 20, b"\xff")
    found = contents(disk, three.dir)
    intact(found, three)
    assert list(found.records) == seqs(1, 60)
    assert [(d.what, d.repaired) for d in found.loaded.damage] == [("the seal was unreadable", True)] * 2
    assert load_segments(disk, three.dir).damage == []


def test_an_unreadable_seal_of_the_newest_segment_is_made_anew(disk: FakeDisk, topic: Topic) -> None:
    topic.append(disk, 20, seal=True)
    disk.damage(topic.file("tags", 1), 20, b"\xff")
    found = contents(disk, topic.dir)
    intact(found, topic)
    assert found.loaded.segments[0].sealed
    assert list(found.records) == seqs(1, 20)


@pytest.mark.parametrize("size", [None, 0, 100, 399])
def test_a_sealed_segment_without_a_whole_index_gets_a_new_one(disk: FakeDisk, three: Topic, size: int | None) -> None:
    whole = disk.files()[three.file("idx", 21)]
    if size is None:
        disk.unlink(three.file("idx", 21))
    else:
        cut(disk, three, "idx", 21, size)
    found = contents(disk, three.dir)
    intact(found, three)
    assert list(found.records) == seqs(1, 60)
    assert [(d.what, d.repaired) for d in found.loaded.damage] == [("the index was missing or cut", True)]
    assert disk.files()[three.file("idx", 21)] == whole
    assert found.loaded.segments[1].created_ms == 99
    assert load_segments(disk, three.dir).damage == []


def test_a_sealed_segment_cut_short_keeps_its_seqs_and_tells_which_are_lost(disk: FakeDisk, three: Topic) -> None:
    cut(disk, three, "data", 21, offset(three, 35) + 10)
    found = contents(disk, three.dir)
    assert list(found.corrupt) == [(35, 40)]
    assert list(found.records) == seqs(1, 60, [(35, 40)])
    assert [(d.first_seq, d.last_seq, d.repaired) for d in found.loaded.damage] == [(35, 40, False)]
    assert found.loaded.gaps == []


def test_bytes_behind_a_sealed_segment_are_told_and_do_no_harm(disk: FakeDisk, three: Topic) -> None:
    file = disk.open(three.file("data", 21), write=True)
    file.pwrite([b"junk"], file.size())
    found = contents(disk, three.dir)
    intact(found, three)
    assert list(found.records) == seqs(1, 60)
    assert [d.repaired for d in found.loaded.damage] == [True]


def test_a_sealed_segment_without_data_is_damage_of_the_whole(disk: FakeDisk, three: Topic) -> None:
    disk.unlink(three.file("data", 21))
    for _ in range(2):
        loaded = load_segments(disk, three.dir)
        assert [(d.first_seq, d.last_seq, d.what) for d in loaded.damage] == [(21, 40, "the data file is missing")]
        assert [info.first_seq for info in loaded.segments] == [1, 41]


def test_a_lone_index_tells_of_lost_data(disk: FakeDisk, three: Topic) -> None:
    disk.unlink(three.file("data", 41))
    loaded = load_segments(disk, three.dir)
    assert loaded.damage == []
    assert [(c.first_seq, c.last_seq, c.indexed) for c in loaded.cuts] == [(41, 60, 60)]  # if the log has them not
    assert [info.first_seq for info in loaded.segments] == [1, 21]
    assert not disk.exists(three.file("idx", 41))  # records of the log will need the name


def test_leftovers_of_a_drop_are_swept_up(disk: FakeDisk, three: Topic) -> None:
    append_marks(disk, three.dir, 21, [(21, 40)])
    for part in ("tags", "idx", "data"):
        disk.unlink(three.file(part, 21))
    loaded = load_segments(disk, three.dir)
    assert loaded.damage == []
    assert loaded.gaps == [(21, 40)]
    assert not disk.exists(three.file("del", 21))


def test_overlapping_segments_are_told(disk: FakeDisk, three: Topic) -> None:
    replace_file(disk, three.file("data", 55), [frames(7, 55, 3)])
    loaded = load_segments(disk, three.dir)
    assert [(d.first_seq, d.last_seq, d.what) for d in loaded.damage] == [(55, 60, "overlaps the segment before it")]


def of_version_9(disk: FakeDisk, path: Path) -> bytes:
    raw = bytearray(disk.files()[path])
    raw[4] = 9
    raw[88:96] = core.xxh3_64(bytes(raw[:88])).to_bytes(8, "little")
    replace_file(disk, path, [bytes(raw)])
    return bytes(raw)


@pytest.mark.fault("ROTT-12")
@pytest.mark.parametrize("beside", ["", "data", "idx"])
def test_a_seal_of_an_unknown_version_costs_its_segment_which_nobody_touches(
    disk: FakeDisk, three: Topic, beside: str
) -> None:
    of_version_9(disk, three.file("tags", 21))
    if beside:
        replace_file(disk, three.file(f"{beside}.tmp", 21), [b"of a rewrite"])
    before = {path: raw for path, raw in disk.files().items() if path.name.startswith(three.file("tags", 21).stem)}
    for _ in range(2):
        loaded = load_segments(disk, three.dir)
        assert [info.first_seq for info in loaded.segments] == [1, 41]
        (damage,) = loaded.damage
        assert (damage.first_seq, damage.last_seq, damage.repaired) == (21, 40, False)
        assert "version 9" in damage.what
    assert {path: raw for path, raw in disk.files().items() if path in before} == before


@pytest.mark.fault("ROTT-12")
def test_the_newest_segment_with_a_seal_of_an_unknown_version_goes_aside_whole(disk: FakeDisk, topic: Topic) -> None:
    topic.append(disk, 20, seal=True)
    topic.append(disk, 20, seal=True)
    of_version_9(disk, topic.file("tags", 21))
    before = {path.name: raw for path, raw in disk.files().items() if path.name.startswith("seg-00000000000000000021")}
    loaded = load_segments(disk, topic.dir)
    assert [info.first_seq for info in loaded.segments] == [1]
    (cut,) = loaded.cuts
    assert (cut.first_seq, cut.last_seq) == (21, 40)
    assert {path.name: raw for path, raw in disk.files().items() if path.parent == cut.kept.parent} == before
    assert not any(path.name in before for path in disk.files() if path.parent == topic.dir)


def test_strangers_in_the_directory_are_left_alone(disk: FakeDisk, three: Topic) -> None:
    for name in ("notes.txt", "seg-12.data", "seg-00000000000000000041.data.bak"):
        replace_file(disk, three.dir / name, [b"x"])
    assert list(contents(disk, three.dir).records) == seqs(1, 60)
    assert {"notes.txt", "seg-12.data"} <= set(disk.listdir(three.dir))


# ---- after a rewrite ----


@pytest.mark.parametrize("dead", [[(21, 30)], [(31, 40)], [(25, 35)], [(21, 22), (30, 31), (39, 40)]])
@pytest.mark.parametrize("lost", [[], ["idx"], ["tags-rot"], ["tags"]])
def test_a_rewritten_segment_survives_the_loss_of_what_is_derived(
    disk: FakeDisk, three: Topic, dead: list[tuple[int, int]], lost: list[str]
) -> None:
    info = load_segments(disk, three.dir).segments[1]
    rewrite_segment(disk, three.dir, info, Ranges(dead))
    before = contents(disk, three.dir)
    assert list(before.records) == seqs(1, 60, dead)
    for part in lost:
        if part == "tags-rot":
            disk.damage(three.file("tags", 21), 30, b"\xff")
        else:
            disk.unlink(three.file(part, 21))
    found = contents(disk, three.dir)
    intact(found, three)
    assert found.records == before.records
    assert summary(found.loaded)[1] == summary(before.loaded)[1]
    assert [info.count for info in found.loaded.segments] == [20, 20, 20]


def test_a_rewritten_newest_segment_that_lost_its_seal_is_not_cut(disk: FakeDisk, topic: Topic) -> None:
    topic.append(disk, 20, seal=True)
    dead = [(5, 8), (15, 20)]
    rewrite_segment(disk, topic.dir, load_segments(disk, topic.dir).segments[0], Ranges(dead))
    disk.unlink(topic.file("tags", 1))
    found = contents(disk, topic.dir)
    intact(found, topic)
    assert list(found.records) == seqs(1, 20, dead)
    assert found.loaded.segments[0].count == 20
    assert found.loaded.cuts == []


def test_payloads_are_told_apart() -> None:
    assert len({payload(seq) for seq in range(100)}) == 100
