"""Makes the repository's root importable, so that tests share `tests.support` however pytest was started.

Tests take things apart in their own process: they use the sources of compiled modules. The daemons they start run what
users run.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = str(Path(__file__).resolve().parent.parent)
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

os.environ["TOPICD_COMPILED"] = "0"
import topicd  # noqa: E402, F401

del os.environ["TOPICD_COMPILED"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "fault(id, ...): which fault classes of docs/faults.md the test covers")


@pytest.fixture(autouse=True, scope="module")
def given_back() -> Iterator[None]:
    """Shards in the tests' own process tell the collector of cycles to look rarely, and what they held keeps its
    descriptors until it does."""
    yield
    if len(os.listdir("/proc/self/fd")) > 100:
        gc.unfreeze()
        gc.set_threshold(700, 10, 10)
        gc.collect()
