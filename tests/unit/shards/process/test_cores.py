"""Shards that stay on one core."""

from __future__ import annotations

import logging
import os

import pytest

from topicd.ipc.shardboot import DELIVERY, WAL
from topicd.shards.process import cores


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    found: list[set[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {2, 5, 7})
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cpus: found.append(cpus))
    return found


def test_c22_shards_take_the_cores_in_turn(chosen: list[set[int]]) -> None:
    for kind, index in ((DELIVERY, 0), (DELIVERY, 1), (WAL, 0), (WAL, 1)):
        cores.pin(kind, index, delivery_shards=2)
    assert chosen == [{2}, {5}, {7}, {2}]


def test_what_is_not_allowed_is_told_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(pid: int, cpus: set[int]) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setaffinity", refused)
    with caplog.at_level(logging.WARNING):
        cores.pin(DELIVERY, 0, delivery_shards=1)
    assert [record.message for record in caplog.records] == ["not pinned to a core"]
