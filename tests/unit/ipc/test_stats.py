"""The stats page of a process."""

from __future__ import annotations

import os
import time

import pytest

from topicd import telemetry
from topicd.errors import FormatError
from topicd.ipc.stats import StatsPage


def test_page_before_the_first_publish_is_none(instance: str) -> None:
    assert StatsPage.create(instance, "wal-00").read() is None


def test_published_values_come_with_pid_name_state_and_heartbeat(instance: str) -> None:
    reader = StatsPage.create(instance, "dlv-01")
    writer = StatsPage.attach(instance, "dlv-01")
    before = time.monotonic()
    writer.state = "serving"
    writer.publish({"appends": 7, "latency_us": [1, 2, 3]})
    page = reader.read()
    assert page is not None
    assert before <= page.pop("heartbeat") <= time.monotonic()
    assert page == {
        "pid": os.getpid(),
        "name": "dlv-01",
        "state": "serving",
        "appends": 7,
        "latency_us": [1, 2, 3],
        "warnings": telemetry.recent(),
    }


def test_a_page_that_is_too_large_is_refused(instance: str) -> None:
    page = StatsPage.create(instance, "wal-00")
    page.publish({"small": 1})
    with pytest.raises(FormatError, match="do not fit"):
        page.publish({"large": list(range(10_000))})
    found = page.read()
    assert found is not None and found["small"] == 1
