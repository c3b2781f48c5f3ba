"""A small part of the sweep over backups and restores (`make backup-faults` is all of it), and the single promises that
it rests on."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest

from tests.faults import backups
from tests.faults.backups import KINDS, SHELF, Held, NoLinks, World, busy, check_restored, check_shelf, whole
from tests.support.fakedisk import STYLES
from topicd.backup.create import CutMissed
from topicd.backup.restore import check_target
from topicd.backup.shelf import Shelf
from topicd.disk.fs import RealFs
from topicd.errors import Conflict

CASES = 14
SEED = 25


@pytest.mark.fault("BKP-01", "BKP-02", "BKP-03")
def test_interrupted_and_failing_backups_leave_nothing_that_looks_whole() -> None:
    calls, chance = backups.calls_of(), Random(SEED)
    found = []
    for number in range(CASES):
        found += backups.run_case(KINDS[number % len(KINDS)], chance.randint(1, calls))
    assert not found, "\n".join(found)


@pytest.mark.fault("BKP-03")
@pytest.mark.parametrize("room", [1, 3_000, 20_000])
def test_a_backup_into_a_full_disk_says_so_and_gives_back_its_room(room: int) -> None:
    world = World()
    try:
        used = sum(map(len, world.disk.files().values()))
        world.disk.capacity = used + room
        with pytest.raises(OSError, match=str(SHELF)) as caught:
            world.create(NoLinks(world.disk), Held(world.story))
        assert caught.value.errno == errno.ENOSPC
        assert world.disk.listdir(SHELF) == [] and world.disk.free_bytes(SHELF) > 0
        world.disk.capacity = None
        assert world.story.still_works() + world.story.problems(power_lost=False) == []
    finally:
        world.close()


@pytest.mark.fault("BKP-02")
def test_a_backup_that_was_finished_survives_the_loss_of_power() -> None:
    world = World()
    try:
        made = world.create(world.disk, Held(world.story, busy))
        for seed in range(len(STYLES)):
            disk = world.disk.image(seed)
            assert [name for name, _ in whole(disk)] == [made.id]
            assert check_shelf(disk) == []
    finally:
        world.close()


@pytest.mark.fault("BKP-04")
def test_an_interrupted_restore_leaves_no_data_directory() -> None:
    calls, chance = backups.restore_calls(), Random(SEED)
    found = []
    for call in (chance.randint(1, calls), chance.randint(calls // 2, calls), calls - 1, calls):
        found += backups.run_restore_case(call)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("links", [True, False], ids=["links", "copies"])
def test_a_second_backup_shares_what_the_first_has(links: bool) -> None:
    world = World()
    try:
        fs = world.disk if links else NoLinks(world.disk)
        first = world.create(fs, Held(world.story))
        assert (first.linked_bytes > 0) == links
        source = Held(world.story, busy)
        second = world.create(fs, source)
        segments = {path: world.disk.identify(path) for path in world.disk.files() if path.suffix == ".tags"}
        mine = [found for path, found in segments.items() if second.id in path.parts]
        others = [found.inode for path, found in segments.items() if second.id not in path.parts]
        assert len([found for found in mine if found.inode in others]) >= 6
        assert second.linked_bytes > 0
        assert source.at_cut is not None
        assert check_shelf(world.disk) == []
        assert check_restored(world, world.disk, second.id, second, source.at_cut) == []
    finally:
        world.close()


@pytest.mark.fault("BKP-05")
def test_a_changed_or_missing_byte_of_a_backup_is_found() -> None:
    world = World()
    try:
        made = world.create(world.disk, Held(world.story))
        below = SHELF / made.id
        for path in [path for path in world.disk.files() if below in path.parents]:
            disk = world.disk.image(1)
            content = disk.files()[path]
            if path.suffix in (".data", ".idx", ".tags"):
                continue  # shared with the data directory: fsck reads them
            if content:
                disk.damage(path, len(content) // 2, bytes([content[len(content) // 2] ^ 1]))
                assert check_shelf(disk) or not list(whole(disk)), path
            disk.unlink(path)
            assert check_shelf(disk) or not list(whole(disk)), path
    finally:
        world.close()


@pytest.mark.fault("BKP-06")
def test_a_hold_that_lapses_fails_the_backup_and_nothing_else() -> None:
    world = World()
    try:

        def lapse(story: object, step: str) -> None:
            if step == "still":
                for parts in world.machine.deliveries.values():
                    parts.backup_hold._lapse()

        with pytest.raises(Conflict):
            world.create(world.disk, Held(world.story, lapse))
        assert list(whole(world.disk)) == []
        assert world.story.still_works() + world.story.problems(power_lost=False) == []
        assert not any(parts.backlog.held for parts in world.machine.deliveries.values())
    finally:
        world.close()


def test_a_missed_cut_is_tried_again() -> None:
    world = World()
    try:

        class Late(Held):
            missed = 0

            def cut(self) -> dict[int, int]:
                if self.missed < 2:
                    self.missed += 1
                    raise CutMissed("a shard was away")
                return super().cut()

        source = Late(world.story, busy)
        made = world.create(world.disk, source)
        assert source.at_cut is not None
        assert check_restored(world, world.disk, made.id, made, source.at_cut) == []
        assert [one.whole for one in Shelf(world.disk, SHELF).list()] == [True]
    finally:
        world.close()


def test_nothing_is_restored_into_a_backup_or_a_data_directory(tmp_path: Path) -> None:
    fs = RealFs()
    (tmp_path / "data" / "meta").mkdir(parents=True)
    (tmp_path / "data" / "FORMAT").touch()
    (tmp_path / "shelf" / "one" / "data").mkdir(parents=True)
    (tmp_path / "shelf" / "one" / "manifest.bin").touch()
    for place in ("data/mine", "data/meta/mine", "shelf/one/mine", "shelf/one/data/mine"):
        with pytest.raises(Conflict, match="lies in the "):
            check_target(fs, tmp_path / place)
    for place in ("mine", "shelf/mine"):
        check_target(fs, tmp_path / place)
