"""Lock and FORMAT of the data directory."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from topicd.disk import datadir
from topicd.disk.datadir import LockHeld
from topicd.disk.fs import RealFs
from topicd.errors import FormatError
from topicd.paths import DataDir


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    return DataDir(tmp_path)


class WatchedFs(RealFs):
    def __init__(self) -> None:
        super().__init__()
        self.synced: list[Path] = []

    def sync_dir(self, path: Path) -> None:
        self.synced.append(path)
        super().sync_dir(path)


def test_new_directories_are_durable(tmp_path: Path) -> None:
    fs = WatchedFs()
    datadir.make_directory(fs, tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c").is_dir()
    assert set(fs.synced) == {tmp_path, tmp_path / "a", tmp_path / "a" / "b"}
    datadir.make_directory(fs, tmp_path / "a" / "b" / "c")
    assert len(fs.synced) == 3


def test_lock_holds_the_pid_and_is_free_again_after_close(data: DataDir) -> None:
    fd = datadir.take_lock(data, 0)
    assert data.lock.read_text() == f"{os.getpid()}\n"
    with pytest.raises(LockHeld, match=f"pid {os.getpid()}"):
        datadir.take_lock(data, 5)
    os.close(fd)
    os.close(datadir.take_lock(data, 0))


def test_lock_is_not_inherited_by_accident(data: DataDir) -> None:
    fd = datadir.take_lock(data, 0)
    assert not os.get_inheritable(fd)
    os.close(fd)


def test_lock_kept_by_children_of_a_dead_holder_is_waited_for_and_then_refused(data: DataDir) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    with data.lock.open("w+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        held.write(f"{dead.pid}\n")
        held.flush()
        with pytest.raises(LockHeld, match=f"still in use by processes of a dead topicd .*{dead.pid}"):
            datadir.take_lock(data, 0.1)


def test_lock_held_by_an_unknown_is_refused_at_once(data: DataDir) -> None:
    with data.lock.open("w+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(LockHeld, match=r"in use by another topicd$"):
            datadir.take_lock(data, 3600)


def test_format_is_made_once_and_read_ever_after(data: DataDir) -> None:
    made = datadir.open_format(RealFs(), data)
    assert made.version == 7
    assert 0 <= made.wal_seed < 2**64
    assert datadir.open_format(RealFs(), data) == made
    assert json.loads(data.format.read_text())["wal_seed"] == made.wal_seed
    assert [path.name for path in data.root.iterdir() if path.is_file()] == ["FORMAT"]


@pytest.mark.parametrize("raw", ["", "{}", "[1]", "null", '{"version": 1, "created_ms": "x", "wal_seed": 0}', "\x00"])
def test_damaged_format_is_refused(data: DataDir, raw: str) -> None:
    data.format.write_text(raw)
    with pytest.raises(FormatError, match="restore it from a backup"):
        datadir.open_format(RealFs(), data)


def test_format_of_another_version_is_refused(data: DataDir) -> None:
    data.format.write_text('{"version": 8, "created_ms": 0, "wal_seed": 0}')
    with pytest.raises(FormatError, match="version 8, this topicd knows version 7"):
        datadir.open_format(RealFs(), data)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_format_of_versions_before_is_read_and_upgraded_by_who_writes(data: DataDir, version: int) -> None:
    data.format.write_text(f'{{"version": {version}, "created_ms": 5, "wal_seed": 6}}')
    found = datadir.open_format(RealFs(), data)
    assert (found.version, json.loads(data.format.read_text())["version"]) == (version, version)
    assert datadir.upgrade(RealFs(), data, found) == datadir.open_format(RealFs(), data) == (7, 5, 6)


@pytest.mark.parametrize("value", ['"2"', "2.0", "true", "-1", "18446744073709551616", "null"])
@pytest.mark.parametrize("name", ["version", "created_ms", "wal_seed"])
def test_format_takes_nothing_but_whole_numbers(data: DataDir, name: str, value: str) -> None:
    fields = {"version": "2", "created_ms": "1", "wal_seed": "1", name: value}
    data.format.write_text("{" + ", ".join(f'"{key}": {text}' for key, text in fields.items()) + "}")
    with pytest.raises(FormatError, match="restore it from a backup"):
        datadir.open_format(RealFs(), data)


@pytest.mark.fault("ROTT-01")
def test_every_changed_byte_of_format_is_noticed(data: DataDir) -> None:
    datadir.open_format(RealFs(), data)
    raw = data.format.read_bytes()
    for at in range(len(raw)):
        for bit in range(8):
            changed = bytearray(raw)
            changed[at] ^= 1 << bit
            data.format.write_bytes(changed)
            with pytest.raises(FormatError, match=r"restore it from a backup|this topicd knows version"):
                datadir.open_format(RealFs(), data)
    for size in range(len(raw)):
        data.format.write_bytes(raw[:size])
        with pytest.raises(FormatError, match="restore it from a backup"):
            datadir.open_format(RealFs(), data)


def test_format_is_not_invented_where_there_is_data(data: DataDir) -> None:
    data.wal_shard(0).mkdir(parents=True)
    with pytest.raises(FormatError, match="FORMAT is missing although there is data"):
        datadir.open_format(RealFs(), data)


def test_an_interrupted_creation_is_repeated(data: DataDir) -> None:
    data.format.with_name("FORMAT.tmp").write_text("half")
    datadir.open_format(RealFs(), data)
    assert [path.name for path in data.root.iterdir() if path.is_file()] == ["FORMAT"]
