"""Rotten, lost, exchanged and foreign files, as a start of all shards meets them. What each file may cost by itself is
in tests/unit/storage; random damage to everything at once is `make corrupt`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import machine as machine_module
from tests.faults.machine import ROOT, Machine
from tests.faults.story import Story
from tests.support.fakedisk import FakeDisk
from tests.support.faultfs import FaultFs
from topicd import paths
from topicd.cli.offline.check import check_all, jobs_in
from topicd.cli.offline.data_dir import Offline
from topicd.disk import datadir
from topicd.frames import FrameType, core
from topicd.shards.storage.walfile import LogReader

WAL_DIR = ROOT / "wal" / "shard-00"


def flip(disk: FakeDisk, path: Path, at: int, mask: int = 0x10) -> None:
    disk.damage(path, at, bytes([disk.files()[path][at] ^ mask]))


def files(disk: FakeDisk, suffix: str, below: str = "") -> list[Path]:
    return sorted(path for path in disk.files() if path.name.endswith(suffix) and below in str(path))


def records(machine: Machine, name: str) -> list[bytes]:
    return [record.data for record in machine.read_around_damage(name)]


def offline_damage(disk: FakeDisk) -> list[str]:
    data = paths.DataDir(ROOT)
    if not disk.exists(data.format):
        datadir._write(disk, data, datadir.Format(datadir.FORMAT_VERSION, 1, machine_module.SEED))
    disk.open(data.identity, write=True, create=True).close()
    found = [f for f in check_all(Offline(data, disk)).findings if f.severity == "damage"]
    return [str(finding) for finding in found if finding.path != data.identity]


@pytest.fixture
def forgotten(disk: FakeDisk) -> Machine:
    """Topics that the WAL has forgotten, one with deleted records; stopped in order."""
    with Machine(disk) as machine:
        story = Story(machine.open())
        for name in ("orders", "payments"):
            story.topic(name, "fsync")
            for number in range(4):
                story.append(name, 5, tag=("red", "green")[number % 2])
        story.checkpoint()
        story.delete("orders", tag="red")
        story.checkpoint()
        machine.forget_wal()
        machine.stop()
        return machine


def successor(disk: FakeDisk, previous: Machine) -> Machine:
    return Machine(disk, previous=previous, power_lost=True).open()


@pytest.mark.fault("ROTT-02")
def test_a_flipped_bit_in_a_snapshot_never_deletes_a_stream(disk: FakeDisk, forgotten: Machine) -> None:
    """Not one of them, and not all of them together."""
    found = files(disk, ".bin", "/meta/shard-")
    size = min(len(disk.files()[path]) for path in found)
    for at in [*range(24), *range(24, size, 211)]:
        for rotten in ([found[-1]], found):
            image = disk.image(1)
            for path in rotten:
                flip(image, path, at)
            with successor(image, forgotten) as machine:
                assert {"orders", "payments"} <= set(machine.topics())
                assert len(records(machine, "payments")) == 20
                assert len(records(machine, "orders")) == 10
                assert any("snapshot passed over" in line for line in machine.damage())
                assert any("adopted" in line for line in machine.damage()) == (len(rotten) > 1)


@pytest.mark.fault("ROTT-05")
def test_adopted_topics_are_known_from_then_on(disk: FakeDisk, forgotten: Machine) -> None:
    for path in [*files(disk, ".bin", "/meta/shard-"), *files(disk, ".log")]:
        disk.unlink(path)
    disk.sync_filesystem(ROOT)
    assert any("the next start adopts it as orders" in line for line in offline_damage(disk))
    with successor(disk, forgotten) as machine:
        assert sum("adopted" in line for line in machine.damage()) == 2
        assert len(records(machine, "orders")) == 10
        machine.append("orders", [b"goes on"])
        machine.stop()
        with Machine(disk, previous=machine) as again:
            assert again.open().damage() == []
            assert records(again, "orders")[-1] == b"goes on"


@pytest.mark.fault("ROTT-05")
def test_directory_without_a_label_that_nobody_knows_is_damage(disk: FakeDisk, forgotten: Machine) -> None:
    lost = [*files(disk, ".bin", "/meta/shard-"), *files(disk, ".log"), *files(disk, paths.TOPIC_NAME_FILE)]
    for path in lost:
        disk.unlink(path)
    disk.sync_filesystem(ROOT)
    assert sum("cannot tell whose it is" in line for line in offline_damage(disk)) == 2
    with successor(disk, forgotten) as machine:
        assert machine.topics() == []
        assert sum("does not say whose it is" in line for line in machine.damage()) == 2


@pytest.mark.fault("ROTT-06")
def test_an_acknowledged_record_is_never_lost_by_a_flipped_bit_elsewhere(disk: FakeDisk) -> None:
    """The frame that created its topic is rotten, and nothing else has its name yet."""
    with Machine(disk) as machine:
        story = Story(machine.open())
        story.topic("kept", "fsync")
        for _ in range(3):
            story.append("kept", 2)
        expected = records(machine, "kept")
        machine.tick_wals()
        machine.settle()
        machine.abandon()
        reader = LogReader(disk, WAL_DIR, machine_module.SEED)
        created = [
            (run.start, run.end, chunk.path)
            for chunk in reader.chunks()
            for group in chunk.groups
            for run in core.scan_frames(chunk.view, group.start, group.end).runs
            if run.type == FrameType.TOPIC_CREATE
        ]
        start, end, path = created[-1]
        for at in range(start, end):
            image = disk.image(1)
            flip(image, path, at)
            with successor(image, machine) as again:
                assert again.damage() != [], at
                found = [records(again, name) for name in again.topics()]
                assert expected in found, (at, again.topics(), again.damage())


@pytest.mark.fault("ROTT-07")
@pytest.mark.parametrize("how", ["deleted", "garbage", "directory", "zeros"])
def test_log_that_is_gone_is_damage_and_is_not_written_over(disk: FakeDisk, how: str) -> None:
    with Machine(disk) as machine:
        story = Story(machine.open())
        story.topic("f", "fsync")
        story.append("f", 3)
        story.checkpoint()
        machine.stop()
        (path,) = files(disk, ".log", "wal-")
        size = len(disk.files()[path])
        disk.unlink(path)
        if how == "directory":
            disk.mkdir(path / "inside")
        elif how != "deleted":
            disk.open(path, write=True, create=True).pwrite(
                [b"garbage " * (size // 8) if how == "garbage" else bytes(size)], 0
            )
        disk.sync_filesystem(ROOT)
        assert any("/wal/" in line for line in offline_damage(disk))
        with successor(disk, machine) as again:
            assert any("/wal/" in line for line in again.damage())
            assert len(records(again, "f")) == 3
            assert again.append("f", [b"next"]).first_seq == 4
            again.stop()
            kept = ROOT / "quarantine" / "wal" / "shard-00" / path.name
            if how == "garbage":
                assert disk.files()[kept] == b"garbage " * (size // 8)
            elif how == "directory":
                assert disk.exists(kept / "inside")
            with Machine(disk, previous=again) as third:
                assert third.open().damage() == []
                assert len(records(third, "f")) == 4


@pytest.mark.fault("ROTT-07")
def test_wrong_seed_does_not_overwrite_the_log(disk: FakeDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a rotten FORMAT of an older version would give it: it has no checksum."""
    with Machine(disk) as machine:
        story = Story(machine.open())
        story.topic("f", "fsync")
        story.append("f", 3)
        machine.settle()
        machine.abandon()
        before = {path.name: content for path, content in disk.files().items() if path.name.startswith("wal-")}
        with monkeypatch.context() as patched:
            patched.setattr(machine_module, "SEED", machine_module.SEED + 1)
            with successor(disk, machine) as blind:
                assert any("holds no group that can be read" in line for line in blind.damage())
        kept = {path.name: content for path, content in disk.files().items() if "quarantine" in path.parts}
        assert kept == before


@pytest.mark.fault("ROTT-08")
@pytest.mark.parametrize("number", [0, 1, 2])
def test_lost_data_file_costs_its_records_and_nothing_else(disk: FakeDisk, forgotten: Machine, number: int) -> None:
    path = files(disk, ".data", paths.topic_dir_name(2))[number]
    disk.unlink(path)
    disk.sync_filesystem(ROOT)
    assert any("the data file is missing" in line for line in offline_damage(disk))
    previous = forgotten
    for _ in range(3):
        with Machine(disk, previous=previous, power_lost=True) as machine:
            machine.open()
            assert machine.damage() != [] or previous is not forgotten
            assert 10 <= len(records(machine, "payments")) < 20
            assert len(records(machine, "orders")) == 10
            machine.stop()
            previous = machine


@pytest.mark.fault("ROTT-12")
@pytest.mark.parametrize("number", [0, -1])
def test_seal_of_an_unknown_version_costs_its_segment_and_nothing_else(
    disk: FakeDisk, forgotten: Machine, number: int
) -> None:
    path = files(disk, ".tags", paths.topic_dir_name(2))[number]
    raw = bytearray(disk.files()[path])
    raw[4] = 9
    raw[88:96] = core.xxh3_64(bytes(raw[:88])).to_bytes(8, "little")
    disk.damage(path, 0, bytes(raw))
    assert any("version 9" in line for line in offline_damage(disk))
    previous = forgotten
    for run in range(3):
        with Machine(disk, previous=previous, power_lost=True) as machine:
            machine.open()
            assert machine.damage() != [] or previous is not forgotten
            assert 10 <= len(records(machine, "payments")) < 20 + run
            assert len(records(machine, "orders")) == 10
            assert machine.append("payments", [b"more"]).first_seq == 21 + run
            machine.stop()
            previous = machine
    assert bytes(raw) in disk.files().values()


@pytest.mark.fault("ROTT-03")
def test_tag_delete_in_the_log_finds_its_records_behind_a_rotten_table(disk: FakeDisk) -> None:
    with Machine(disk) as machine:
        story = Story(machine.open())
        story.topic("f", "fsync")
        for number in range(4):
            story.append("f", 5, tag=("red", "green")[number % 2])
        story.checkpoint()
        story.delete("f", tag="red")
        machine.settle()
        machine.abandon()
        for path in files(disk, ".tags"):
            for at in range(0, len(disk.files()[path]), 7):
                image = disk.image(1)
                flip(image, path, at)
                with successor(image, machine) as again:
                    assert len(records(again, "f")) == 10, (path, at)


@pytest.mark.fault("ROTT-09")
def test_failing_snapshot_is_seen_until_one_succeeds(disk: FakeDisk) -> None:
    with Machine(disk) as machine:
        story = Story(machine.open())
        story.topic("f", "fsync")
        parts = machine.deliveries[0]
        assert parts.figures.page()["snapshot_failing"] == 0
        store = parts.snapshots._store
        store._fs = FaultFs(disk, fail_at=1, always=True)
        machine.snapshot()
        assert parts.figures.page()["snapshot_failing"] == 1
        store._fs = disk
        machine.snapshot()
        assert parts.figures.page()["snapshot_failing"] == 0


def test_directory_of_a_topic_without_segments_is_nothing_to_check(disk: FakeDisk) -> None:
    disk.mkdir(ROOT / "topics" / paths.topic_dir_name(1))
    assert jobs_in(disk, ROOT / "topics" / paths.topic_dir_name(1)) == []
    assert offline_damage(disk) == []
