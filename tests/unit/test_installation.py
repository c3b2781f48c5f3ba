"""What a stranger installs: a source package, a wheel made of that, both in an environment of their own, compiled."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

from topicd import compiled

ROOT = Path(__file__).parents[2]
COMPILER = shutil.which("cc") or shutil.which("gcc")
BUILD = "import sys; from setuptools import build_meta as b; print(getattr(b, sys.argv[1])(sys.argv[2]))"


def run(*command: Any, cwd: Path, **environ: str) -> str:
    env = {**os.environ, **environ}
    env.pop("PYTHONPATH", None)
    done = subprocess.run(list(map(str, command)), check=False, cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-4_000:]
    return done.stdout


def installed(wheel: Path, place: Path) -> Path:
    """The bin of a new environment with the wheel. What it depends on is lent by this one."""
    venv.create(place, with_pip=False)
    site = Path(
        run(place / "bin/python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=place).strip()
    )
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        place / "bin/python",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        wheel,
        cwd=place,
    )
    (site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return place / "bin"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source package, unpacked; made of a copy without anything that was built here."""
    clean, made = tmp_path_factory.mktemp("clean") / "topicd", tmp_path_factory.mktemp("sdist")
    ignored = shutil.ignore_patterns(
        "*.so", "compiled.crc", ".venv", ".git", "build", "var", "*.egg-info", "__pycache__", ".*_cache"
    )
    shutil.copytree(ROOT, clean, symlinks=True, ignore=ignored)
    name = run(sys.executable, "-c", BUILD, "build_sdist", made, cwd=clean).splitlines()[-1]
    with tarfile.open(made / name) as archive:
        archive.extractall(made, filter="data")
    return made / name.removesuffix(".tar.gz")


def test_the_source_package_has_what_it_is_built_of(source: Path) -> None:
    wanted = [
        "setup.py",
        "LICENSE",
        "README.md",
        "topicd/_native/core.c",
        "topicd/_native/vendor/xxhash.h",
        "topicd/cli/main.py",
    ]
    assert [name for name in wanted if not (source / name).is_file()] == []


def test_compiling_needs_no_types_of_other_packages() -> None:
    """As in pip's own build environment, where the packages that topicd depends on are not installed."""
    sources = [str(compiled.source_of(name, Path())) for name in compiled.MODULES]
    given = [sys.executable, "-m", "mypy", "--no-site-packages", "--no-incremental", *compiled.MYPY_ARGUMENTS, *sources]
    done = subprocess.run(given, check=False, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2_000:]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(COMPILER is None, reason="no C compiler")
def test_a_wheel_of_it_runs_compiled_in_an_environment_of_its_own(source: Path, tmp_path: Path) -> None:
    name = run(sys.executable, "-c", BUILD, "build_wheel", tmp_path, cwd=source, TOPICD_OPT_LEVEL="0").splitlines()[-1]
    bin_ = installed(tmp_path / name, tmp_path / "env")
    found = json.loads(run(bin_ / "topicctl", "version", "--json", cwd=tmp_path))
    assert (found["core"], found["modules"]) == ("native", "compiled")
    where = run(bin_ / "python", "-c", "import topicd.ipc.ring as r; print(r.__file__)", cwd=tmp_path)
    assert where.startswith(str(tmp_path / "env")) and where.strip().endswith(".so")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_one_that_could_not_be_compiled_says_why(source: Path, tmp_path: Path) -> None:
    without = {"TOPICD_COMPILED": "0", "CC": "/bin/false"}
    name = run(sys.executable, "-c", BUILD, "build_wheel", tmp_path, cwd=source, **without).splitlines()[-1]
    assert not [entry for entry in zipfile.ZipFile(tmp_path / name).namelist() if entry.endswith(".so")]
    bin_ = installed(tmp_path / name, tmp_path / "env")
    found = json.loads(run(bin_ / "topicctl", "version", "--json", cwd=tmp_path))
    assert "TOPICD_COMPILED=0 was set when it was installed" in found["modules"]
    assert found["core"].startswith("pure (")
