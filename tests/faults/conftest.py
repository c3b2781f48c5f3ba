"""Every test here runs machines with small rings, quietly: faults make shards log errors."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.faults.machine import ROOT, shrink
from tests.support.fakedisk import FakeDisk


@pytest.fixture(autouse=True)
def small_and_quiet() -> Iterator[None]:
    undo = shrink()
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
    undo()


@pytest.fixture
def disk() -> FakeDisk:
    return FakeDisk(directories=[ROOT / name for name in ("meta", "wal", "topics")])
