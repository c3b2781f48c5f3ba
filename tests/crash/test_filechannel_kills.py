"""The storm of tests/crash/filechannel.py in a small size; `make crash-filechannel` runs the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.filechannel import storm


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_kills_lose_and_double_nothing(tmp_path: Path, durability: str) -> None:
    found = storm(tmp_path, rounds=5, seed=11, durability=durability)
    assert found.sent > 0
