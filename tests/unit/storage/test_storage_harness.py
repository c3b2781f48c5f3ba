"""The test disks tested: one that forgets too little, or watches too little, would prove nothing."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from tests.support.fakedisk import SECTOR, STYLES, FakeDisk
from tests.support.faultfs import Crashed, FaultFs
from tests.support.monitorfs import MonitorFs, OrderViolation
from topicd.disk.fs import Fs
from topicd.shards.storage.segment.index import ENTRY

HOME = Path("/home")
FILE = HOME / "file"
SEEDS = range(len(STYLES) * 30)


@pytest.fixture
def disk() -> FakeDisk:
    return FakeDisk(directories=[HOME])


def put(fs: Fs, path: Path, data: bytes, *, sync: bool = True, offset: int = 0) -> None:
    file = fs.open(path, write=True, create=True)
    file.pwrite([data], offset)
    if sync:
        file.sync()
    file.close()


def outcomes(disk: FakeDisk, path: Path) -> set[bytes | None]:
    return {disk.image(seed).files().get(path) for seed in SEEDS}


# ---- FakeDisk ----


def test_synced_bytes_under_a_synced_name_always_survive(disk: FakeDisk) -> None:
    put(disk, FILE, b"x" * 2000)
    disk.sync_dir(HOME)
    assert outcomes(disk, FILE) == {b"x" * 2000}


def test_a_name_that_was_not_synced_may_be_missing_or_there(disk: FakeDisk) -> None:
    put(disk, FILE, b"x" * 2000)
    assert outcomes(disk, FILE) == {None, b"x" * 2000}


def test_bytes_that_were_not_synced_may_be_lost_torn_zeroed_or_there(disk: FakeDisk) -> None:
    put(disk, FILE, b"")
    disk.sync_dir(HOME)
    put(disk, FILE, b"x" * 2000, sync=False)
    found = outcomes(disk, FILE)
    assert {b"", b"x" * 2000, bytes(2000)} <= found
    assert any(data and data == b"x" * len(data) and len(data) < 2000 for data in found)
    assert any(data and b"\0" in data and data.endswith(b"x") for data in found)
    assert len(found) > 10


def test_a_synced_sector_is_never_harmed_by_its_neighbours(disk: FakeDisk) -> None:
    put(disk, FILE, b"o" * SECTOR * 2)
    disk.sync_dir(HOME)
    put(disk, FILE, b"n" * SECTOR, sync=False, offset=SECTOR)
    for data in outcomes(disk, FILE):
        assert data in {b"o" * SECTOR * 2, b"o" * SECTOR + b"n" * SECTOR}


def test_old_bytes_of_a_sector_stay_when_more_are_appended_to_it(disk: FakeDisk) -> None:
    put(disk, FILE, b"o" * 100)
    disk.sync_dir(HOME)
    put(disk, FILE, b"n" * 300, sync=False, offset=100)
    for data in outcomes(disk, FILE):
        assert data is not None
        assert data.startswith(b"o" * 100)


def test_later_writes_may_survive_earlier_ones(disk: FakeDisk) -> None:
    put(disk, FILE, bytes(SECTOR * 2))
    disk.sync_dir(HOME)
    put(disk, FILE, b"1" * SECTOR, sync=False)
    put(disk, FILE, b"2" * SECTOR, sync=False, offset=SECTOR)
    assert bytes(SECTOR) + b"2" * SECTOR in outcomes(disk, FILE)


def test_renames_unlinks_and_truncations_wait_for_their_sync(disk: FakeDisk) -> None:
    other = HOME / "other"
    put(disk, FILE, b"new")
    put(disk, other, b"old")
    disk.sync_dir(HOME)
    disk.rename(FILE, other)
    assert outcomes(disk, other) == {b"old", b"new"}
    disk.sync_dir(HOME)
    assert outcomes(disk, other) == {b"new"}
    assert outcomes(disk, FILE) == {None}
    file = disk.open(other, write=True)
    file.truncate(1)
    assert {b"new", b"n"} <= outcomes(disk, other)
    file.sync_data()
    assert outcomes(disk, other) == {b"n"}
    disk.unlink(other)
    assert outcomes(disk, other) == {None, b"n"}
    disk.sync_dir(HOME)
    assert outcomes(disk, other) == {None}


def test_a_rename_is_done_whole_or_not_at_all(disk: FakeDisk) -> None:
    put(disk, FILE, b"x")
    disk.sync_dir(HOME)
    disk.rename(FILE, HOME / "other")
    for seed in SEEDS:
        assert len(disk.image(seed).listdir(HOME)) == 1


def test_a_directory_counts_when_its_parent_was_synced(disk: FakeDisk) -> None:
    disk.mkdir(HOME / "a" / "b")
    put(disk, HOME / "a" / "b" / "f", b"x")
    disk.sync_dir(HOME / "a" / "b")
    disk.sync_dir(HOME / "a")
    assert disk.image(0).listdir(HOME) == []
    disk.sync_dir(HOME)
    assert disk.image(0).files() == {HOME / "a" / "b" / "f": b"x"}


def test_sync_filesystem_makes_everything_durable(disk: FakeDisk) -> None:
    disk.mkdir(HOME / "a")
    put(disk, HOME / "a" / "f", b"x", sync=False)
    assert disk.unsynced() == [HOME, HOME / "a", HOME / "a" / "f"]
    disk.sync_filesystem(HOME)
    assert disk.unsynced() == []
    assert outcomes(disk, HOME / "a" / "f") == {b"x"}


def test_a_failed_sync_loses_the_bytes_until_they_are_written_again(disk: FakeDisk) -> None:
    put(disk, FILE, b"old")
    disk.sync_dir(HOME)
    failing = FaultFs(disk, fail_at=2)
    with pytest.raises(OSError):
        put(failing, FILE, b"new")
    assert disk.files()[FILE] == b"new"
    file = disk.open(FILE, write=True)
    file.sync()
    assert disk.image(0).files()[FILE] == b"old"
    put(disk, FILE, b"new")
    assert disk.image(0).files()[FILE] == b"new"


def test_crash_kills_handles_and_an_image_does_not(disk: FakeDisk) -> None:
    put(disk, FILE, b"x")
    file = disk.open(FILE, write=True)
    disk.image(0)
    file.pwrite([b"y"], 0)
    disk.crash(1)
    with pytest.raises(OSError) as caught:
        file.pread(1, 0)
    assert caught.value.errno == errno.EBADF
    assert disk.files() == {FILE: b"y"}


def test_the_same_seed_leaves_the_same_disk(disk: FakeDisk) -> None:
    put(disk, FILE, bytes(range(256)) * 20, sync=False)
    for seed in SEEDS:
        assert disk.image(seed).files() == disk.image(seed).files()


def test_a_full_disk_takes_what_fits(disk: FakeDisk) -> None:
    disk.capacity = 10
    with pytest.raises(OSError) as caught:
        put(disk, FILE, b"x" * 20)
    assert caught.value.errno == errno.ENOSPC
    assert disk.files()[FILE] == b"x" * 10
    assert disk.free_bytes(HOME) == 0
    put(disk, FILE, b"y" * 10)
    disk.unlink(FILE)
    assert disk.free_bytes(HOME) == 10


def test_many_threads_may_write(disk: FakeDisk) -> None:
    def work(number: int) -> None:
        for turn in range(50):
            put(disk, HOME / f"{number}-{turn}", b"x")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(disk.files()) == 200


def test_a_fake_file_has_no_descriptor(disk: FakeDisk) -> None:
    put(disk, FILE, b"x")
    with pytest.raises(OSError):
        disk.open(FILE).fileno()


# ---- FaultFs ----


def test_mutating_calls_are_counted_and_reads_only_on_request(disk: FakeDisk) -> None:
    fs = FaultFs(disk)
    put(fs, FILE, b"x")
    fs.open(FILE, write=True, create=True).pread(1, 0)
    fs.exists(FILE)
    fs.rename(FILE, HOME / "b")
    fs.sync_dir(HOME)
    assert [name for name, _ in fs.calls] == ["create", "pwrite", "sync", "rename", "sync_dir"]
    reading = FaultFs(disk, reads=True)
    reading.open(HOME / "b").pread(1, 0)
    assert [name for name, _ in reading.calls] == ["open", "pread"]


def test_one_call_fails_or_every_one_from_it_on(disk: FakeDisk) -> None:
    once = FaultFs(disk, fail_at=2, errno=errno.ENOSPC)
    with pytest.raises(OSError) as caught:
        put(once, FILE, b"x")
    assert caught.value.errno == errno.ENOSPC
    put(once, FILE, b"x")
    assert once.failures == 1
    always = FaultFs(disk, fail_at=1, always=True)
    for _ in range(3):
        with pytest.raises(OSError):
            always.sync_dir(HOME)
    assert always.failures == 3


def test_a_short_write_stores_half(disk: FakeDisk) -> None:
    with pytest.raises(OSError):
        put(FaultFs(disk, fail_at=2, short=True), FILE, b"12345678")
    assert disk.files()[FILE] == b"1234"


def test_nothing_gets_through_after_the_crash(disk: FakeDisk) -> None:
    fs = FaultFs(disk, crash_after=2)
    with pytest.raises(Crashed):
        put(fs, FILE, b"x")
    assert disk.files()[FILE] == b"x"
    for call in (lambda: fs.unlink(FILE), lambda: fs.exists(FILE), lambda: fs.sync_dir(HOME)):
        with pytest.raises(Crashed):
            call()
    with pytest.raises(Crashed):
        FaultFs(disk, crash_after=0).sync_dir(HOME)


# ---- MonitorFs ----

SEG = HOME / "seg-00000000000000000001.data"
IDX, TAGS, DEL = (SEG.with_suffix(suffix) for suffix in (".idx", ".tags", ".del"))
ENTRY_OF_100 = ENTRY.pack(0, 100, 0, 0)


@pytest.fixture
def monitor(disk: FakeDisk) -> MonitorFs:
    return MonitorFs(disk)


def test_a_rename_of_unsynced_bytes_is_noticed(monitor: MonitorFs) -> None:
    put(monitor, FILE, b"x", sync=False)
    with pytest.raises(OrderViolation, match="before its sync"):
        monitor.rename(FILE, HOME / "b")
    assert len(monitor.violations) == 1
    put(monitor, FILE, b"x")
    monitor.rename(FILE, HOME / "b")


def test_an_index_before_its_data_is_noticed(monitor: MonitorFs) -> None:
    put(monitor, SEG, bytes(100), sync=False)
    with pytest.raises(OrderViolation, match=r"written before .*data was synced"):
        put(monitor, IDX, ENTRY_OF_100)
    put(monitor, SEG, bytes(100))
    with pytest.raises(OrderViolation, match=r"before the name .*data"):
        put(monitor, IDX, ENTRY_OF_100)
    monitor.sync_dir(HOME)
    put(monitor, IDX, ENTRY_OF_100)
    put(monitor, SEG, bytes(100), sync=False, offset=100)
    put(monitor, IDX, ENTRY_OF_100)


def test_a_seal_before_data_and_index_is_noticed(monitor: MonitorFs) -> None:
    put(monitor, SEG, bytes(100))
    monitor.sync_dir(HOME)
    put(monitor, IDX, ENTRY_OF_100, sync=False)
    put(monitor, TAGS.with_suffix(".tags.tmp"), b"seal")
    with pytest.raises(OrderViolation, match=r"sealed before .*idx was synced"):
        monitor.rename(TAGS.with_suffix(".tags.tmp"), TAGS)
    put(monitor, IDX, ENTRY_OF_100)
    monitor.rename(TAGS.with_suffix(".tags.tmp"), TAGS)


def test_marks_that_go_before_their_data_are_noticed(monitor: MonitorFs) -> None:
    put(monitor, SEG, bytes(100))
    put(monitor, DEL, b"mark")
    monitor.sync_dir(HOME)
    with pytest.raises(OrderViolation, match="can come back"):
        monitor.unlink(DEL)
    monitor.unlink(SEG)
    with pytest.raises(OrderViolation, match="can come back"):
        monitor.unlink(DEL)
    monitor.sync_dir(HOME)
    monitor.unlink(DEL)


def test_an_old_snapshot_that_goes_too_early_is_noticed(monitor: MonitorFs) -> None:
    old, new = HOME / "snapshot-1.bin", HOME / "snapshot-2.bin"
    put(monitor, old, b"x")
    monitor.sync_dir(HOME)
    with pytest.raises(OrderViolation, match="before a newer snapshot"):
        monitor.unlink(old)
    put(monitor, new, b"y")
    with pytest.raises(OrderViolation, match="before a newer snapshot"):
        monitor.unlink(old)
    monitor.sync_dir(HOME)
    monitor.unlink(old)


def test_copy_then_pointer_then_delete(monitor: MonitorFs) -> None:
    copy, pointer, original = HOME / "copy", HOME / "pointer", HOME / "original"
    put(monitor, original, b"x")
    put(monitor, HOME / "next", b"->copy")
    monitor.sync_dir(HOME)
    monitor.watch(copy, pointer, original)
    put(monitor, copy, b"x")
    with pytest.raises(OrderViolation, match="before the copy"):
        monitor.rename(HOME / "next", pointer)
    monitor.sync_dir(HOME)
    monitor.rename(HOME / "next", pointer)
    with pytest.raises(OrderViolation, match="before copy and pointer"):
        monitor.unlink(original)
    monitor.sync_dir(HOME)
    monitor.unlink(original)


def test_an_early_ack_is_noticed(monitor: MonitorFs) -> None:
    put(monitor, FILE, b"x" * 100)
    with pytest.raises(OrderViolation, match="ack up to 100"):
        monitor.note_ack(FILE, 100)
    monitor.sync_dir(HOME)
    monitor.note_ack(FILE, 100)
    put(monitor, FILE, b"y" * 10, sync=False, offset=100)
    monitor.note_ack(FILE, 100)
    with pytest.raises(OrderViolation, match="ack up to 101"):
        monitor.note_ack(FILE, 101)


def test_a_failed_sync_does_not_count(disk: FakeDisk) -> None:
    monitor = MonitorFs(FaultFs(disk, fail_at=3))
    with pytest.raises(OSError):
        put(monitor, FILE, b"x")
    with pytest.raises(OrderViolation):
        monitor.note_ack(FILE, 1)
