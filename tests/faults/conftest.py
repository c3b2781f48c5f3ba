"""Every test here runs quietly: faults make shards log errors."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.faults.machine import ROOT
from tests.support.fakedisk import FakeDisk


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def disk() -> FakeDisk:
    return FakeDisk(directories=[ROOT / name for name in ("meta", "wal", "topics")])
