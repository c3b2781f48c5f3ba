"""A data directory without its daemon: where it is, whose it is, which topics it holds. Only reads; who
repairs takes the lock first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from topicd import paths
from topicd._native.interface import Run
from topicd.cli.exits import CliError, Exit
from topicd.cli.groups import did_you_mean
from topicd.cli.offline.cold import require_answer
from topicd.disk import layout
from topicd.disk.datadir import Format, LockHeld, open_format, take_lock
from topicd.disk.fs import Fs, RealFs
from topicd.errors import FormatError
from topicd.frames import FrameType, control_body
from topicd.paths import DataDir
from topicd.placement import delivery_shard
from topicd.shards.storage.segment.reindex import next_frame
from topicd.shards.storage.snapshot import Settled, SnapshotStore, logs_on_record
from topicd.shards.storage.walfile import Group, LogReader, scan_group


@dataclass
class Offline:
    """One data directory."""

    data: DataDir
    fs: Fs = field(default_factory=RealFs)

    @property
    def format(self) -> Format:
        """What FORMAT says; an error if this is no data directory, never a new file."""
        if not self.fs.exists(self.data.format):
            raise CliError(f"{self.data.root} is no data directory of topicd: it has no FORMAT", Exit.NOT_FOUND)
        return open_format(self.fs, self.data)

    def wal_shards(self) -> list[int]:
        return _shards(self.fs, self.data.wal)

    def snapshot_shards(self) -> list[int]:
        return _shards(self.fs, self.data.meta)

    def topic_ids(self) -> list[int]:
        """Topics that have a directory and are not being deleted."""
        parsed = (paths.parse_topic_dir(name) for name in self.fs.listdir(self.data.topics))
        return sorted(found[0] for found in parsed if found is not None and not found[1])


def open_offline(given: str | None, *, to_judge: bool = False) -> Offline:
    """to_judge: by whoever says of everything what is wrong with it; others need its directories as they should be."""
    if given is not None:
        root = Path(given).expanduser()
    else:
        from topicd.cli.settings import load

        root = load(None).settings.data_dir
    if not root.is_dir():
        raise CliError(f"{root}: no such directory", Exit.NOT_FOUND, "--data-dir names the daemon's data")
    data = DataDir(root.absolute())
    for path, what in () if to_judge else layout.obstacles(data):
        raise CliError(f"{path} {what}", Exit.REFUSED)
    offline = Offline(data)
    require_answer(offline.fs, data)
    return offline


@contextmanager
def locked(offline: Offline) -> Iterator[None]:
    """No daemon can start on the directory inside."""
    try:
        fd = take_lock(offline.data, patience_s=0.0)
    except LockHeld as exc:
        raise CliError(str(exc), Exit.REFUSED, "stop the daemon first") from None
    try:
        yield
    finally:
        os.close(fd)


def _shards(fs: Fs, directory: Path) -> list[int]:
    found = (paths.parse_shard_dir(name) for name in fs.listdir(directory))
    return sorted(shard for shard in found if shard is not None)


@dataclass
class Names:
    """Topic names and ids as snapshots and WAL tell them."""

    by_id: dict[int, str] = field(default_factory=dict)
    entries: dict[int, dict[str, Any]] = field(default_factory=dict)  # of the newest snapshots
    deleted: set[int] = field(default_factory=set)
    settled: list[Settled] = field(default_factory=list)
    logs: dict[int, int] = field(default_factory=dict)  # by WAL shard: so far its log was durable

    def is_gone(self, topic_id: int, name: str | None) -> bool:
        """Was it deleted, so that what lies in its directory is on its way out? name: by its label, if it has one."""
        if topic_id in self.deleted:
            return True
        if name is not None:
            return any(settled.covers(name, topic_id) for settled in self.settled)
        return any(topic_id < settled.below for settled in self.settled)

    def show(self, topic_id: int) -> str:
        return self.by_id.get(topic_id) or paths.topic_dir_name(topic_id)

    def find(self, given: str) -> int:
        """The id behind a name, or behind an id as directories are named."""
        live = {name: topic_id for topic_id, name in sorted(self.by_id.items()) if topic_id not in self.deleted}
        if given in live:
            return live[given]
        parsed = paths.parse_topic_dir(given)
        if parsed is not None:
            return parsed[0]
        raise CliError(f"there is no topic {given!r}{did_you_mean(given, list(live))}", Exit.NOT_FOUND)


def read_names(offline: Offline) -> Names:
    names = Names()
    bodies = newest_snapshots(offline)
    names.logs = logs_on_record(bodies)
    for body in bodies:
        shards, index = int(body["shards"]), int(body["shard"])
        names.settled.append(Settled(shards, index, int(body.get("settled_below", 0))))
        # A later snapshot is the last word on the names of its partition.
        for topic_id, name in list(names.by_id.items()):
            if delivery_shard(name, shards) == index:
                del names.by_id[topic_id]
        for entry in body["topics"]:
            names.by_id[int(entry["id"])] = str(entry["name"])
            names.entries[int(entry["id"])] = entry
    _names_in_wal(offline, names)
    return names


def newest_snapshots(offline: Offline) -> list[dict[str, Any]]:
    """The newest good one of each shard and run that is there, oldest run first."""
    found: list[tuple[int, int, dict[str, Any]]] = []
    for shard in offline.snapshot_shards():
        store = SnapshotStore(offline.fs, offline.data.snapshots(shard))
        found += [(int(body["run"]), number, body) for number, body in store.load_by_run()]
    return [body for _, _, body in sorted(found, key=lambda item: item[:2])]


class BadFrames(NamedTuple):
    """Bytes of a WAL file, inside a whole group, that are no frames."""

    start: int
    end: int
    problem: str


def scan_past(view: memoryview, group: Group) -> tuple[list[Run], list[BadFrames]]:
    """Every frame of the group that can be believed, those behind bad ones included."""
    runs: list[Run] = []
    bad: list[BadFrames] = []
    at = group.start
    while at < group.end:
        scan = scan_group(view, group._replace(start=at))
        runs += scan.runs
        if not scan.problem:
            break
        following = next_frame(view[: group.end], scan.bad_at + 1, None)
        at = group.end if following is None else following
        bad.append(BadFrames(scan.bad_at, at, scan.problem))
    return runs, bad


def _names_in_wal(offline: Offline, names: Names) -> None:
    seed = offline.format.wal_seed
    for shard in offline.wal_shards():
        for chunk in LogReader(offline.fs, offline.data.wal_shard(shard), seed).chunks():
            for group in chunk.groups:
                for run in scan_past(chunk.view, group)[0]:
                    if run.type == FrameType.TOPIC_CREATE:
                        name = _created_name(chunk.view, run.start, run.end)
                        if name is not None:
                            names.by_id.setdefault(run.topic_id, name)
                    elif run.type == FrameType.TOPIC_DELETE:
                        names.deleted.add(run.topic_id)


def _created_name(view: memoryview, start: int, end: int) -> str | None:
    try:
        body = control_body(view, start, end)
        return str(body["name"])
    except (FormatError, KeyError, TypeError):
        return None
