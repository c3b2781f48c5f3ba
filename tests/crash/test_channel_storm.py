"""A small one of `make channel-storm`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.channels import storm


@pytest.mark.fault("CHN-06")
def test_members_and_history_are_what_was_answered_whatever_is_killed(tmp_path: Path) -> None:
    assert storm(tmp_path / "d", rounds=3, channels=24, shards=3, seed=3) == []
