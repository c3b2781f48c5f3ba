"""What SIGHUP may change."""

from __future__ import annotations

import logging

import pytest

from topicd.config import Settings
from topicd.supervisor import reloading


def test_reloadable_settings_change_and_others_are_named(caplog: pytest.LogCaptureFixture) -> None:
    current = Settings(wal_shards=2, delivery_shards=2)
    wanted = current.replace(checkpoint_ms=5000, max_inflight_bytes=2 << 20, wal_shards=4)
    with caplog.at_level(logging.WARNING):
        merged, changed = reloading.merge(current, wanted)
    assert merged == wanted.replace(wal_shards=2)
    assert changed == {"checkpoint_ms": "5000", "max_inflight_bytes": "2MiB"}
    [record] = caplog.records
    assert record.getMessage() == "setting needs a restart"
    assert vars(record)["wal_shards"] == "4"


def test_nothing_changed_is_nothing_said(caplog: pytest.LogCaptureFixture) -> None:
    assert reloading.merge(Settings(), Settings()) == (Settings(), {})
    assert caplog.records == []
