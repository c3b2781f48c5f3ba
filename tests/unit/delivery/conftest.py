"""Shared memory for one test, gone afterwards whatever happened."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from topicd.ipc import shm


@pytest.fixture
def instance() -> Iterator[str]:
    made = secrets.token_hex(8)
    yield made
    for name in shm.names_of(made):
        shm.unlink(name)
