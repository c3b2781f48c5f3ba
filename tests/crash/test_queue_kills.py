"""A small storm over a queue with workers. `make crash-queues` has larger ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.queues import storm


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.fault("JOB-03")
def test_no_job_is_lost_done_twice_or_comes_back(tmp_path: Path) -> None:
    storm(tmp_path, 5, 20_261)
