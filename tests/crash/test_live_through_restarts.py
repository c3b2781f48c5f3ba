"""A small part of tests.crash.restarts for every run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.restarts import run


@pytest.mark.timeout(240)
def test_a_producer_and_a_consumer_survive_restarts(tmp_path: Path) -> None:
    assert run(tmp_path, restarts=3, seed=5) > 0
