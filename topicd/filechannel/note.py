"""A pair of numbers beside a channel, for who carries its messages elsewhere; written like a receiver's offset."""

from __future__ import annotations

from pathlib import Path

from topicd.disk.fs import Fs, RealFs
from topicd.filechannel.offsets import OffsetFile, create_position


class Note:
    def __init__(self, directory: Path, name: str, *, sync: bool, fs: Fs | None = None) -> None:
        fs = RealFs() if fs is None else fs
        path = directory / name
        if not fs.exists(path):
            create_position(fs, path, 0)
        self._file = OffsetFile(fs, path, sync=sync, forward=False)

    @property
    def offset(self) -> int:
        return self._file.offset

    @property
    def value(self) -> int:
        return self._file.value

    def write(self, offset: int, value: int) -> None:
        self._file.move(offset, value)

    def close(self) -> None:
        self._file.close()
