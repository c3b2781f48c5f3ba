"""What a backup holds. Promise: a manifest that can be read names every file of its backup, how long each is and, where
its bytes were read, their checksum; it is written last.

manifest.bin (envelope TBKM) names its parts by their checksums, manifest-<i>.bin (envelope TBKP): lists of files, so
many in each that memory does not grow with a backup. Files of topics come first, in the order of their paths.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from topicd.disk import envelope
from topicd.disk.fs import FileId, Fs, read_all, replace_file
from topicd.errors import FormatError
from topicd.limits import SMALL_FILE_MAX

MAGIC = b"TBKM"
PART_MAGIC = b"TBKP"
VERSION = 1
NAME = "manifest.bin"
TREE = "data"  # the files themselves, laid out as a data directory
_PART_ENTRIES = 10_000


class Entry(NamedTuple):
    """A file of a backup."""

    path: str  # below the tree
    size: int
    xxh3: int | None  # of its bytes; None: nobody has read them, it was linked
    fixed: bool  # nobody ever changes it: it may be shared
    origin: FileId | None = None  # what it was taken from


@dataclass
class Manifest:
    id: str
    made_ms: int  # when it was begun
    cut_ms: int  # what was acknowledged before is in it, what was begun later is not
    source: str  # which data directory: the checksum of its FORMAT
    data_dir: str
    topicd: str  # version
    run: int
    served: bool  # made under a running daemon
    wal: list[tuple[int, int]]  # where each log was cut: shard, LSN
    topics: int = 0
    files: int = 0
    bytes: int = 0
    linked_bytes: int = 0  # of these: shared with the data directory or an earlier backup
    parts: list[int] = field(default_factory=list)


class ManifestWriter:
    def __init__(self, fs: Fs, directory: Path) -> None:
        self._fs = fs
        self._directory = directory
        self._waiting: list[Entry] = []
        self._parts: list[int] = []
        self.files = 0
        self.bytes = 0

    def add(self, entry: Entry) -> None:
        self._waiting.append(entry)
        self.files += 1
        self.bytes += entry.size
        if len(self._waiting) >= _PART_ENTRIES:
            self._write_part()

    def finish(self, manifest: Manifest) -> None:
        """Everything that it names is durable: now it counts."""
        self._write_part()
        manifest.files, manifest.bytes, manifest.parts = self.files, self.bytes, self._parts
        envelope.save(self._fs, self._directory / NAME, MAGIC, VERSION, asdict(manifest))

    def _write_part(self) -> None:
        if not self._waiting:
            return
        path = part_path(self._directory, len(self._parts))
        rows = [[*entry[:4], list(entry.origin) if entry.origin else None] for entry in self._waiting]
        content = envelope.pack(path, PART_MAGIC, VERSION, rows)
        replace_file(self._fs, path, [content])
        self._parts.append(xxhash.xxh3_64_intdigest(content))
        self._waiting.clear()


def part_path(directory: Path, number: int) -> Path:
    return directory / f"manifest-{number}.bin"


def load(fs: Fs, directory: Path) -> Manifest:
    """FormatError if it is not, byte for byte, what was written."""
    path = directory / NAME
    body = envelope.load(fs, path, MAGIC, VERSION)
    names = {item.name for item in fields(Manifest)}
    if not isinstance(body, dict) or body.keys() != names:
        raise FormatError(f"{path}: is no manifest of a backup", path=str(path))
    body["wal"] = [(int(shard), int(lsn)) for shard, lsn in body["wal"]]
    return Manifest(**body)


def entries(fs: Fs, directory: Path, manifest: Manifest) -> Iterator[Entry]:
    """Of all files, part by part."""
    for number, checksum in enumerate(manifest.parts):
        path = part_path(directory, number)
        try:
            raw = read_all(fs, path, SMALL_FILE_MAX)
        except FileNotFoundError:
            raise FormatError(f"{path}: is missing", path=str(path), what="part") from None
        if xxhash.xxh3_64_intdigest(raw) != checksum:
            raise FormatError(f"{path}: is not the part that {NAME} names", path=str(path), what="part")
        for row in envelope.unpack(path, PART_MAGIC, VERSION, raw):
            yield _entry(path, row)


def _entry(path: Path, row: Any) -> Entry:
    name, size, xxh3, fixed, origin = row
    parts = Path(name).parts
    if not parts or Path(name).is_absolute() or ".." in parts:
        raise FormatError(f"{path}: names a file outside of the backup: {name!r}", path=str(path))
    return Entry(name, int(size), xxh3, bool(fixed), FileId(*origin) if origin else None)


class Earlier:
    """Segments of an earlier backup, asked for in the order of their paths."""

    def __init__(self, fs: Fs, directory: Path, manifest: Manifest) -> None:
        self.tree = directory / TREE
        found = entries(fs, directory, manifest)
        self._entries = (entry for entry in found if entry.fixed and entry.path.startswith("topics/"))
        self._next = next(self._entries, None)

    def find(self, path: str) -> Entry | None:
        while self._next is not None and self._next.path < path:
            self._next = next(self._entries, None)
        return self._next if self._next is not None and self._next.path == path else None
