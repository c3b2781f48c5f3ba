"""Which files of a data directory a backup takes, and how. Promise: everything that a start needs to bring back what
was acknowledged; nothing that belongs to the running daemon only.

A file is *fixed* if nobody ever changes it: the parts of a sealed segment. It may be shared by a link. Whatever grows
or is written over is copied as far as it reaches. Left out: the lock, spare WAL files, deleted topics, the store of a
chat process (a view of its log), unfinished work under temporary names, what is in quarantine/ and trash/.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from topicd import paths
from topicd.disk.fs import TMP_SUFFIX, Fs, is_directory
from topicd.paths import DataDir
from topicd.shards.storage.segment import places
from topicd.shards.storage.segment.deletions import MARK_BYTES
from topicd.shards.storage.segment.names import COLD, DATA, DEL, IDX, PACKED, TAGS
from topicd.shards.storage.walfile import list_files as list_wal_files

WAL_TAIL = 4_096  # zeros behind the cut of a log: there it ends


class Item(NamedTuple):
    path: str  # below the tree
    source: Path
    fixed: bool = False
    unit: int = 1  # the size is a multiple of it
    limit: int | None = None  # so many bytes of it
    padding: int = 0  # zeros behind them


def topic_dirs(fs: Fs, data: DataDir) -> list[Path]:
    """Of topics that are not being deleted, in the order of their names."""
    parsed = {name: paths.parse_topic_dir(name) for name in fs.listdir(data.topics)}
    return [data.topics / name for name, found in sorted(parsed.items()) if found is not None and not found[1]]


def topic_items(fs: Fs, directory: Path, *, fixed_only: bool = False) -> list[Item]:
    """One look at a topic. A segment that had a successor was whole; the newest one may grow while it is copied: its
    index first, so that it names nothing that the copied data lacks. What comes later is in the log."""
    listed = [file for file in places.list_files(fs, directory) if not file.unfinished]
    sealed = {file.first_seq for file in listed if file.part == TAGS}
    where = f"topics/{directory.name}"
    found = []
    here = {file.first_seq for file in listed if file.part in (DATA, PACKED)}
    for file in listed:
        if file.part == COLD:
            # Its frames are taken instead: a backup needs no cold directory.
            frames = None if file.first_seq in here else places.cold_frames(fs, file)
            if frames is not None:
                found.append(Item(f"{where}/{frames.name}", frames, fixed=True))
            continue
        fixed = file.first_seq in sealed and file.part != DEL
        if fixed or not fixed_only:
            unit = MARK_BYTES if file.part == DEL else 1
            found.append(Item(f"{where}/{file.name}", file.path, fixed, unit))
    if not fixed_only and fs.exists(directory / paths.TOPIC_NAME_FILE):
        found.append(Item(f"{where}/{paths.TOPIC_NAME_FILE}", directory / paths.TOPIC_NAME_FILE))
    return sorted(found, key=_order)


def _order(item: Item) -> tuple[bool, bool, str]:
    """What grows before what is fixed, of it the index first; what is fixed by its path, as manifests have it."""
    return item.fixed, item.fixed or not item.path.endswith(f".{IDX}"), item.path


def channel_items(fs: Fs, data: DataDir) -> Iterator[Item]:
    for name in sorted(fs.listdir(data.channels)):
        for file in (paths.METADATA_FILE, paths.CURSOR_FILE):
            if fs.exists(data.channels / name / file):
                yield Item(f"channels/{name}/{file}", data.channels / name / file)


def chat_items(fs: Fs, data: DataDir) -> Iterator[Item]:
    """What a chat store cannot be rebuilt from the log without: the base where the log was cut."""
    for shard in _shards(fs, data.root / "chat"):
        root = data.chat(shard)
        for base in chat_bases(fs, data, shard):
            for name in sorted(fs.listdir(base)):
                if not is_directory(fs, base / name):
                    yield Item(f"chat/{root.name}/{base.name}/{name}", base / name, name.endswith(".sst"))


def chat_bases(fs: Fs, data: DataDir, shard: int) -> list[Path]:
    names = (name for name in fs.listdir(data.chat(shard)) if name.removeprefix("base-").isdigit())
    return [data.chat(shard) / name for name in sorted(names)]


def all_chat_bases(fs: Fs, data: DataDir) -> list[Path]:
    return [base for shard in _shards(fs, data.root / "chat") for base in chat_bases(fs, data, shard)]


def meta_items(fs: Fs, data: DataDir) -> Iterator[Item]:
    """Snapshots; the identity is written anew."""
    for shard in _shards(fs, data.meta):
        directory = data.snapshots(shard)
        for name in sorted(fs.listdir(directory)):
            if not name.endswith(TMP_SUFFIX):
                yield Item(f"meta/{directory.name}/{name}", directory / name)


def wal_items(fs: Fs, data: DataDir, cut: dict[int, int]) -> Iterator[Item]:
    """Up to the cut; logs that are not in it are whole."""
    for shard in _shards(fs, data.wal):
        end = cut.get(shard)
        for file in list_wal_files(fs, data.wal_shard(shard)):
            name = f"wal/{data.wal_shard(shard).name}/{file.path.name}"
            if end is None:
                yield Item(name, file.path)
            elif file.first_lsn <= end:
                yield Item(name, file.path, limit=end - file.first_lsn, padding=WAL_TAIL)


def _shards(fs: Fs, directory: Path) -> list[int]:
    return sorted(n for n in map(paths.parse_shard_dir, fs.listdir(directory)) if n is not None)
