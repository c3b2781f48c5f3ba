"""One daemon for all tests of a module; each test has topics of its own."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.process.wire import Wire, owner
from tests.support.daemon import Daemon

SHARDS = 2
SETTINGS: dict[str, Any] = {
    "wal_shards": SHARDS,
    "delivery_shards": SHARDS,
    # Small, so that batches larger than a ring and checkpoints are ordinary.
    "ring_bytes": "1536KiB",
    "wal_file_bytes": "8MiB",
    "checkpoint_ms": 50,
}


class Served:
    """A daemon and the connections a test makes to it."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self._wires: list[Wire] = []

    @property
    def run_dir(self) -> Path:
        return self.daemon.run.root

    def wire(self, topic: str, **options: Any) -> Wire:
        """A new connection to the shard that owns the topic."""
        return self.connect(owner(self.run_dir, topic, SHARDS), **options)

    def shard(self, index: int, **options: Any) -> Wire:
        return self.connect(self.daemon.run.delivery_socket(index), **options)

    def supervisor(self, **options: Any) -> Wire:
        return self.connect(self.daemon.run.socket, **options)

    def connect(self, path: Path, **options: Any) -> Wire:
        wire = Wire(path, **options)
        self._wires.append(wire)
        return wire

    def close(self) -> None:
        for wire in self._wires:
            wire.close()
        self._wires.clear()


@pytest.fixture(scope="module")
def module_daemon(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A module may have settings and environment of its own: SETTINGS and ENVIRON."""
    settings = {**SETTINGS, **getattr(request.module, "SETTINGS", {})}
    environ = getattr(request.module, "ENVIRON", {})
    with Daemon(tmp_path_factory.mktemp("d"), env=environ, **settings) as daemon:
        yield daemon


@pytest.fixture
def served(module_daemon: Daemon) -> Iterator[Served]:
    made = Served(module_daemon)
    yield made
    made.close()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses."""
    return re.sub(r"[^A-Za-z0-9.:-]+", "-", request.node.name)[:200] + f".{os.urandom(4).hex()}"
