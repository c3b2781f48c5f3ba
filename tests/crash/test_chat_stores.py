"""A few rounds of `make chat-storm`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.chat import run


@pytest.mark.timeout(300)
@pytest.mark.fault("CHT-02")
def test_S16_S20_two_stores_converge_through_kills_and_broken_comparisons(tmp_path: Path) -> None:
    counts = run(tmp_path, rounds=4, seed=20, tell=lambda line: None)
    assert counts["syncs"] == 4
    assert counts["kills"] >= 1
    assert counts["operations"] > 60
