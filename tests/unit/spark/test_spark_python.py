"""Spark gets an interpreter whose path has no space, and it is the same one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from topicd.spark.python import python_for_spark


def test_a_path_without_spaces_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/opt/env/bin/python")
    python_for_spark.cache_clear()
    assert python_for_spark() == "/opt/env/bin/python"
    python_for_spark.cache_clear()


def test_behind_a_space_the_environment_is_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = tmp_path / "a place" / "env"
    (env / "bin").mkdir(parents=True)
    (env / "pyvenv.cfg").write_text(f"home = {Path(sys._base_executable).parent}\n")
    (env / "bin" / "python").symlink_to(sys._base_executable)
    monkeypatch.setattr(sys, "executable", str(env / "bin" / "python"))
    python_for_spark.cache_clear()
    found = python_for_spark()
    python_for_spark.cache_clear()
    assert " " not in found
    prefix = subprocess.run([found, "-c", "import sys; print(sys.prefix)"], capture_output=True, text=True, check=True)
    assert Path(prefix.stdout.strip()).resolve() == env.resolve()
