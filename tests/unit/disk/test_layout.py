"""What lies where topicd has a directory."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from topicd.disk import layout
from topicd.errors import FormatError
from topicd.paths import DataDir

NOBODY = 65534
PLACES = (
    *("", "meta", "wal", "topics", "channels", "chat", "trash", "quarantine"),
    *("meta/shard-00", "meta/shard-11", "wal/shard-01", "chat/shard-00"),
)


@pytest.fixture
def data() -> Iterator[DataDir]:
    """Where another user may look, too."""
    root = Path(tempfile.mkdtemp(prefix="topicd-layout-"))
    root.chmod(0o755)
    made = DataDir(root / "data")
    for place in PLACES:
        (made.root / place).mkdir(parents=True, exist_ok=True)
    yield made
    shutil.rmtree(root)


@pytest.fixture
def nobody(data: DataDir) -> Iterator[int]:
    """This process as a user who may not do everything; the directories are his."""
    if os.geteuid() != 0:
        yield os.geteuid()
        return
    for path in (data.root, *data.root.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    os.seteuid(NOBODY)
    yield NOBODY
    os.seteuid(0)


def found(data: DataDir) -> list[tuple[str, str]]:
    return [(str(path.relative_to(data.root)), what) for path, what in layout.obstacles(data, to_write=True)]


def test_directories_as_they_should_be_and_missing_ones(data: DataDir) -> None:
    assert found(data) == []
    shutil.rmtree(data.root)
    assert found(data) == []
    layout.check(DataDir(data.root / "deeper" / "still"))


def test_a_link_to_a_directory_is_one(data: DataDir) -> None:
    data.wal.rename(data.root.parent / "elsewhere")
    data.wal.symlink_to(data.root.parent / "elsewhere")
    assert found(data) == []
    (data.wal / "shard-01").rmdir()
    (data.wal / "shard-01").touch()
    assert [path for path, _ in found(data)] == ["wal/shard-01"]


@pytest.mark.parametrize("place", PLACES)
def test_a_file_in_the_place_of_a_directory(data: DataDir, place: str) -> None:
    shutil.rmtree(data.root / place)
    (data.root / place).touch()
    [(path, what)] = found(data)
    assert (path, what.split(";")[0]) == (place or ".", "is no directory")
    with pytest.raises(FormatError, match=f"{data.root / place} is no directory; put the directory back"):
        layout.check(data)


@pytest.mark.parametrize("place", PLACES)
def test_a_link_that_leads_nowhere(data: DataDir, place: str) -> None:
    shutil.rmtree(data.root / place)
    (data.root / place).symlink_to("/nonexistent/disk")
    [(path, what)] = found(data)
    assert path == (place or ".")
    assert "link to /nonexistent/disk, which is not there; mount or make that" in what


@pytest.mark.parametrize("place", PLACES)
def test_a_link_to_itself(data: DataDir, place: str) -> None:
    shutil.rmtree(data.root / place)
    (data.root / place).symlink_to(data.root / place)
    assert [path for path, _ in found(data)] == [place or "."]


@pytest.mark.parametrize("place", PLACES)
def test_what_this_user_may_not_read_or_write(data: DataDir, nobody: int, place: str) -> None:
    (data.root / place).chmod(0o500)
    [(path, what)] = found(data)
    assert (path, f"may not be written by the user with id {nobody}; give" in what) == (place or ".", True)
    assert list(layout.obstacles(data)) == []  # who only reads may
    (data.root / place).chmod(0)
    [(path, what)] = found(data)
    assert (path, f"may not be read by the user with id {nobody}; give" in what) == (place or ".", True)
    (data.root / place).chmod(0o700)


def test_a_data_directory_that_cannot_be_made(data: DataDir, nobody: int) -> None:
    data.wal.chmod(0o500)
    with pytest.raises(FormatError, match=f"{data.wal} may not be written"):
        layout.check(DataDir(data.wal / "new" / "one"))
    data.wal.chmod(0o700)
    with pytest.raises(FormatError, match=r"FORMAT is no directory"):
        data.format.touch()
        layout.check(DataDir(data.format / "new"))
