"""A subscriber that stops reading, small; `python -m tests.process.slow_consumer` measures what others notice of it."""

from __future__ import annotations

from pathlib import Path

from tests.process.slow_consumer import READ_FIRST, Load, play

LOAD = Load(records=10_000, seconds=3.0, batch=100, size=4_000, readers=1)
PASSED_MIB = LOAD.records * LOAD.size / (1 << 20)
SETTINGS = {
    "wal_shards": 1,
    "delivery_shards": 1,
    "outbox_bytes": "256KiB",
    # What was written goes to disk soon: memory is measured.
    "checkpoint_bytes": "1MiB",
    "checkpoint_ms": 50,
    "map_cache_bytes": "1MiB",
}


def test_a_stopped_subscriber_costs_no_memory_and_misses_nothing(tmp_path: Path) -> None:
    """That everybody gets every record once and in order is checked by those who read."""
    found = play(tmp_path, LOAD, with_stopped=True, **SETTINGS)
    assert READ_FIRST <= found.held < LOAD.records // 2, found
    assert found.lagged > 0, found
    assert max(found.anonymous) - found.anonymous[0] < PASSED_MIB / 2, found
