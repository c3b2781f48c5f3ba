"""Files into a backup, and out of it again: by a link where that is possible and safe, by a copy where it is not.
Promise: memory does not grow with a file; what an entry says of a copy is what was read.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import xxhash

from topicd.backup.manifest import Earlier, Entry
from topicd.backup.tree import Item
from topicd.disk.fs import Fs, naming
from topicd.errors import FormatError
from topicd.limits import MIB

PIECE = 1 * MIB
# Another filesystem, one that has no links or no more of them, a file of somebody else.
_NO_LINK = {errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS}

Advance = Callable[[int], None]


class Taker:
    """Puts files below a tree; shares with earlier backups what they have."""

    def __init__(self, fs: Fs, tree: Path, earlier: list[Earlier], advance: Advance, *, links: bool = True) -> None:
        self._fs = fs
        self.tree = tree
        self._earlier = earlier
        self._advance = advance
        self._made: Path | None = None
        self.links = links  # False: the source is on another filesystem
        self.shares_source = False  # at least one file of it is linked
        self.linked_bytes = 0
        self.copied_bytes = 0

    def take(self, item: Item) -> Entry:
        target = self._target(item.path)
        return self._take_fixed(item, target) if item.fixed else self._take_copy(item, target)

    def put(self, path: str, content: bytes) -> Entry:
        """A file that is made for the backup."""
        write(self._fs, self._target(path), content)
        self.copied_bytes += len(content)
        return Entry(path, len(content), xxhash.xxh3_64_intdigest(content), False)

    def forget_directories(self) -> None:
        """Some were removed."""
        self._made = None

    def _target(self, path: str) -> Path:
        target = self.tree / path
        if target.parent != self._made:
            self._fs.mkdir(target.parent)
            self._made = target.parent
        return target

    def _take_fixed(self, item: Item, target: Path) -> Entry:
        fs, origin = self._fs, self._fs.identify(item.source)
        for earlier in self._earlier:
            entry = earlier.find(item.path)
            if entry is None or entry.origin != origin:
                continue
            if earlier.tree == self.tree:
                return entry  # it is there already
            fs.unlink(target, missing_ok=True)
            if link(fs, earlier.tree / item.path, target):
                self._advance(entry.size)
                self.linked_bytes += entry.size
                return entry
        fs.unlink(target, missing_ok=True)
        if self.links and link(fs, item.source, target):
            self._advance(origin.size)
            self.shares_source = True
            self.linked_bytes += origin.size
            return Entry(item.path, origin.size, None, True, fs.identify(target))
        self.links = False
        entry = self._take_copy(item, target)
        # Exchanged meanwhile: the next look takes it again.
        return entry._replace(fixed=True, origin=origin if fs.identify(item.source) == origin else None)

    def _take_copy(self, item: Item, target: Path) -> Entry:
        size = self._fs.size(item.source)
        cut = item.limit is not None and item.limit <= size
        wanted = item.limit if cut and item.limit is not None else size - size % item.unit
        xxh3 = copy(self._fs, item.source, target, wanted, self._advance, item.padding if cut else 0)
        total = wanted + (item.padding if cut else 0)
        self.copied_bytes += total
        return Entry(item.path, total, xxh3, False)


def link(fs: Fs, source: Path, target: Path) -> bool:
    """False: it has to be copied."""
    try:
        fs.link(source, target)
    except OSError as exc:
        if exc.errno not in _NO_LINK:
            raise
        return False
    return True


def copy(fs: Fs, source: Path, target: Path, size: int, advance: Advance, padding: int = 0) -> int:
    """So many bytes, and zeros behind them; the checksum of what is in the copy. Not synced."""
    state = xxhash.xxh3_64()
    reading = fs.open(source)
    try:
        writing = fs.open(target, write=True, create=True)
        try:
            with naming(target):
                writing.truncate(0)
            at = 0
            while at < size:
                with naming(source):
                    piece = reading.pread(min(PIECE, size - at), at)
                if not piece:
                    raise FormatError(f"{source}: ends at {at}, expected {size} bytes", path=str(source))
                with naming(target):
                    writing.pwrite([piece], at)
                state.update(piece)
                at += len(piece)
                advance(len(piece))
            if padding:
                with naming(target):
                    writing.pwrite([bytes(padding)], at)
                state.update(bytes(padding))
        finally:
            writing.close()
    finally:
        reading.close()
    return state.intdigest()


def write(fs: Fs, target: Path, content: bytes) -> None:
    file = fs.open(target, write=True, create=True)
    try:
        with naming(target):
            file.truncate(0)
            file.pwrite([content], 0)
    finally:
        file.close()


def checksum(fs: Fs, path: Path, advance: Advance) -> int:
    """Of a whole file."""
    state, at = xxhash.xxh3_64(), 0
    file = fs.open(path)
    try:
        while piece := file.pread(PIECE, at):
            state.update(piece)
            at += len(piece)
            advance(len(piece))
    finally:
        file.close()
    return state.intdigest()
