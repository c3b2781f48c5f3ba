"""What the figures of a run say about machine and daemon, in a sentence each. Nothing to say: nothing is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from topicd import compiled
from topicd._native import is_native
from topicd.bench import machine
from topicd.bench.load import Figures
from topicd.bench.plan import Line

SYNC_US = 500.0  # durable writes are planned with 50 to so many
DELIVERED_US = 5_000.0  # from a write to its delivery, on a daemon that has little else to do
EVICTION_RATIO = 0.7


def notes(work_dir: Path, sync: Figures, lines: Sequence[Line]) -> list[str]:
    return [*of_machine(work_dir), *of_sync(sync), *of_lines(lines)]


def of_machine(work_dir: Path) -> list[str]:
    found = []
    if machine.is_busy():
        found.append("other programs are at work: the figures are distorted")
    if machine.is_volatile(work_dir):
        kind = machine.filesystem(work_dir)[1]
        found.append(f"{work_dir} is on {kind}, where a sync costs nothing: give --dir on a real disk")
    if not is_native:
        found.append("the C core is missing: frames are stamped and scanned 20 to 50 times slower")
    elif compiled.why_not_used:
        found.append("the modules are interpreted: an append takes longer")
    return found


def of_sync(sync: Figures) -> list[str]:
    took = sync.get("p50", 0.0)
    if took <= SYNC_US:
        return []
    return [f"a sync of this disk takes {took:,.0f} µs, {SYNC_US:,.0f} are usual: durable writes are as slow"]


def of_lines(lines: Sequence[Line]) -> list[str]:
    found = []
    for line in lines:
        if line.test in ("E", "router") and line.p99_us is not None and line.p99_us > DELIVERED_US:
            took = f"{line.p99_us / 1000:,.1f} ms at p99"
            found.append(f"{line.name}: {took} from publish to a subscriber, {DELIVERED_US / 1000:g} are the aim")
        if line.test == "eviction" and line.ratio is not None and line.ratio < EVICTION_RATIO:
            found.append(f"{line.name}: {line.ratio:.2f} of the rate without a cap, {EVICTION_RATIO:g} is usual")
    return found
