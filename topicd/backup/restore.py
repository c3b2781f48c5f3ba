"""From a backup to a data directory. Promise: the directory gets its name when everything in it is durable; what was
copied is what the manifest says; the backup itself is never changed.

Sealed segments are shared with the backup where both are on one filesystem: nobody ever writes to them, not even a
repair. Everything else is copied.
"""

from __future__ import annotations

from pathlib import Path

from topicd.backup import manifest as manifests
from topicd.backup.manifest import TREE, Manifest
from topicd.backup.shelf import lies_in, remove_tree
from topicd.backup.taking import Advance, copy, link
from topicd.disk.datadir import make_directory
from topicd.disk.fs import Fs, is_directory
from topicd.errors import Conflict, FormatError
from topicd.paths import DataDir


def check_target(fs: Fs, target: Path) -> None:
    """A directory that is not there yet, or is empty."""
    if fs.exists(target) and (not is_directory(fs, target) or fs.listdir(target)):
        raise Conflict(f"{target} is there already: a backup is restored to a new directory")
    if other := lies_in(fs, target):
        raise Conflict(f"{target} lies in {other}: a backup is restored to a directory of its own")


def restore(fs: Fs, directory: Path, manifest: Manifest, target: Path, advance: Advance, *, links: bool = True) -> Path:
    """The files, under the name of unfinished work; finish() gives them theirs."""
    check_target(fs, target)
    partial = DataDir(target).restoring.root
    if fs.exists(partial):
        remove_tree(fs, partial)
    make_directory(fs, partial)
    fs.sync_filesystem(partial)  # from here on it reports what it cannot write
    made: Path | None = None
    for entry in manifests.entries(fs, directory, manifest):
        source, file = directory / TREE / entry.path, partial / entry.path
        if file.parent != made:
            fs.mkdir(file.parent)
            made = file.parent
        size = fs.size(source)
        if size != entry.size:
            raise FormatError(f"{source}: has {size} bytes, expected {entry.size}", path=str(source))
        if entry.fixed and links and link(fs, source, file):
            advance(size)
            continue
        links = links and not entry.fixed
        if copy(fs, source, file, size, advance) != entry.xxh3 and entry.xxh3 is not None:
            raise FormatError(f"{source}: fails its checksum; topicctl backup verify says more", path=str(source))
    for name in ("meta", "wal", "topics"):
        fs.mkdir(partial / name)
    return partial


def finish(fs: Fs, partial: Path, target: Path) -> None:
    fs.sync_filesystem(partial)
    if fs.exists(target):
        fs.rmdir(target)
    fs.rename(partial, target)
    fs.sync_dir(target.parent)
