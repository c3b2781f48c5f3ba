"""The storms of tests/crash/filechannel.py and spool.py in small sizes; `make crash-filechannel` runs the long ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash import spool
from tests.crash.filechannel import storm


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_kills_lose_and_double_nothing(tmp_path: Path, durability: str) -> None:
    found = storm(tmp_path, rounds=5, seed=11, durability=durability)
    assert found.sent > 0


def test_kills_of_client_and_daemon_leave_the_spool_whole(tmp_path: Path) -> None:
    found = spool.storm(tmp_path, rounds=4, seed=3)
    assert all(found.told.values())
