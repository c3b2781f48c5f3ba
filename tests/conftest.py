"""Makes the repository's root importable, so that tests share `tests.support` however pytest was started."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = str(Path(__file__).resolve().parent.parent)
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "fault(id, ...): which fault classes of docs/faults.md the test covers")
