"""A fake daemon and a client of it for every test."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3]))

import topicd
from tests.support.fakeserver import FakeServer
from topicd.ipc.protocol.retry import Tempo

# Pauses between attempts are needed for nothing here but politeness.
QUICK = Tempo(random=lambda: 1.0)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as running:
        yield running


@pytest.fixture
def client(server: FakeServer) -> Iterator[topicd.Client]:
    with topicd.connect(server.path, timeout=5, tempo=QUICK) as connected:
        yield connected
