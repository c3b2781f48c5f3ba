"""A small storm over HTTP for every run; `make storm-http` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.http import run


@pytest.mark.timeout(240)
def test_streams_sockets_and_writers_survive_kills(tmp_path: Path) -> None:
    storm = run(tmp_path, rounds=4, seed=5)
    assert all(writer.acked > 10 for writer in storm.writers)
    assert all(reader.reconnects >= 1 for reader in storm.readers)
