"""What is locked: running installs what running needs, tests install the rest, and both cover pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import requires
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def _name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def _locked(file: str) -> set[str]:
    lines = (ROOT / file).read_text().splitlines()
    pinned = [line for line in lines if line and line[0] not in "#-"]
    assert all("==" in line for line in pinned)
    return {_name(line) for line in pinned}


def _needed(names: set[str]) -> set[str]:
    """Those packages and what they need themselves, as far as it is installed here."""
    found: set[str] = set()
    while names - found:
        name = (names - found).pop()
        found.add(name)
        wanted = [line for line in requires(name) or [] if "extra ==" not in line and "sys_platform ==" not in line]
        names |= {_name(line) for line in wanted if not re.search(r"python_version < .3\.1[01]", line)}
    return found


def test_running_installs_what_running_needs_and_nothing_else() -> None:
    wanted = {_name(line) for line in PROJECT["project"]["dependencies"]} | {"setuptools"}
    locked = _locked("requirements.lock")
    assert wanted <= locked, "declared in pyproject.toml, not locked"
    assert locked <= _needed(wanted), "locked for running, needed by nothing that runs"


def test_compiling_installs_what_compiling_needs_and_nothing_else() -> None:
    wanted = {_name(line) for line in PROJECT["build-system"]["requires"]}
    locked = _locked("requirements-build.lock")
    assert wanted <= locked | _locked("requirements.lock"), "declared in pyproject.toml, not locked"
    assert locked <= _needed(wanted), "locked for compiling, needed by nothing that compiles"
    assert "-r requirements.lock" in (ROOT / "requirements-build.lock").read_text().splitlines()


def test_tests_install_everything_else_that_is_declared() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = {_name(line) for name in extras for line in extras[name]}
    assert wanted <= _locked("requirements-dev.lock") | _locked("requirements-build.lock") | _locked(
        "requirements.lock"
    )
    assert "-r requirements-build.lock" in (ROOT / "requirements-dev.lock").read_text().splitlines()


def test_every_file_of_the_web_pages_is_in_the_package() -> None:
    root = ROOT / "topicd" / "gateway"
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["topicd.gateway"]
    packed = {path for pattern in patterns for path in root.glob(pattern) if path.is_file()}
    assert packed == {path for path in (root / "static").rglob("*") if path.is_file()}
    assert root / "static" / "index.html" in packed
