"""quarantine/: what nobody may serve and nobody may throw away. Promise: what is put there is durable before the place
it came from changes, and nothing there is ever overwritten.

It repeats the paths of the data directory; a part of a file has its range of bytes in its name.
"""

from __future__ import annotations

from pathlib import Path

from topicd.disk.fs import Fs, replace_file
from topicd.disk.loading import load_file
from topicd.paths import DataDir


class Quarantine:
    def __init__(self, fs: Fs, data: DataDir) -> None:
        self._fs = fs
        self._root = data.root
        self._directory = data.quarantine

    def place(self, path: Path, start: int | None = None, end: int | None = None) -> Path:
        """Where the file, or that part of it, lies or would lie."""
        place = self._directory / path.relative_to(self._root)
        return place if start is None else place.with_name(f"{place.name}.{start}-{end}")

    def holds(self, path: Path, start: int, end: int) -> bool:
        return self._fs.exists(self.place(path, start, end))

    def keep_part(self, path: Path, start: int, end: int) -> Path:
        return self._store(self.place(path, start, end), load_file(self._fs, path).view[start:end])

    def keep_copy(self, path: Path) -> Path:
        return self._store(self._free(self.place(path)), load_file(self._fs, path).view)

    def move(self, path: Path, name: Path | None = None) -> Path:
        """A file or a directory, out of the way. name: as what it is kept, if not as what it was called."""
        target = self._free(self.place(name or path))
        self._make(target.parent)
        self._fs.rename(path, target)
        self._fs.sync_dir(target.parent)
        self._fs.sync_dir(path.parent)
        return target

    def _store(self, target: Path, content: memoryview) -> Path:
        self._make(target.parent)
        replace_file(self._fs, target, [content])
        return target

    def _free(self, target: Path) -> Path:
        """Never over what an earlier repair put there."""
        number, free = 1, target
        while self._fs.exists(free):
            number += 1
            free = target.with_name(f"{target.name}.{number}")
        return free

    def _make(self, directory: Path) -> None:
        self._fs.mkdir(directory)
        while directory != self._root:
            directory = directory.parent
            self._fs.sync_dir(directory)
