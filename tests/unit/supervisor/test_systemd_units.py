"""The unit files: valid, and hardened."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
UNITS = ROOT / "systemd"
NAMES = ("topicd.service", "topicd.socket", "topicd-http.socket")
pytestmark = pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze here")


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """Copies whose program exists on this machine."""
    for name in NAMES:
        text = (UNITS / name).read_text()
        (tmp_path / name).write_text(re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", text))
    return tmp_path


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_units_are_valid(units: Path) -> None:
    done = analyze("verify", "--man=no", *(str(units / name) for name in NAMES))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("page", ["quickstart.md", "operations.md"])
def test_pages_install_and_enable_units_that_exist(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    installed = re.findall(r"\bsystemd/(topicd[-a-z]*\.\w+)", text)
    enabled = [name for line in re.findall(r"systemctl enable --now (.+)", text) for name in line.split()]
    assert {"topicd.service", "topicd.socket", "topicd.sysusers"} <= set(installed)
    assert all((UNITS / name).is_file() for name in installed)
    assert enabled and set(enabled) <= set(installed) & set(NAMES)


def test_exposure_is_small(units: Path) -> None:
    done = analyze("security", "--offline=true", "--no-pager", str(units / "topicd.service"))
    found = re.search(r"exposure level for topicd.service: ([0-9.]+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert float(found.group(1)) <= 2.5


def test_rings_survive_the_end_of_the_service() -> None:
    text = (UNITS / "topicd.service").read_text()
    assert "\nRemoveIPC=no\n" in text
    assert "\nDynamicUser=" not in text


@pytest.mark.fault("SHM-01")
def test_a_start_that_failed_is_tried_again_without_end() -> None:
    text = (UNITS / "topicd.service").read_text()
    assert "\nRestart=on-failure\n" in text
    assert "\nStartLimitIntervalSec=0\n" in text
    assert "\nRestartPreventExitStatus=2 3\n" in text  # and not 1: a failure
