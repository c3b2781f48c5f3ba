"""Every state in which a crash or a bad disk may leave the newest segment, and what loading makes of it."""

from __future__ import annotations

import pytest

from tests.support.fakedisk import FakeDisk
from tests.support.monitorfs import MonitorFs
from tests.unit.storage.segment_kit import (
    Topic,
    append_bytes,
    contents,
    cut,
    frames,
    intact,
    offset,
    seqs,
)
from topicd._native import core
from topicd.disk.loading import PAGE
from topicd.shards.storage.segment.load import load_segments


def test_a_torn_tail_is_cut_at_the_last_whole_record(disk: FakeDisk, three: Topic) -> None:
    more = frames(7, 61, 3)
    whole = len(frames(7, 61, 2))
    clean = disk.files()
    for size in (1, 3, 4, 37, 38, 60, whole - 1, whole, whole + 1, len(more) - 1):
        image = disk.image(0)
        append_bytes(image, three, more[:size])
        found = contents(MonitorFs(image), three.dir)
        intact(found, three)
        kept = sum(size >= len(frames(7, 61, n)) for n in (1, 2, 3))
        assert list(found.records) == seqs(1, 60 + kept)
        assert found.loaded.torn_bytes == size - len(frames(7, 61, kept))
        assert found.loaded.cuts == []
        assert image.size(three.file("data")) == len(clean[three.file("data")]) + len(frames(7, 61, kept))
        assert image.size(three.file("idx")) == (20 + kept) * 20


def test_zeros_behind_the_data_are_a_torn_tail(disk: FakeDisk, three: Topic) -> None:
    append_bytes(disk, three, bytes(5000))
    found = contents(disk, three.dir)
    intact(found, three)
    assert list(found.records) == seqs(1, 60)
    assert found.loaded.torn_bytes == 5000


def test_records_behind_the_index_are_durable_once_loaded(disk: FakeDisk, three: Topic) -> None:
    """As after SIGKILL: the page cache has them, the disk may not."""
    append_bytes(disk, three, frames(7, 61, 5))
    load_segments(disk, three.dir)
    assert list(contents(disk.image(0), three.dir).records) == seqs(1, 65)


def test_a_new_segment_found_after_sigkill_gets_a_durable_name(disk: FakeDisk, topic: Topic) -> None:
    disk.mkdir(topic.dir)
    disk.open(topic.file("data"), write=True, create=True).pwrite([frames(7, 1, 5)], 0)
    assert list(contents(disk, topic.dir).records) == seqs(1, 5)
    assert list(contents(disk.image(0), topic.dir).records) == seqs(1, 5)


@pytest.mark.parametrize("size", [0, 1, 19, 20, 25, 200, 399, 400])
def test_a_short_index_is_extended_from_the_data(disk: FakeDisk, three: Topic, size: int) -> None:
    whole = disk.files()[three.file("idx")]
    cut(disk, three, "idx", 41, size)
    found = contents(disk, three.dir)
    intact(found, three)
    assert list(found.records) == seqs(1, 60)
    assert disk.files()[three.file("idx")] == whole


@pytest.mark.parametrize("start", [0, 16, 100, 388])
def test_a_zeroed_or_wild_index_is_rebuilt(disk: FakeDisk, three: Topic, start: int) -> None:
    whole = disk.files()[three.file("idx")]
    for junk in (bytes(400), b"\xa5" * 400):
        disk.damage(three.file("idx"), start, junk[: 400 - start])
        found = contents(disk, three.dir)
        intact(found, three)
        assert list(found.records) == seqs(1, 60)
        assert disk.files()[three.file("idx")] == whole


def test_a_missing_index_is_rebuilt(disk: FakeDisk, three: Topic) -> None:
    whole = disk.files()[three.file("idx")]
    disk.unlink(three.file("idx"))
    assert list(contents(disk, three.dir).records) == seqs(1, 60)
    assert disk.files()[three.file("idx")] == whole


def test_an_index_longer_than_the_data_says_what_is_lost(disk: FakeDisk, three: Topic) -> None:
    cut(disk, three, "data", 41, offset(three, 55) + 3)
    found = contents(disk, three.dir)
    assert list(found.records) == seqs(1, 54)
    (damage,) = found.loaded.damage
    assert (damage.first_seq, damage.last_seq, damage.repaired) == (55, 60, False)
    assert disk.size(three.file("idx")) == 14 * 20
    assert load_segments(disk, three.dir).damage == []


def test_a_bad_last_record_that_the_index_names_is_damage_and_kept_aside(disk: FakeDisk, three: Topic) -> None:
    disk.damage(three.file("data"), offset(three, 60) + 40, b"\xa5")
    bad = disk.files()[three.file("data")][offset(three, 60) :]
    found = contents(disk, three.dir)
    assert list(found.records) == seqs(1, 59)
    (damage,) = found.loaded.damage
    assert (damage.first_seq, damage.last_seq, damage.repaired) == (60, 60, False)
    (kept,) = found.loaded.cuts
    assert disk.files()[kept.kept] == bad


def test_bit_rot_under_the_index_stays_and_is_never_served(disk: FakeDisk, three: Topic) -> None:
    disk.damage(three.file("data"), offset(three, 50) + 40, b"\xa5")
    found = contents(disk, three.dir)
    assert list(found.corrupt) == [(50, 50)]
    assert list(found.records) == seqs(1, 60, [(50, 50)])


def test_valid_frames_behind_a_bad_one_are_cut_but_not_silently(disk: FakeDisk, three: Topic) -> None:
    more = bytearray(frames(7, 61, 6))
    more[len(frames(7, 61, 2)) + 40] ^= 0xFF
    append_bytes(disk, three, bytes(more))
    found = contents(disk, three.dir)
    intact(found, three)
    assert list(found.records) == seqs(1, 62)
    (cut_off,) = found.loaded.cuts
    assert (cut_off.first_seq, cut_off.last_seq) == (63, 66)
    assert disk.image(0).files()[cut_off.kept] == bytes(more[len(frames(7, 61, 2)) :])
    assert found.loaded.torn_bytes == len(more) - len(frames(7, 61, 2))
    assert load_segments(disk, three.dir).cuts == []


def test_a_cut_is_durable_before_the_seqs_are_given_out_again(disk: FakeDisk, three: Topic) -> None:
    """Or a frame that was cut could come back beside the new record of its seq."""
    append_bytes(disk, three, b"\xa5" * 100 + frames(7, 61, 3))
    disk.sync_filesystem(three.dir)
    load_segments(disk, three.dir)
    assert (
        disk.image(0).size(three.file("data"))
        == disk.size(three.file("data"))
        == offset(three, 60) + len(frames(7, 60, 1))
    )


@pytest.mark.parametrize("stranger", [frames(8, 61, 2), frames(7, 60, 2), frames(7, 1, 2)])
def test_frames_that_do_not_belong_are_cut(disk: FakeDisk, three: Topic, stranger: bytes) -> None:
    append_bytes(disk, three, stranger)
    found = contents(disk, three.dir)
    intact(found, three)
    assert list(found.records) == seqs(1, 60)


def test_a_control_frame_does_not_belong_in_a_segment(disk: FakeDisk, three: Topic) -> None:
    frame = bytearray(frames(7, 61, 1))
    frame[4] = 6
    frame[-8:] = core.xxh3_64(bytes(frame[4:-8])).to_bytes(8, "little")
    append_bytes(disk, three, bytes(frame))
    assert list(contents(disk, three.dir).records) == seqs(1, 60)


@pytest.mark.parametrize("content", [b"", b"\0" * 700, b"\xa5" * 30])
def test_a_newest_segment_without_a_record_is_removed(disk: FakeDisk, topic: Topic, content: bytes) -> None:
    topic.append(disk, 20, seal=True)
    file = disk.open(topic.file("data"), write=True, create=True)
    file.pwrite([content], 0)
    disk.open(topic.file("idx"), write=True, create=True).close()
    loaded = load_segments(disk, topic.dir)
    assert [info.first_seq for info in loaded.segments] == [1]
    assert not disk.exists(topic.file("data"))
    topic.append(disk, 5)
    assert list(contents(disk, topic.dir).records) == seqs(1, 25)


def test_writing_goes_on_after_a_cut(disk: FakeDisk, three: Topic) -> None:
    append_bytes(disk, three, frames(7, 61, 1)[:-3])
    load_segments(disk, three.dir)
    three.append(disk, 10, seal=True)
    found = contents(disk.image(0), three.dir)
    intact(found, three)
    assert list(found.records) == seqs(1, 70)


@pytest.mark.fault("RDF-01")
def test_a_tail_that_cannot_be_read_is_kept_when_it_is_cut(disk: FakeDisk, three: Topic) -> None:
    """Written, perhaps synced, not in the index yet: the WAL should have it, and if not, somebody must say so."""
    data = three.file("data")
    size = disk.size(data)
    append_bytes(disk, three, frames(7, 61, 4, 3 * PAGE))
    lost_from = size + len(frames(7, 61, 1, 3 * PAGE))
    disk.spoil(data, lost_from + PAGE, disk.size(data))
    found = contents(disk, three.dir)
    assert list(found.records) == seqs(1, 61)
    [kept] = found.loaded.cuts
    assert (kept.first_seq, kept.kept.suffix) == (62, ".cut")
    assert disk.size(kept.kept) == found.loaded.torn_bytes > 0
    assert disk.size(data) == lost_from
    assert contents(disk, three.dir).records == found.records


@pytest.mark.fault("RDF-01")
def test_a_torn_tail_behind_an_index_that_cannot_be_read_is_kept_too(disk: FakeDisk, three: Topic) -> None:
    """What the index named is not known, so what is torn may have been durable."""
    append_bytes(disk, three, frames(7, 61, 2)[:-5])
    disk.spoil(three.file("idx"), 0, 1)
    found = contents(disk, three.dir)
    assert list(found.records) == seqs(1, 61)
    assert [kept.first_seq for kept in found.loaded.cuts] == [62]
    assert [(one.path.suffix, one.repaired) for one in found.loaded.damage] == [(".idx", True)]
    again = contents(disk, three.dir)
    assert (again.records, again.loaded.damage) == (found.records, [])
