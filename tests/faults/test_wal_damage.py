"""Bytes of WAL files that change behind our back: what was attested as synced is reported and never cut, what was not
is a torn tail and is cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.faults.machine import KIB, ROOT, SEED, Machine
from tests.faults.story import Story, all_classes
from tests.support.fakedisk import FakeDisk
from topicd.frames import TYPE_AT, core, parse_header
from topicd.limits import FRAME_OVERHEAD
from topicd.shards.storage import walfile
from topicd.shards.storage.walfile import GROUP, Group, LogReader

WAL_DIR = ROOT / "wal" / "shard-00"
FIRST = WAL_DIR / "wal-0000000000000000.log"


@pytest.fixture
def story(disk: FakeDisk) -> Iterator[Story]:
    with Machine(disk) as machine:
        made = Story(machine.open())
        all_classes(made)
        for _ in range(6):
            made.append("f", 2, 100)
        yield made


def groups(disk: FakeDisk) -> list[Group]:
    reader = LogReader(disk, WAL_DIR, SEED)
    return [group for chunk in reader.chunks() for group in chunk.groups]


def flip(disk: FakeDisk, path: Path, at: int) -> None:
    disk.damage(path, at, bytes([disk.files()[path][at] ^ 0xFF]))


def recovered(story: Story, disk: FakeDisk) -> tuple[list[str], list[int]]:
    """(damage, seqs of f) of a machine that starts on the disk after a loss of power."""
    with Machine(disk, previous=story.machine, power_lost=True) as machine:
        machine.open()
        return machine.damage(), [record.seq for record in machine.read_around_damage("f")]


@pytest.mark.fault("REC-03", "REC-04")
@pytest.mark.parametrize("where", ["header", "length", "payload"])
def test_damage_below_a_sync_mark_is_reported_and_the_rest_is_served(story: Story, disk: FakeDisk, where: str) -> None:
    found = groups(disk)
    victim = found[-4]
    at = {"header": victim.start - GROUP.size + 9, "length": victim.start - GROUP.size + 5, "payload": victim.end - 20}
    story.machine.abandon()
    flip(disk, FIRST, at[where])
    damage, seqs = recovered(story, disk)
    assert any("WAL" in line and str(FIRST) in line for line in damage)
    assert any("missing" in line or "bad frame" in line for line in damage)
    assert seqs[-1] == 12
    assert len(seqs) in (10, 11)  # the victim's two records, or the one whose frame was hit


@pytest.mark.fault("ROTT-15")
def test_a_log_file_that_is_longer_than_any_is_reported_and_never_read(
    story: Story, disk: FakeDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bytes would be more than memory holds: a sparse file somebody put there."""
    story.machine.abandon()
    monkeypatch.setattr(walfile, "WAL_FILE_MAX", len(disk.files()[FIRST]) - 1)
    reader = LogReader(disk, WAL_DIR, SEED)
    assert list(reader.chunks()) == []
    assert [file.path for file in reader.end.unknown] == [FIRST]
    assert [damage.path for damage in reader.end.damage] == [FIRST]


@pytest.mark.fault("REC-04")
def test_bad_frame_is_reported_with_the_place_where_it_stands(story: Story, disk: FakeDisk) -> None:
    victim = groups(disk)[-4]
    story.machine.abandon()
    flip(disk, FIRST, victim.start + 20)
    damage, _ = recovered(story, disk)
    assert any(f"bad frame at LSN {victim.lsn + GROUP.size} " in line for line in damage), damage


@pytest.mark.fault("REC-04")
def test_frame_of_an_unknown_type_is_reported_and_the_rest_is_served(story: Story, disk: FakeDisk) -> None:
    """As a newer release may have written it: whole, but nothing here knows what it changed."""
    story.machine.configure("f", cap_records=1000)
    story.append("f", 1, 100)
    victim = groups(disk)[-2]
    found = bytearray(disk.files()[FIRST][victim.start : victim.end])
    size = parse_header(found, 0).size
    found[TYPE_AT] = 40
    found[size - 8 : size] = core.xxh3_64(bytes(found[4 : size - 8])).to_bytes(8, "little")
    story.machine.abandon()
    disk.damage(FIRST, victim.start, bytes(found))
    damage, seqs = recovered(story, disk)
    assert damage == ["topic f: a frame of type 40 stands in the WAL, which is not known here"]
    assert seqs == list(range(1, 14))


@pytest.mark.fault("REC-05")
def test_zeroed_region_below_a_sync_mark_is_reported(story: Story, disk: FakeDisk) -> None:
    found = groups(disk)
    story.machine.abandon()
    start = found[-5].start - GROUP.size
    disk.damage(FIRST, start, bytes(found[-4].end - start))
    damage, seqs = recovered(story, disk)
    assert any("unreadable group" in line for line in damage)
    assert seqs[-1] == 12
    assert len(seqs) == 8


@pytest.mark.fault("REC-06")
def test_damage_in_the_newest_group_is_found_once_its_sync_was_attested(story: Story, disk: FakeDisk) -> None:
    last = groups(disk)[-1]
    torn = disk.image(1)
    story.machine.tick_wals()  # idle: an empty group says that all before it is synced
    story.machine.settle()
    story.machine.abandon()
    flip(torn, FIRST, last.end - 20)
    assert recovered(story, torn) == ([], list(range(1, 11)))
    attested = disk.image(1)
    flip(attested, FIRST, last.end - 20)
    damage, _ = recovered(story, attested)
    assert damage


@pytest.mark.fault("WAL-06")
def test_torn_tail_is_cut_for_good(story: Story, disk: FakeDisk) -> None:
    """Unsynced groups out of order: the first hole ends the log, and what lies behind never comes back."""
    for _ in range(3):
        story.append("d", 1, 600)
    found = groups(disk)
    story.machine.abandon()
    torn = disk.image(1)
    flip(torn, FIRST, found[-2].start - GROUP.size + 9)
    end = walfile.find_end(torn, WAL_DIR, SEED)
    assert end.torn
    assert end.lsn == found[-2].lsn
    assert end.damage == []
    assert walfile.cut(torn, WAL_DIR, end) > 0
    again = walfile.find_end(torn, WAL_DIR, SEED)
    assert (again.lsn, again.torn, again.damage) == (end.lsn, False, [])
    assert walfile.find_end(torn.image(0), WAL_DIR, SEED).lsn == end.lsn


def test_where_the_writer_stopped_nothing_is_searched_behind_and_damage_before_is_found(
    story: Story, disk: FakeDisk
) -> None:
    found = groups(disk)
    story.machine.abandon()
    known = found[-2].lsn
    end = walfile.find_end(disk, WAL_DIR, SEED, known)
    assert (end.lsn, end.torn, end.damage) == (known, False, [])
    flip(disk, FIRST, found[-5].start - GROUP.size + 9)
    end = walfile.find_end(disk, WAL_DIR, SEED, known)
    assert (end.lsn, end.torn) == (known, False)
    assert [damage.first_lsn for damage in end.damage] == [found[-5].lsn]


@pytest.mark.fault("WAL-06")
def test_group_behind_a_torn_tail_does_not_join_the_new_log(story: Story, disk: FakeDisk) -> None:
    """What is written after the start ends exactly where the old group begins."""
    for _ in range(3):
        story.append("m", 1, 900)
        story.machine.settle()
    torn, old = groups(disk)[-2:]
    story.machine.abandon()
    flip(disk, FIRST, torn.start - GROUP.size + 9)
    with Machine(disk, previous=story.machine, power_lost=True) as machine:
        machine.open()
        log = machine.wals[0]._committer.log
        machine.append("m", [bytes(old.lsn - log.lsn - GROUP.size - FRAME_OVERHEAD)])
        machine.settle()
        assert log.lsn == old.lsn
        seen = machine.read("m")
        machine.abandon()
        with Machine(disk, previous=machine, power_lost=True) as successor:
            assert successor.open().read("m") == seen


@pytest.mark.fault("REC-07")
def test_file_missing_in_the_middle_is_reported(story: Story, disk: FakeDisk) -> None:
    for _ in range(24):
        story.append("f", 1, 6 * KIB)
    story.machine.abandon()
    files = walfile.list_files(disk, WAL_DIR)
    assert len(files) > 2
    disk.unlink(files[1].path)
    disk.sync_dir(WAL_DIR)
    damage, seqs = recovered(story, disk)
    assert any("bytes missing before this file" in line for line in damage)
    assert seqs[-1] == 36


@pytest.mark.fault("ROT-02")
def test_old_bytes_of_a_recycled_file_are_never_taken_for_new_ones(disk: FakeDisk) -> None:
    with Machine(disk) as machine:
        machine.open().forget_wal()
        story = Story(machine)
        all_classes(story)
        story.append("f", 3)
        machine.abandon()
        for seed in range(7):
            with Machine(disk.image(seed), previous=machine, power_lost=True) as successor:
                assert story.on(successor.open()).problems(power_lost=True) == []
                assert successor.topics() == ["d", "f", "m"] or "m" not in successor.topics()


@pytest.mark.fault("REC-03", "REC-04", "REC-05")
def test_random_damage_never_breaks_a_start_nor_serves_a_wrong_record(story: Story, disk: FakeDisk) -> None:
    expected = {record.seq: record.data for record in story.machine.read("f")}
    end = groups(disk)[-1].end
    story.machine.abandon()
    for seed in range(40):
        chance, copy = Random(seed), disk.image(1)
        at = chance.randrange(end)
        copy.damage(FIRST, at, chance.randbytes(chance.choice((1, 8, 512))))
        with Machine(copy, previous=story.machine, power_lost=True) as machine:
            machine.open()
            if "f" not in machine.topics():
                assert machine.damage()
                continue
            for record in machine.read_around_damage("f"):
                assert expected[record.seq] == record.data
