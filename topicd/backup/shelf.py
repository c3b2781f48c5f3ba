"""A directory of backups. Promise: what lists as a backup is whole: it got its name when everything in it was durable.

<shelf>/LOCK                       held while a backup is made
<shelf>/<UTC time>Z/               a backup: manifest.bin, manifest-<i>.bin, data/
<shelf>/<UTC time>Z.partial/       one that is being made, or was interrupted: removed when the next one is made
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from topicd.backup import manifest as manifests
from topicd.backup.manifest import Manifest
from topicd.disk.fs import Fs, is_directory
from topicd.errors import Conflict, FormatError
from topicd.paths import DataDir

PARTIAL = ".partial"
_ID = re.compile(r"\d{8}T\d{6}\.\d{3}Z")


def lies_in(fs: Fs, path: Path) -> str:
    """The data directory or the backup that the path is or lies in, for people; empty: neither. What is written there
    would be a stranger in it."""
    path = path.resolve()
    for place in (path, *path.parents):
        if fs.exists(DataDir(place).format) and fs.exists(DataDir(place).meta):
            return f"the data directory {place}"
        if fs.exists(place / manifests.NAME):
            return f"the backup {place}"
    return ""


class Shelved(NamedTuple):
    id: str
    manifest: Manifest | None
    problem: str  # why it is none; empty: it is one

    @property
    def finished(self) -> bool:
        """It was whole once."""
        return not self.id.endswith(PARTIAL)

    @property
    def whole(self) -> bool:
        return self.manifest is not None


def backup_id(now_ms: int) -> str:
    moment = datetime.fromtimestamp(now_ms / 1000, UTC)
    return f"{moment:%Y%m%dT%H%M%S}.{now_ms % 1000:03d}Z"


class Shelf:
    def __init__(self, fs: Fs, root: Path) -> None:
        self._fs = fs
        self.root = root

    def path(self, name: str) -> Path:
        return self.root / name

    @contextmanager
    def lock(self) -> Iterator[None]:
        """One backup is made at a time. Not part of the seam: a lock leaves nothing behind."""
        fd = os.open(self.root / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Conflict(f"another backup is being made in {self.root}") from None
            yield
        finally:
            os.close(fd)

    def list(self) -> list[Shelved]:
        """Oldest first; interrupted and damaged ones with the reason why they are none."""
        found = []
        for name in sorted(self._fs.listdir(self.root)):
            if _ID.fullmatch(name):
                found.append(self.look(name))
            elif name.endswith(PARTIAL) and _ID.fullmatch(name.removesuffix(PARTIAL)):
                found.append(Shelved(name, None, "interrupted, or being made"))
        return found

    def look(self, name: str) -> Shelved:
        try:
            return Shelved(name, manifests.load(self._fs, self.path(name)), "")
        except FileNotFoundError:
            return Shelved(name, None, f"has no {manifests.NAME}")
        except (FormatError, OSError) as exc:
            return Shelved(name, None, str(exc))

    def newest(self, source: str | None = None) -> Shelved | None:
        """The newest one that is whole, of that data directory."""
        for name in sorted(self._fs.listdir(self.root), reverse=True):
            if not _ID.fullmatch(name):
                continue
            found = self.look(name)
            if found.manifest is not None and source in (None, found.manifest.source):
                return found
        return None

    def latest(self) -> Shelved | None:
        """The newest one that was finished, though it may be damaged since."""
        names = [name for name in self._fs.listdir(self.root) if _ID.fullmatch(name)]
        return self.look(max(names)) if names else None

    def begin(self, name: str) -> Path:
        """The place of a new backup, empty."""
        partial = self.path(name + PARTIAL)
        self._fs.mkdir(partial)
        return partial

    def finish(self, name: str) -> Path:
        """Everything in it is durable: it gets its name."""
        self._fs.rename(self.path(name + PARTIAL), self.path(name))
        self._fs.sync_dir(self.root)
        return self.path(name)

    def clear(self) -> None:
        """What interrupted ones have left."""
        for name in self._fs.listdir(self.root):
            if name.endswith(PARTIAL) and _ID.fullmatch(name.removesuffix(PARTIAL)):
                remove_tree(self._fs, self.path(name))


def remove_tree(fs: Fs, path: Path) -> None:
    """The directory with all that is in it."""
    for name in fs.listdir(path):
        below = path / name
        if is_directory(fs, below):
            remove_tree(fs, below)
        else:
            fs.unlink(below, missing_ok=True)
    fs.rmdir(path)
