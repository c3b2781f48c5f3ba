"""What the disk itself can do: one write and one fdatasync, nothing else. No store can be faster."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from topicd.bench.stats import latency
from topicd.bench.work import MIN_SAMPLES, clock_ns
from topicd.limits import KIB, MIB

FILE_BYTES = 64 * MIB
_PROBE_BYTES = MIB
_PROBE_BLOCK = 4 * KIB

# (file, bytes of a block, seconds) to figures.
Limit = Callable[[Path, int, float], dict[str, float]]


def append(path: Path, block: int, seconds: float) -> dict[str, float]:
    """pwrite + fdatasync at the end of a growing file: the size changes with every sync."""
    path = path.with_suffix(".append")
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        return _measure(file, block, seconds, limit=None)
    finally:
        os.close(file)
        path.unlink()


def overwrite(path: Path, block: int, seconds: float) -> dict[str, float]:
    """pwrite + fdatasync over blocks that were written before: no metadata changes."""
    prepare(path)
    file = os.open(path, os.O_RDWR)
    try:
        return _measure(file, block, seconds, limit=FILE_BYTES)
    finally:
        os.close(file)


def sync_time(directory: Path, seconds: float) -> dict[str, float]:
    """What 4 KiB and one fdatasync take over blocks that exist already: nothing durable can be acknowledged sooner."""
    path = directory / f"topicd-sync-{os.getpid()}"
    try:
        prepare(path, _PROBE_BYTES)
        file = os.open(path, os.O_RDWR)
        try:
            return _measure(file, _PROBE_BLOCK, seconds, limit=_PROBE_BYTES)
        finally:
            os.close(file)
    finally:
        path.unlink(missing_ok=True)


def prepare(path: Path, size: int = FILE_BYTES) -> None:
    if path.exists() and path.stat().st_size == size:
        return
    with path.open("wb") as file:
        for _ in range(size // MIB):
            file.write(os.urandom(MIB))
        file.flush()
        os.fsync(file.fileno())


def _measure(file: int, block: int, seconds: float, limit: int | None) -> dict[str, float]:
    data = os.urandom(block)
    samples: list[int] = []
    position = 0
    start = now = clock_ns()
    end = start + int(seconds * 1e9)
    while now < end or len(samples) < MIN_SAMPLES:
        before = now
        os.pwrite(file, data, position)
        os.fdatasync(file)
        now = clock_ns()
        samples.append(now - before)
        position += block
        if limit is not None and position + block > limit:
            position = 0
    rate = len(samples) / ((now - start) / 1e9)
    return {**latency(samples), "rate": rate, "mb_s": rate * block / 1e6}
