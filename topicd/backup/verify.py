"""Is a backup what its manifest says? Promise: every file that it names is there with its size and, where a checksum is
known, its bytes; nothing else is there. What linked segments hold is for fsck to say, which reads every frame.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from topicd.backup import manifest as manifests
from topicd.backup.manifest import TREE, Manifest
from topicd.backup.taking import Advance, checksum
from topicd.disk.fs import Fs, is_directory
from topicd.errors import FormatError


def problems(fs: Fs, directory: Path, manifest: Manifest, advance: Advance) -> Iterator[str]:
    """What is wrong, file by file."""
    tree, names = directory / TREE, _Names(fs, directory / TREE)
    files = size = 0
    try:
        for entry in manifests.entries(fs, directory, manifest):
            path = tree / entry.path
            files, size = files + 1, size + entry.size
            names.met(entry.path)
            try:
                found = fs.size(path)
                if found != entry.size:
                    yield f"{path}: has {found} bytes, expected {entry.size}"
                elif entry.xxh3 is not None and checksum(fs, path, advance) != entry.xxh3:
                    yield f"{path}: fails its checksum"
                elif entry.xxh3 is None:
                    advance(entry.size)
            except FileNotFoundError:
                yield f"{path}: is missing"
            except OSError as exc:
                yield f"{path}: cannot be read: {exc.strerror}"
    except FormatError as exc:
        yield exc.message
        return
    if (files, size) != (manifest.files, manifest.bytes):
        yield f"{directory}: has {files} files of {size} bytes, the manifest says {manifest.files} of {manifest.bytes}"
    yield from names.strangers()


class _Names:
    """Counts by directory: what is listed and not named is a stranger."""

    def __init__(self, fs: Fs, tree: Path) -> None:
        self._fs = fs
        self._tree = tree
        self._expected: dict[str, int] = {}

    def met(self, path: str) -> None:
        parent = path.rpartition("/")[0]
        self._expected[parent] = self._expected.get(parent, 0) + 1

    def strangers(self, where: str = "") -> Iterator[str]:
        directory = self._tree / where
        files = 0
        for name in sorted(self._fs.listdir(directory)):
            if is_directory(self._fs, directory / name):
                yield from self.strangers(f"{where}/{name}".lstrip("/"))
            else:
                files += 1
        if files > self._expected.get(where, 0):
            yield f"{directory}: has {files} files, the manifest names {self._expected.get(where, 0)}"
