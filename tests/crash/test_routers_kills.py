"""A few rounds of what `make crash-routers` does at length."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.routers import Round, run


@pytest.mark.fault("RTR-03")
def test_copies_survive_kills(tmp_path: Path) -> None:
    told: list[Round] = []
    run(4, 20261118, tmp_path, told.append)
    assert len(told) == 4
