"""A fake daemon, and a data directory without one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests.support.fakeserver import FakeServer
from tests.unit.cli.datadir import Built
from tests.unit.cli.kit import Ctl, run


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as running:
        yield running


@pytest.fixture
def ctl(server: FakeServer) -> Ctl:
    """topicctl that finds the fake daemon."""

    def call(*args: str, env: dict[str, str] | None = None, **given: Any) -> Result:
        return run(*args, env={"TOPICD_SOCKET": str(server.path), **(env or {})}, **given)

    return call


@pytest.fixture
def built(tmp_path: Path) -> Built:
    """A data directory that no daemon made."""
    return Built(tmp_path / "data")
