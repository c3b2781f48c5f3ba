"""Tools that read the cold directory do not begin to wait for a disk that does not answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from topicd.cli.exits import CliError
from topicd.cli.offline import cold
from topicd.cli.offline.cold import require_answer
from topicd.cli.offline.data_dir import open_offline
from topicd.disk.cold import adopt
from topicd.disk.fs import RealFs
from topicd.paths import DataDir


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    found = DataDir(tmp_path / "data")
    found.meta.mkdir(parents=True)
    return found


def test_without_a_cold_directory_nobody_looks(data: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold.subprocess, "Popen", None)
    require_answer(RealFs(), data)


def test_one_that_answers_or_is_missing_is_read_on(data: DataDir, tmp_path: Path) -> None:
    root = tmp_path / "cold"
    root.mkdir()
    adopt(RealFs(), data, root, "a1")
    require_answer(RealFs(), data)
    root.rename(tmp_path / "away")
    require_answer(RealFs(), data)


def test_one_that_does_not_answer_is_named(data: DataDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "cold"
    root.mkdir()
    adopt(RealFs(), data, root, "a1")
    monkeypatch.setattr(cold, "_LOOK", "import time; time.sleep(2)")
    monkeypatch.setattr(cold, "PATIENCE_S", 0.05)
    with pytest.raises(CliError, match=f"cold directory {root} has not answered"):
        require_answer(RealFs(), data)
    with pytest.raises(CliError, match="has not answered"):
        open_offline(str(data.root))  # fsck, verify, dump and whatever else reads a directory
