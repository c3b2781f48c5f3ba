"""Every test here runs quietly: faults make shards log errors."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.faults.machine import ROOT
from tests.support.fakedisk import FakeDisk
from topicd.shards.delivery import slices


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def disk() -> FakeDisk:
    return FakeDisk(directories=[ROOT / name for name in ("meta", "wal", "topics")])


@pytest.fixture(autouse=True)
def whole_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """One process plays all shards and nobody waits for a turn: the same calls in the same order, however busy the
    machine is."""
    monkeypatch.setattr(slices, "SLICE_S", 60.0)
