"""Numbered snapshots of one shard's metadata. Promise: the newest is durable before an older one goes, and
one good predecessor always stays, so that a snapshot that turns out corrupt has something to fall back to.

The log must reach back to the predecessor: trim it by what the snapshot before the newest had absorbed.

A number is the run of the daemon << 32, plus a count. Another number of shards in the next run deals the names
anew, so what one shard begins with may be in the snapshots of any: those of earlier runs stay until every shard
has two of this run.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from topicd import paths
from topicd.disk import envelope
from topicd.disk.fs import TMP_SUFFIX, Fs
from topicd.errors import FormatError

MAGIC = b"TSNP"
VERSION = 1
_RUN_SHIFT = 32


class SnapshotStore:
    def __init__(self, fs: Fs, directory: Path, run: int = 0) -> None:
        self._fs = fs
        self._directory = directory
        self._run = run
        self._newest_good: int | None = None
        self._loaded = False
        self.problems: list[str] = []  # why a snapshot was passed over, by the last load_newest()

    def load_newest(self) -> tuple[int, Any] | None:
        """The newest snapshot that checks out, with its number; None if there is none."""
        self.problems = []
        self._newest_good, self._loaded = None, True
        for number in reversed(self.numbers()):
            path = self._path(number)
            try:
                body = envelope.load(self._fs, path, MAGIC, VERSION)
            except (FormatError, OSError) as error:
                self.problems.append(str(error))
                continue
            self._newest_good = number
            return number, body
        return None

    def load_by_run(self) -> list[tuple[int, Any]]:
        """The newest snapshot of each run that checks out, with its number, ascending."""
        self.problems = []
        found: dict[int, tuple[int, Any]] = {}
        for number in reversed(self.numbers()):
            if number >> _RUN_SHIFT in found:
                continue
            try:
                body = envelope.load(self._fs, self._path(number), MAGIC, VERSION)
            except FileNotFoundError:
                continue  # its owner has a newer one and removed it meanwhile
            except (FormatError, OSError) as error:
                self.problems.append(str(error))
                continue
            found[number >> _RUN_SHIFT] = (number, body)
        return sorted(found.values())

    def save(self, body: Any, siblings: Sequence[Path] = ()) -> int:
        """Store the body durably under the next number, then remove what nobody needs any more. siblings: the
        directories of all shards of this run."""
        if not self._loaded:
            self._find_good()
        self._ensure_directory()
        number = max([*self.numbers(), self._run << _RUN_SHIFT]) + 1
        envelope.save(self._fs, self._path(number), MAGIC, VERSION, body)
        predecessor, self._newest_good = self._newest_good, number
        keep = {number, predecessor}
        if not all(self._settled(directory) for directory in siblings):
            keep.update(n for n in self.numbers() if n >> _RUN_SHIFT < self._run)
        self._prune(keep)
        return number

    def _find_good(self) -> None:
        """Which one has to stay."""
        self._newest_good, self._loaded = None, True
        for number in reversed(self.numbers()):
            try:
                envelope.check(self._fs, self._path(number), MAGIC, VERSION)
            except (FormatError, OSError):
                continue
            self._newest_good = number
            return

    def numbers(self) -> list[int]:
        """Numbers of the snapshots that are there, good or not, ascending."""
        found = (paths.parse_snapshot(name) for name in self._fs.listdir(self._directory))
        return sorted(number for number in found if number is not None)

    def _settled(self, directory: Path) -> bool:
        numbers = SnapshotStore(self._fs, directory).numbers()
        return sum(n >> _RUN_SHIFT == self._run for n in numbers) > 1

    def _prune(self, keep: set[int | None]) -> None:
        # After the new one is durable, never before; what fails to go now goes next time.
        for name in self._fs.listdir(self._directory):
            number = paths.parse_snapshot(name.removesuffix(TMP_SUFFIX))
            if number is not None and (number not in keep or name.endswith(TMP_SUFFIX)):
                with suppress(OSError):
                    self._fs.unlink(self._directory / name, missing_ok=True)

    def _ensure_directory(self) -> None:
        if not self._fs.exists(self._directory):
            self._fs.mkdir(self._directory)
        if not self.numbers():
            # Without a snapshot in it, its name may not be durable yet.
            self._fs.sync_dir(self._directory.parent)
            self._fs.sync_dir(self._directory.parent.parent)

    def _path(self, number: int) -> Path:
        return self._directory / paths.snapshot_name(number)
