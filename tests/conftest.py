"""Makes the repository's root importable, so that tests share `tests.support` however pytest was started.

Tests take things apart in their own process: they use the sources of compiled modules. The daemons they start run what
users run.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = str(Path(__file__).resolve().parent.parent)
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

# A shell that starts tests in the background has them ignore Ctrl-C, and so would everything that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ["TOPICD_COMPILED"] = "0"
import topicd  # noqa: E402, F401

del os.environ["TOPICD_COMPILED"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "fault(id, ...): which fault classes of docs/faults.md the test covers")


@pytest.fixture(autouse=True)
def given_back() -> Iterator[None]:
    yield
    from tests.support.collecting import give_back

    give_back()
