"""The files of channels. Promise: after a save, or a crash in it, one whole version is there; after a delete, or a
crash in it, the channel is there or it is not; a failed save or delete has put back what was there before, as far as
the disk lets it. Holds no state but where the files lie, so any thread may use it; of one channel, one at a time.

    channels/<sha256 of the handler>/metadata.bin       metadata.bin.tmp while a save is under way
                                     cursor.bin         of a queue
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from topicd.channel import ChannelState, channel_hash
from topicd.disk.fs import Fs, read_all, replace_file, tmp_path, write_beside
from topicd.errors import FormatError
from topicd.limits import SMALL_FILE_MAX
from topicd.paths import CURSOR_FILE, METADATA_FILE, DataDir
from topicd.shards.delivery.channels.tallies import Tallies
from topicd.shards.storage import channel_file

log = logging.getLogger(__name__)


class Saved(NamedTuple):
    hash: str  # of the handler: the directory's name
    raw: bytes  # what the file holds


class Found(NamedTuple):
    """What lies in channels/."""

    hashes: list[str]  # of channels, each with its metadata
    strays: list[str]  # what is no channel


class ChannelStore:
    def __init__(self, fs: Fs, data: DataDir, tallies: Tallies) -> None:
        self._fs = fs
        self._root = data.channels
        self._trash = data.trash
        self._tallies = tallies

    def metadata(self, hash: str) -> Path:
        return self._root / hash / METADATA_FILE

    def cursor(self, hash: str) -> Path:
        return self._root / hash / CURSOR_FILE

    # ---- metadata ----

    def save(self, state: ChannelState, before: Saved | None = None) -> Saved:
        """`before` is what the last save returned: its hash is used again, its bytes go back if this one fails."""
        began = time.perf_counter()
        try:
            saved = self._save(state, before)
        except (OSError, FormatError):
            self._tallies.saved(False, time.perf_counter() - began)
            raise
        self._tallies.saved(True, time.perf_counter() - began)
        return saved

    def _save(self, state: ChannelState, before: Saved | None) -> Saved:
        hash = before.hash if before is not None else channel_hash(state.handler)
        path = self.metadata(hash)
        self._make_directory(path.parent)
        raw = channel_file.encode(path, state)
        tmp = write_beside(self._fs, path, [raw])
        self._fs.rename(tmp, path)
        try:
            self._fs.sync_dir(path.parent)
        except OSError:
            self._put_back(path, before)
            raise
        return Saved(hash, raw)

    def _make_directory(self, directory: Path) -> None:
        for path in (self._root, directory):
            if not self._fs.exists(path):
                self._fs.mkdir(path)
                self._fs.sync_dir(path.parent)

    def _put_back(self, path: Path, before: Saved | None) -> None:
        """Whether the new name is durable nobody knows; the channel goes on as it was, so the file does, too."""
        with suppress(OSError):
            if before is None:
                self._fs.unlink(path, missing_ok=True)
                self._fs.sync_dir(path.parent)
            else:
                replace_file(self._fs, path, [before.raw])

    def load(self, hash: str) -> tuple[ChannelState, Saved]:
        """Raises FormatError and OSError."""
        path = self.metadata(hash)
        try:
            raw = read_all(self._fs, path, SMALL_FILE_MAX)
            state = channel_file.decode(path, raw)
        except (OSError, FormatError):
            self._tallies.load_failures += 1
            raise
        self._tallies.loads += 1
        return state, Saved(hash, raw)

    def delete(self, hash: str, before: Saved | None = None) -> None:
        """The name of the metadata goes first, durably: from then on there is no such channel. What is left behind it
        goes as far as it can; what is not there is gone already."""
        path = self.metadata(hash)
        try:
            if self._fs.exists(path.parent):
                self._fs.unlink(path, missing_ok=True)
                self._sync_or_put_back(path, before)
        except OSError:
            self._tallies.delete_failures += 1
            raise
        self._tallies.deletes += 1
        try:
            for left in (tmp_path(path), self.cursor(hash), tmp_path(self.cursor(hash))):
                self._fs.unlink(left, missing_ok=True)
            if self._fs.exists(path.parent):
                self._fs.rmdir(path.parent)
                self._fs.sync_dir(self._root)
        except OSError as exc:
            # Something of somebody else lies there: it stays, and the next start asks whose it is.
            log.warning("directory of a deleted channel stays", extra={"path": str(path.parent), "error": str(exc)})

    def _sync_or_put_back(self, path: Path, before: Saved | None) -> None:
        try:
            self._fs.sync_dir(path.parent)
        except OSError:
            if before is not None:
                self._put_back(path, before)
            raise

    # ---- the cursor of a queue ----

    def save_cursor(self, hash: str, next_seq: int) -> None:
        replace_file(self._fs, self.cursor(hash), [channel_file.encode_cursor(next_seq)])

    def load_cursor(self, hash: str) -> int:
        """Raises FormatError, also where there is none, and OSError."""
        path = self.cursor(hash)
        try:
            return channel_file.decode_cursor(path, read_all(self._fs, path, channel_file.CURSOR.size))
        except FileNotFoundError:
            raise FormatError(f"{path}: is missing", path=str(path)) from None

    # ---- everything ----

    def enumerate(self) -> Found:
        hashes: list[str] = []
        strays: list[str] = []
        for name in sorted(self._fs.listdir(self._root)):
            is_channel = len(name) == 64 and self._fs.exists(self.metadata(name))
            (hashes if is_channel else strays).append(name)
        return Found(hashes, strays)

    def sweep(self, name: str) -> Path | None:
        """A stray into trash/; None: it was an empty directory, and is gone."""
        path = self._root / name
        self._tallies.strays += 1
        if not self._files_in(path):
            with suppress(OSError):  # a file, or no longer empty
                self._fs.rmdir(path)
                self._fs.sync_dir(self._root)
                return None
        self._fs.mkdir(self._trash)
        self._fs.sync_dir(self._trash.parent)
        number, target = 1, self._trash / f"channel-{name}"
        while self._fs.exists(target):
            number += 1
            target = self._trash / f"channel-{name}.{number}"
        self._fs.rename(path, target)
        self._fs.sync_dir(self._trash)
        self._fs.sync_dir(self._root)
        return target

    def _files_in(self, path: Path) -> list[str]:
        try:
            return self._fs.listdir(path)
        except OSError:
            return [path.name]  # a file
