"""What one process of STATUS says about itself, in short."""

from __future__ import annotations

from typing import Any

from topicd.words import counted


def note(process: dict[str, Any]) -> str:
    """What an operator should know about this process; empty when all is well."""
    stats = process.get("stats") or {}
    found = []
    if process["state"] == "recovering":
        found.append(f"{process['percent']:.0f}% {process['what']}".strip())
    elif process["what"]:
        found.append(str(process["what"]))
    found += troubles(stats)
    if stats.get("failures"):
        found.append(counted(stats["failures"], "write failure"))
    if stats.get("checkpoint_failures"):
        found.append(counted(stats["checkpoint_failures"], "checkpoint failure"))
    return "; ".join(found)


def troubles(stats: dict[str, Any]) -> list[str]:
    """What is wrong with a process that serves all the same."""
    found = []
    if stats.get("read_only"):
        found.append("read-only after a disk failure")
    if stats.get("damage"):
        found.append(f"{counted(stats['damage'], 'damaged place')}, run fsck")
    if stats.get("snapshot_failing"):
        found.append("snapshots fail, the WAL keeps growing; the log of the process says why")
    if stats.get("cold_trouble"):
        found.append(f"history in the cold directory: {stats['cold_trouble']}")
    return found


def fullest_ring(stats: dict[str, Any]) -> float:
    """Share of its capacity, 0 to 1."""
    used = max(stats.get("ring_used") or [0])
    return used / stats["ring_capacity"] if stats.get("ring_capacity") else 0.0
