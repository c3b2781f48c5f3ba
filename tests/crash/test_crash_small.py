"""A small seeded part of `make crash`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.rounds import Options, Report, run


@pytest.mark.fault("PROC-01", "PROC-02", "PROC-03", "PROC-04", "PROC-05", "PROC-06")
@pytest.mark.timeout(300)
def test_eight_rounds_lose_nothing(tmp_path: Path) -> None:
    reports: list[Report] = []
    run(Options(rounds=8, seed=20_260, keep=tmp_path / "kept"), tmp_path, reports.append)
    assert len(reports) == 8
    assert reports[-1].acked > 0
