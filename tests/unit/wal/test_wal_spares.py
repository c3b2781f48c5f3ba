"""Spare WAL files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemon import wait_until
from tests.support.fakedisk import FakeDisk
from topicd import paths
from topicd.limits import KIB, MIB
from topicd.shards.storage.walfile import WalFile
from topicd.shards.wal import spares as module
from topicd.shards.wal.log import WalLog
from topicd.shards.wal.spares import KEPT, KEPT_IN_FLOOD, Spares

ROOT = Path("/wal/shard-00")
SIZE = 3 * MIB


@pytest.fixture
def disk() -> FakeDisk:
    return FakeDisk(directories=[ROOT])


@pytest.fixture
def spares(disk: FakeDisk, monkeypatch: pytest.MonkeyPatch) -> Iterator[Spares]:
    """Whose filler makes its first step and then waits for the end of the test."""
    monkeypatch.setattr(module, "_PACE_S", 60.0)
    monkeypatch.setattr(module, "_REST_S", 60.0)
    monkeypatch.setattr(module, "_OVERTAKEN_S", 60.0)
    made = Spares(disk, ROOT, SIZE, lambda: 0)
    made.open()
    yield made
    made.close()


def absorbed(disk: FakeDisk, number: int) -> Path:
    path = ROOT / paths.wal_file_name(number * SIZE)
    disk.open(path, write=True, create=True).pwrite([bytes(SIZE)], 0)
    return path


def test_owner_that_overtakes_the_filler_writes_on_and_its_bytes_stay(disk: FakeDisk, spares: Spares) -> None:
    taken = spares.take()
    spares.overtake(taken, SIZE - 10)
    taken.file.pwrite([b"x" * (SIZE - 10)], 0)
    spares._fill_step(taken, bytes(MIB))
    assert taken.file.pread(SIZE, 0) == b"x" * (SIZE - 10) + bytes(10)


def test_the_filler_keeps_a_little_ahead_of_a_writer_and_goes_on_when_nobody_writes(
    disk: FakeDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_AHEAD", MIB // 2)
    monkeypatch.setattr(module, "_STEP", MIB // 8)
    monkeypatch.setattr(module, "_PACE_S", 0.0)
    monkeypatch.setattr(module, "_REST_S", 0.0)
    begins, at, looked, writes = 4096, 0, [], True

    def reached() -> int:
        """Somebody writes whenever the filler looks."""
        nonlocal at
        if writes:
            at += 1
            looked.append(taken.filled_to)
            made._stopping = looked[-4:].count(looked[-1]) == 4  # it goes no further
        return begins + at

    made = Spares(disk, ROOT, SIZE, reached)
    taken = made._start_one()
    taken.first_lsn = begins
    made._fill_forever()
    assert taken.filled_to == MIB // 2 + MIB // 8
    at, made._stopping, looked = MIB // 4, False, []
    made._fill_forever()
    assert taken.filled_to == MIB // 4 + MIB // 2 + MIB // 8
    writes, made._stopping = False, False
    made.open()
    wait_until(lambda: taken.filled_to == SIZE, "the file is full")
    made.close()


def test_file_that_its_owner_filled_is_recycled(disk: FakeDisk, spares: Spares) -> None:
    taken = spares.take()
    spares.overtake(taken, SIZE - 10)
    taken.file.pwrite([b"x" * (SIZE - 10)], 0)
    spares.finish(taken)
    spares.recycle(taken.path)
    assert spares.take().filled_to == SIZE


def test_files_of_a_flood_stay_until_it_is_quiet(disk: FakeDisk, spares: Spares) -> None:
    for number in range(KEPT_IN_FLOOD + 2):
        spares.recycle(absorbed(disk, number))
    assert len(disk.listdir(ROOT)) == KEPT_IN_FLOOD
    for _ in range(module._QUIET_TICKS):
        spares.tick()
    spares.take()
    spares.tick()
    assert len(disk.listdir(ROOT)) == KEPT_IN_FLOOD
    for _ in range(module._QUIET_TICKS):
        spares.tick()
    assert len(disk.listdir(ROOT)) == KEPT + 1


def test_flood_into_new_files_waits_for_no_zeros(disk: FakeDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PACE_S", 60.0)
    wal = WalLog(disk, ROOT, SIZE, 1, 7)
    wal.open(0, None)
    for _ in range(8):
        wal.append([b"y" * MIB], MIB)
        wal.sync()
    assert wal.rotations == 3
    assert all(disk.size(file.path) == SIZE for file in wal.finished_files())
    wal.close()


def test_file_that_was_absorbed_in_time_is_the_next_one(disk: FakeDisk) -> None:
    wal = WalLog(disk, ROOT, SIZE, 1, 7)
    wal.open(0, None)
    for lacks in (False, False, True):
        wal.append([b"y" * 900 * KIB], 900 * KIB)
        assert wal.lacks_successor is lacks
    old = absorbed(disk, 1)
    wal.recycle(WalFile(SIZE, old))
    wal.prepare_successor()
    assert not wal.lacks_successor
    assert wal.fits(KIB)
    assert not wal.fits(MIB)
    wal.append([b"y" * MIB], MIB)
    assert len(disk.listdir(ROOT)) == 2
    wal.close()
