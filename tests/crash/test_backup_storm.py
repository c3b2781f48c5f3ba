"""A small storm with backups in it; `make crash-backups` is a long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.backups import Storm


@pytest.mark.fault("BKP-07")
def test_a_restore_to_a_time_is_what_was_acknowledged_by_then(tmp_path: Path) -> None:
    storm = Storm(tmp_path, seed=25)
    found = storm.run(rounds=2)
    assert not found, "\n".join(found)
    assert storm.backups >= 1
