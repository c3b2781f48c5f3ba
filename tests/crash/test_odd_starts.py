"""Starts that find the machine or the directory in a state that nobody planned: each serves, or ends with a line that
says why; none ends with a traceback, and none touches what is not its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemon import LIVELY, Daemon, wait_until
from tests.support.refusing import Refusals

SMALL = {"wal_shards": 1, "delivery_shards": 1, **LIVELY}


def outcome(daemon: Daemon) -> str:
    """Until it serves or has left; its log."""
    daemon.start()
    wait_until(
        lambda: (
            not daemon.running
            or all(
                row["state"] == "serving"
                for row in (daemon.try_status() or {"processes": [{"state": ""}]})["processes"]
            )
        ),
        "an outcome",
    )
    return daemon.log


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    mounted = tmp_path / "disk"
    mounted.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", mounted], check=False).returncode:
        pytest.skip("mounting is not permitted here")
    yield mounted
    subprocess.run(["umount", mounted], check=True)


@pytest.mark.fault("ODD-01")
@pytest.mark.parametrize("left", [0, 16 << 10, 256 << 10, 2 << 20])
def test_a_start_on_a_full_disk_says_so(full_disk: Path, left: int) -> None:
    """With so many bytes left."""
    daemon = Daemon(full_disk, **SMALL)
    daemon.log_path = full_disk.parent / "topicd.log"
    with (full_disk / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(64 << 10))
        except OSError:
            file.truncate(max(0, file.tell() - left))
    serves_or_says_so(daemon)


@pytest.mark.fault("ODD-01")
def test_a_start_that_can_make_no_file_longer_says_so(tmp_path: Path) -> None:
    """The same where nobody may mount."""
    refusals = Refusals(tmp_path)
    refusals.full(tmp_path / "full", tmp_path / "d" / "data")
    (tmp_path / "full").touch()
    serves_or_says_so(Daemon(tmp_path / "d", env=refusals.environment, **SMALL))


def serves_or_says_so(daemon: Daemon) -> None:
    try:
        log = outcome(daemon)
        assert "Traceback" not in log
        assert daemon.running or "No space left on device" in log
    finally:
        daemon.close()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a file of every kind."""
    root = tmp_path_factory.mktemp("made")
    with Daemon(root, **SMALL) as daemon:
        client = daemon.client()
        client.publish_many("t", [(b"x", f"tag{n}", None, None) for n in range(1_200)])
        wait_until(lambda: list(daemon.data.topics.rglob("*.tags")), "its segments")
        client.delete("t", match="tag7")
        wait_until(lambda: list(daemon.data.topics.rglob("*.del")), "its marks")
        client.publish_many("t", [b"y"] * 10)
        daemon.stop()
    return root


def kinds(root: Path) -> dict[str, Path]:
    """One file of each kind."""
    found = sorted(path for path in (root / "data").rglob("*") if path.is_file())
    return {path.suffix or path.name: path for path in found}


@pytest.mark.fault("ODD-02")
@pytest.mark.parametrize("kind", ["LOCK", "FORMAT", ".bin", ".log", ".data", ".idx", ".tags", ".del"])
def test_a_directory_in_the_place_of_a_file_is_no_traceback(made: Path, tmp_path: Path, kind: str) -> None:
    root = tmp_path / "copy"
    shutil.copytree(made / "data", root / "data")
    path = kinds(root)[kind]
    path.unlink()
    path.mkdir()
    daemon = Daemon(root, **SMALL)
    try:
        log = outcome(daemon)
        assert "Traceback" not in log, log
        assert daemon.running or path.name in log or "failed" in log
    finally:
        if kind == "LOCK":
            path.rmdir()
        daemon.close()


@pytest.mark.fault("ODD-03")
@pytest.mark.parametrize("there", [True, False])
def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path, there: bool) -> None:
    other = tmp_path / "precious"
    if there:
        other.write_text("precious")
    daemon = Daemon(tmp_path, **SMALL)
    daemon.data.root.mkdir()
    daemon.data.lock.symlink_to(other)
    try:
        assert "is no plain file" in outcome(daemon)
        assert daemon.exit_code == 1
        assert (other.read_text() if there else os.path.lexists(other)) == ("precious" if there else False)
    finally:
        daemon.close()
