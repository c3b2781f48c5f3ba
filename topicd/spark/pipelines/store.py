"""A directory of Parquet files that runs add to. Promise: the manifest is the truth and is replaced whole, last; a run
that dies at any point leaves the directory as it was before, but for files that the next run removes.

    <root>/_manifest.json                 what is there: every file with size and checksum
    <root>/topic=<name>/day=<day>/part-*  files the manifest lists, and those of a run that died before its manifest
    <root>/_staging/<run>/                what a run is writing
    <root>/_lock                          held while a run works

Spark and Arrow pass over names that begin with an underscore, so the directory is a Parquet dataset as it stands.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from topicd.disk.fs import RealFs, read_all, replace_file
from topicd.errors import Conflict, FormatError

MANIFEST = "_manifest.json"
STAGING = "_staging"
LOCK = "_lock"
PART_PREFIX, PART_SUFFIX = "part-", ".parquet"
_MANIFEST_MAX = 1 << 30


class Move(NamedTuple):
    staged: Path
    path: str  # below the root


class Store:
    """`kind` and `version` are what its manifest begins with."""

    def __init__(self, root: Path, kind: str, version: int) -> None:
        self.root = root.absolute()
        self.run = secrets.token_hex(4)
        self._kind = kind
        self._version = version
        self._fs = RealFs()
        self._lock: int | None = None

    # ---- looking ----

    def load(self) -> dict[str, Any] | None:
        """The manifest's body; None where there is none yet."""
        path = self.root / MANIFEST
        try:
            raw = read_all(self._fs, path, _MANIFEST_MAX)
        except FileNotFoundError:
            return None
        try:
            body = json.loads(raw)
            kind, version = body["kind"], body["version"]
        except (ValueError, KeyError, TypeError) as exc:
            raise FormatError(f"{path} is no manifest: {exc!r:.200}") from None
        if kind != self._kind or version != self._version:
            raise FormatError(f"{path} is {kind!r} version {version!r}, not {self._kind!r} version {self._version}")
        found: dict[str, Any] = body
        return found

    def check_ours(self) -> None:
        """Nothing is ever put among files of somebody else."""
        if not self.root.exists():
            return
        if not self.root.is_dir():
            raise Conflict(f"{self.root} is not a directory")
        names = set(os.listdir(self.root))
        if names and not names & {MANIFEST, STAGING, LOCK}:
            raise Conflict(f"{self.root} has files but no {MANIFEST}; name an empty or a new directory")

    # ---- a run ----

    def open(self) -> Store:
        """Makes the directory, keeps other runs out and clears away what dead ones left in staging."""
        self.check_ours()
        self._fs.mkdir(self.root)
        fd = os.open(self.root / LOCK, os.O_RDWR | os.O_CREAT, 0o640)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise Conflict(f"another run works on {self.root}") from None
        self._lock = fd
        shutil.rmtree(self.root / STAGING, ignore_errors=True)
        self._fs.mkdir(self.staging)
        return self

    @property
    def staging(self) -> Path:
        return self.root / STAGING / self.run

    def sweep(self, listed: set[str]) -> list[str]:
        """Removes our files that the manifest does not list: moved by a run that died before its manifest."""
        left = [path for path in self._parts() if path not in listed]
        for path in left:
            self._fs.unlink(self.root / path, missing_ok=True)
        return left

    def publish(self, moves: list[Move], body: dict[str, Any]) -> None:
        """The staged files, which are synced, and then the manifest that lists them."""
        self.move(moves)
        self.write_manifest(body)

    def move(self, moves: list[Move]) -> None:
        touched: set[Path] = set()
        for move in moves:
            target = self.root / move.path
            self._fs.mkdir(target.parent)
            self._fs.rename(move.staged, target)
            touched |= {directory for directory in target.parents if directory.is_relative_to(self.root)}
        # Names before the manifest: it must never list a file that a power loss can take away.
        for directory in touched:
            self._fs.sync_dir(directory)

    def write_manifest(self, body: dict[str, Any]) -> None:
        whole = {"kind": self._kind, "version": self._version, **body}
        raw = json.dumps(whole, indent=1, ensure_ascii=False, sort_keys=False).encode()
        replace_file(self._fs, self.root / MANIFEST, [raw, b"\n"])

    def _parts(self) -> Iterator[str]:
        for directory, folders, names in os.walk(self.root):
            folders[:] = [name for name in folders if not name.startswith("_")]
            for name in names:
                if name.startswith(PART_PREFIX) and name.endswith(PART_SUFFIX):
                    yield str((Path(directory) / name).relative_to(self.root))

    def close(self) -> None:
        if self._lock is None:
            return
        shutil.rmtree(self.root / STAGING, ignore_errors=True)
        os.close(self._lock)
        self._lock = None

    def __enter__(self) -> Store:
        return self.open()

    def __exit__(self, *exc: object) -> None:
        self.close()
