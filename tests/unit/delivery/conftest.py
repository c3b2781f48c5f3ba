"""Shared memory and desks for one test, gone afterwards whatever happened."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.unit.delivery.desk import Desk
from topicd.ipc import shm
from topicd.shards.delivery import slices


@pytest.fixture
def instance() -> Iterator[str]:
    made = secrets.token_hex(8)
    yield made
    for name in shm.names_of(made):
        shm.unlink(name)


@pytest.fixture
def open_desk(instance: str) -> Iterator[Callable[..., Desk]]:
    """A desk with these settings; one per test."""
    desks: list[Desk] = []

    def build(**settings: Any) -> Desk:
        desks.append(Desk(instance, **settings))
        return desks[-1]

    yield build
    for desk in desks:
        desk.close()


@pytest.fixture
def desk(open_desk: Callable[..., Desk]) -> Desk:
    return open_desk()


@pytest.fixture(autouse=True)
def whole_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long work is done in one piece, however busy the machine is; who tests the pieces says how long they are."""
    monkeypatch.setattr(slices, "SLICE_S", 60.0)
