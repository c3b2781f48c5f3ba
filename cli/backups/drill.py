"""A backup tried out: restored to a place of its own, read whole, started, and every record read again. Promise: what
it finds is what a restore in earnest would find; nothing is left of it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from topicd.backup.manifest import Manifest
from topicd.backup.restore import finish, restore
from topicd.backup.shelf import Shelf, Shelved, remove_tree
from topicd.cli.private import PrivateDaemon
from topicd.cli.show.human import count, records_word
from topicd.cli.show.progress import Bar
from topicd.client.blocking.client import Client
from topicd.client.core.records import Gap, Record
from topicd.disk.fs import RealFs
from topicd.errors import StorageCorrupt
from topicd.paths import DataDir
from topicd.words import counted


def place_of(shelf: Shelf, one: Shelved, where: Path | None) -> Path:
    """On the filesystem of the backups it takes no room."""
    return (where or shelf.root) / f".drill-{one.id}-{os.getpid()}"


def laid_out(shelf: Shelf, one: Shelved, made: Manifest, target: Path) -> None:
    fs = RealFs()
    with Bar("restore", made.bytes, "bytes") as bar:
        finish(fs, restore(fs, shelf.path(one.id), made, target, bar.advance), target)


def clear(target: Path) -> None:
    fs = RealFs()
    for path in (target, DataDir(target).restoring.root):
        if fs.exists(path):
            remove_tree(fs, path)


def audit(target: Path) -> dict[str, Any]:
    """What a daemon on it serves: each topic is read from its first seq to its head."""
    report: dict[str, Any] = {"topics": 0, "records": 0, "bytes": 0, "evicted": 0, "lost": 0, "problems": []}
    with PrivateDaemon(target) as client, client:
        for process in client.status()["processes"]:
            damage = int((process.get("stats") or {}).get("damage") or 0)
            if damage:
                report["problems"].append(f"{process['name']}: {counted(damage, 'damaged place')}")
        topics = list(client.topics(internal=True))
        with Bar("audit", sum(row.count for row in topics), "records") as bar:
            for row in topics:
                report["topics"] += 1
                report["problems"] += _read(client, row.topic, report, bar)
    return report


def _read(client: Client, topic: str, report: dict[str, Any], bar: Bar) -> list[str]:
    """Every seq is a record, or a gap that says why, or was deleted; and there are as many records as are counted."""
    found: list[str] = []
    state, last, records = client.state(topic, touch=False), 0, 0
    try:
        for item in client.read(topic, 0, gaps=True):
            if isinstance(item, Gap):
                kind = "lost" if item.tombstone.reason == "power_loss" else "evicted"
                report[kind] += item.tombstone.missed_estimate
                continue
            if isinstance(item, Record):
                if item.seq <= last:
                    found.append(f"{topic}: seq {item.seq} comes behind {last}")
                last, records = item.seq, records + 1
                report["bytes"] += len(item.data)
                bar.advance(1)
    except StorageCorrupt as exc:
        found.append(f"{topic}: {exc.message}")
    report["records"] += records
    if records != state.count and not found and client.state(topic, touch=False).count != records:
        found.append(f"{topic}: it counts {records_word(state.count)}, {count(records)} can be read")
    return found
