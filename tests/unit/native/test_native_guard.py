"""No input makes the native core read or write beyond its buffer: unreadable pages lie on both sides."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from native_cases import native

HERE = Path(__file__).parent
ROUNDS = "15000"


@pytest.mark.skipif(native is None, reason="the native core is not built")
def test_hostile_bytes_beside_guard_pages_never_crash() -> None:
    command = [sys.executable, str(HERE / "guard_fuzz.py"), "1", ROUNDS]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{ROUNDS} rounds are through\n", "")


def test_guard_pages_do_guard() -> None:
    program = "from guard_fuzz import Guarded; import ctypes; ctypes.string_at(Guarded(1).start + 4095, 2)"
    done = subprocess.run([sys.executable, "-c", program], cwd=HERE, capture_output=True, check=False, timeout=60)
    assert done.returncode == -11
