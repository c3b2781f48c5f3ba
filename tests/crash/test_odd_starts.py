"""Starts that find the machine or the directory in a state that nobody planned: each serves, or ends with a line that
says why; none ends with a traceback, and none touches what is not its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
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


def everything(root: Path) -> dict[str, object]:
    """Of the data directory but its lock."""
    paths = [path for path in root.rglob("*") if path.name != "LOCK"]
    return {str(path): path.read_bytes() if path.is_file() else path.lstat().st_mode for path in paths}


def to_file(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.write_text("somebody's notes")


def to_dangling(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.symlink_to("/nonexistent/disk")


DIRECTORIES = ["meta", "wal", "topics", "channels", "chat", "trash", "quarantine", "meta/shard-00", "wal/shard-00"]


@pytest.mark.fault("ODD-04")
@pytest.mark.parametrize("twist", [to_file, to_dangling])
@pytest.mark.parametrize("place", DIRECTORIES)
def test_what_is_no_directory_is_refused_at_once_and_nothing_changes(
    made: Path, tmp_path: Path, place: str, twist: Callable[[Path], None]
) -> None:
    root = tmp_path / "copy"
    shutil.copytree(made / "data", root / "data")
    path = root / "data" / place
    twist(path)
    before = everything(root / "data")
    daemon = Daemon(root, **SMALL)
    try:
        log = outcome(daemon)
        assert daemon.exit_code == 1
        errors = [line for line in log.splitlines() if "ERROR" in line]
        assert len(errors) == 1 and f"{path} is " in errors[0] and "; " in errors[0], log
        assert everything(root / "data") == before
        assert f"damage: {path}: is " in fsck(root / "data", 1)
    finally:
        daemon.close()


@pytest.mark.fault("ODD-04")
@pytest.mark.parametrize("kind", [".log", ".data", ".idx", ".tags", ".del", ".bin", "topic"])
def test_a_link_that_leads_nowhere_in_the_place_of_a_file(made: Path, tmp_path: Path, kind: str) -> None:
    """It serves, and says what is lost; a topic's whole directory included."""
    root = tmp_path / "copy"
    shutil.copytree(made / "data", root / "data")
    path = next((root / "data" / "topics").iterdir()) if kind == "topic" else kinds(root)[kind]
    to_dangling(path)
    daemon = Daemon(root, **SMALL)
    try:
        log = outcome(daemon)
        assert daemon.running and "Traceback" not in log and "process died" not in log, log
        if path.suffix in (".data", "") and kind != ".log":
            assert f"{path}: is a link that leads nowhere, moved to" in log
            daemon.client().publish("t", b"z")
            wait_until(lambda: daemon.stats("dlv-00").get("tail_bytes") == 0, "a checkpoint")
    finally:
        daemon.close()


@pytest.mark.fault("ODD-04")
@pytest.mark.parametrize("kind", ["FORMAT", ".bin", ".log", ".data", ".idx", ".tags", ".del"])
def test_a_pipe_in_the_place_of_a_file_keeps_nobody(made: Path, tmp_path: Path, kind: str) -> None:
    """Opening one waits until somebody else opens it, too."""
    root = tmp_path / "copy"
    shutil.copytree(made / "data", root / "data")
    path = kinds(root)[kind]
    path.unlink()
    os.mkfifo(path)
    daemon = Daemon(root, **SMALL)
    try:
        log = outcome(daemon)
        assert "Traceback" not in log and "giving up" not in log and "no heartbeat" not in log
        refused = path.name in ("FORMAT", "identity.bin") and "is a pipe, a socket or a device" in log
        assert refused if not daemon.running else path.name not in ("FORMAT", "identity.bin"), log
    finally:
        daemon.close()


def fsck(data: Path, code: int) -> str:
    command = [sys.executable, "-c", "from topicd.cli.main import main; main()", "fsck", f"--data-dir={data}"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended.stdout


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
