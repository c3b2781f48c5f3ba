"""The disk does not give what it was given. One bad sector, in every page of every file: the start goes on around it,
what can be had is served, the rest is reported, and nobody gets a wrong byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.faults.machine import ROOT, SEED, Machine
from tests.support.fakedisk import FakeDisk
from tests.support.faultfs import FaultFs
from tests.support.oracle import Seen
from topicd._native import core
from topicd.cli.offline.check import check_all
from topicd.cli.offline.data_dir import Offline
from topicd.cli.offline.segment_check import DAMAGE
from topicd.disk.loading import PAGE
from topicd.errors import StorageCorrupt
from topicd.ipc.protocol.messages import Op
from topicd.limits import FRAME_OVERHEAD
from topicd.paths import DataDir, wal_file_name
from topicd.shards.storage.walfile import GROUP, cut, find_end, group_header

TOPICS = ("f", "d")
KEPT = 1  # the image of a disk that loses nothing
RECORD = 900
READS = {"pread", "read_into"}


class World:
    """A data directory with a bit of everything, killed; and what it should hold."""

    def __init__(self, disk: FakeDisk) -> None:
        self.disk = disk
        self.machine = Machine(disk, segment_max_records=12).open()
        for name, durability in zip(TOPICS, ("fsync", "disk"), strict=True):
            self.machine.configure(name, durability=durability)
        for n in range(30):
            self._append(n, tag=("red", "blue")[n % 2])
        self.machine.checkpoint()  # two sealed segments, an active one
        for name in TOPICS:
            self.machine.ask(name, Op.DELETE_RECORDS, match="red")
        self.machine.checkpoint()  # their deletion marks
        self.machine.snapshot()
        self.machine.snapshot()
        for n in range(30, 42):
            self._append(n)
        self.machine.settle()
        self.living = {name: {seen.seq: seen.data for seen in self.machine.read(name)} for name in TOPICS}
        self.machine.abandon()

    def _append(self, n: int, tag: str | None = None) -> None:
        for name in TOPICS:
            self.machine.append(name, [payload(name, n)], **({"tag": tag} if tag else {}))

    def pages(self) -> Iterator[tuple[Path, int]]:
        for path, content in sorted(self.disk.files().items()):
            for at in range(0, len(content.rstrip(b"\0")), PAGE):
                yield path, at

    def spoiled(self, path: Path, at: int) -> FakeDisk:
        image = self.disk.image(KEPT)
        image.spoil(path, at, at + 1)
        return image

    def successor(self, fs: Any, previous: Machine | None = None) -> Machine:
        return Machine(fs, previous=previous or self.machine, power_lost=True, segment_max_records=12)


def payload(topic: str, n: int) -> bytes:
    return b"%s %d " % (topic.encode(), n) + bytes([n]) * RECORD


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    made = World(FakeDisk(directories=[ROOT / name for name in ("meta", "wal", "topics")]))
    yield made
    made.machine.close()


def found_in(machine: Machine) -> dict[str, dict[int, bytes]]:
    """Readable records; StorageCorrupt is passed over, everything else raises."""
    return {name: {seen.seq: seen.data for seen in machine.read_around_damage(name)} for name in TOPICS}


def reported(machine: Machine) -> list[str]:
    return machine.damage() + [line for parts in machine.deliveries.values() for line in parts.counters.damage]


def check(world: World, machine: Machine, what: str, *, marks_unread: bool) -> None:
    found = found_in(machine)
    for name in TOPICS:
        right = {seq: payload(name, seq - 1) for seq in range(1, 43)}
        assert found[name].items() <= right.items(), f"{what}: wrong bytes"
        missing = world.living[name].keys() - found[name].keys()
        returned = found[name].keys() - world.living[name].keys()
        assert not missing or reported(machine), f"{what}: {name} {sorted(missing)} are not there, and nobody says so"
        assert not returned or (marks_unread and reported(machine)), f"{what}: {name} {sorted(returned)} came back"
        assert len(missing) <= 12, f"{what}: one page costs {len(missing)} records of {name}"
    for name in TOPICS:
        seq = machine.append(name, [b"later"]).first_seq
        assert machine.read_around_damage(name)[-1] == Seen(seq, b"later"), what


@pytest.mark.fault("RDF-01")
def test_a_start_goes_on_around_every_bad_sector_and_says_what_is_lost(world: World) -> None:
    suffixes = set()
    for path, at in world.pages():
        what = f"{path} at {at}"
        suffixes.add(path.suffix)
        with world.successor(world.spoiled(path, at)) as machine:
            check(world, machine.open(), what, marks_unread=path.suffix == ".del")
            machine.stop()
            with world.successor(machine.fs, machine) as again:
                again.open()
                found = found_in(again)
                assert all(found[name][max(found[name])] == b"later" for name in TOPICS), what
    assert suffixes >= {".data", ".idx", ".tags", ".del", ".bin", ".log"}, suffixes


@pytest.mark.fault("RDF-02")
def test_a_read_that_fails_once_costs_nothing_and_refuses_no_start(world: World) -> None:
    counting = FaultFs(world.disk.image(KEPT), reads=True)
    with world.successor(counting) as machine:
        machine.open()
        found_in(machine)
        calls = [number for number, (name, _) in enumerate(counting.calls, 1) if name in READS]
    assert len(calls) > 50
    for number in calls:
        fs = FaultFs(world.disk.image(KEPT), number, reads=True)
        with world.successor(fs) as machine:
            machine.open()
            assert found_in(machine) == world.living, fs.calls[number - 1]
            # Of a snapshot that cannot be read the one before it serves, and that is said.
            assert all("snapshot passed over" in line for line in machine.damage()), fs.calls[number - 1]


@pytest.mark.fault("RDF-03")
def test_fsck_names_every_bad_sector_by_file_and_range(world: World) -> None:
    class Seeded(Offline):
        @cached_property
        def format(self) -> Any:  # type: ignore[override]
            return SimpleNamespace(wal_seed=SEED)

    clean = check_all(Seeded(DataDir(ROOT), world.disk.image(KEPT)))
    damage = [finding for finding in clean.findings if finding.severity == DAMAGE]
    assert [finding.path for finding in damage] == [DataDir(ROOT).identity]  # no supervisor was here
    for path, at in world.pages():
        checked = check_all(Seeded(DataDir(ROOT), world.spoiled(path, at)))
        named = [str(finding) for finding in checked.findings if finding.path == path and finding.severity == DAMAGE]
        wanted = "cannot be read" if path.suffix == ".bin" else f"bytes {at} to "
        assert any(wanted in text for text in named), f"{path} at {at}: {named}"


@pytest.mark.fault("RDF-04")
def test_a_sector_that_goes_bad_under_a_running_shard_is_an_error_of_that_read(disk: FakeDisk) -> None:
    with Machine(disk, segment_max_records=12) as machine:
        machine.open()
        for name in TOPICS:
            machine.configure(name, durability="fsync")
            for n in range(12):
                machine.append(name, [payload(name, n)])
        machine.checkpoint()
        data = next(path for path in disk.files() if path.suffix == ".data")
        spoiled = next(name for name in TOPICS if f"{machine.topic_id(name):x}" in data.parent.name)
        disk.spoil(data, PAGE, PAGE + 1)
        before, next_from, _ = machine.read_some(spoiled, 0)
        assert [seen.seq for seen in before] == list(range(1, next_from + 1)) and 0 < next_from < 6
        for _ in range(2):
            with pytest.raises(StorageCorrupt) as caught:
                machine.read_some(spoiled, next_from)
        assert caught.value.detail["segment"] == str(data)
        assert caught.value.detail["first_seq"] == next_from + 1
        assert f"bytes {PAGE} to {2 * PAGE - 1} cannot be read" in caught.value.message
        around = {seen.seq: seen.data for seen in machine.read_around_damage(spoiled)}
        lost = set(range(1, 13)) - around.keys()
        assert lost == set(range(next_from + 1, caught.value.detail["last_seq"] + 1)) and len(lost) <= 6
        assert all(around[seq] == payload(spoiled, seq - 1) for seq in around)
        assert len(machine.delivery_of(spoiled).counters.damage) == 1  # logged and counted once
        other = next(name for name in TOPICS if name != spoiled)
        assert len(machine.read(other)) == 12


@pytest.mark.fault("RDF-05")
def test_a_checkpoint_seals_around_a_bad_sector(disk: FakeDisk) -> None:
    with Machine(disk, segment_max_records=12) as machine:
        machine.open()
        machine.configure("f", durability="fsync")
        for n in range(9):
            machine.append("f", [payload("f", n)])
        machine.checkpoint()
        machine.forget_wal()
        data = next(path for path in disk.files() if path.suffix == ".data")
        disk.spoil(data, PAGE, PAGE + 1)
        for n in range(9, 14):
            machine.append("f", [payload("f", n)])
        machine.checkpoint()
        assert disk.exists(data.with_suffix(".tags"))
        assert machine.delivery_of("f").counters.damage
        found = {seen.seq: seen.data for seen in machine.read_around_damage("f")}
        assert all(found[seq] == payload("f", seq - 1) for seq in found)
        assert 8 <= len(found) < 14 and {1, 10, 14} <= found.keys()


WAL_DIR = ROOT / "wal" / "shard-00"


def written(disk: FakeDisk, groups: int, synced: int) -> Path:
    """A log file of groups of one page each, zeros behind them. synced: how many were synced before the last was
    written."""
    disk.mkdir(WAL_DIR)
    path = WAL_DIR / wal_file_name(0)
    file = disk.open(path, write=True, create=True)
    for n in range(groups):
        frames = core.encode_batch([bytes(PAGE - GROUP.size - FRAME_OVERHEAD)], None, None, None)
        core.stamp_frames(frames, 0, len(frames), 7, n + 1, 1, True)
        attested = synced * PAGE if n == groups - 1 else 0
        file.pwrite([group_header(len(frames), n * PAGE, attested, 1, SEED), frames], n * PAGE)
    file.truncate(8 * PAGE)
    disk.sync_filesystem(ROOT)
    return path


@pytest.mark.fault("RDF-01")
def test_an_unread_group_is_not_torn_whether_its_sync_was_attested_or_not(disk: FakeDisk) -> None:
    path = written(disk, groups=4, synced=0)
    disk.spoil(path, PAGE, PAGE + 1)
    end = find_end(disk, WAL_DIR, SEED)
    assert (end.torn, end.unread, end.lsn) == (False, False, 4 * PAGE)
    assert [(one.first_lsn, one.last_lsn) for one in end.damage] == [(PAGE, 2 * PAGE - 1)]
    assert cut(disk, WAL_DIR, end) == 0


@pytest.mark.fault("RDF-01")
def test_a_log_whose_end_cannot_be_read_goes_on_in_another_file(disk: FakeDisk) -> None:
    path = written(disk, groups=4, synced=3)
    disk.spoil(path, 3 * PAGE, 3 * PAGE + 1)
    before = disk.files()[path]
    end = find_end(disk, WAL_DIR, SEED)
    assert (end.torn, end.unread, end.lsn) == (False, True, 8 * PAGE)
    assert [(one.first_lsn, one.last_lsn) for one in end.damage] == [(3 * PAGE, 4 * PAGE - 1)]
    with Machine(disk, wal_file_bytes=48 * 1024) as machine:
        machine.open()
        machine.configure("f", durability="fsync")
        machine.append("f", [b"later"])
        assert [seen.data for seen in machine.read("f")] == [b"later"]
        assert disk.files()[path] == before
        assert disk.exists(WAL_DIR / wal_file_name(8 * PAGE))


@pytest.mark.fault("RDF-01")
def test_a_bad_sector_behind_the_end_of_the_log_is_no_damage(disk: FakeDisk) -> None:
    path = written(disk, groups=3, synced=2)
    disk.spoil(path, 5 * PAGE, 5 * PAGE + 1)
    end = find_end(disk, WAL_DIR, SEED)
    assert (end.torn, end.unread, end.lsn, end.damage) == (False, False, 3 * PAGE, [])
