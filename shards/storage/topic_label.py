"""`topic.bin` in a topic's directory: whose records lie there. Envelope TTOP, version 1. Promise: a directory of
records can be given back to its topic when snapshots and log have lost it.

Written with the directory and not changed afterwards: the configuration is the one of that time.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from topicd.disk import envelope
from topicd.disk.fs import Fs
from topicd.errors import FormatError
from topicd.paths import TOPIC_NAME_FILE

MAGIC = b"TTOP"
VERSION = 1


class Label(NamedTuple):
    id: int
    name: str
    config: dict[str, Any]
    created_ms: int

    def pack(self) -> bytes:
        return envelope.pack(Path(TOPIC_NAME_FILE), MAGIC, VERSION, self._asdict())


def read_label(fs: Fs, topic_dir: Path) -> Label:
    """FileNotFoundError without one, FormatError if it cannot be believed."""
    path = topic_dir / TOPIC_NAME_FILE
    body = envelope.load(fs, path, MAGIC, VERSION)
    try:
        return Label(int(body["id"]), str(body["name"]), dict(body["config"]), int(body["created_ms"]))
    except (KeyError, TypeError, ValueError) as exc:
        raise FormatError(f"{path}: is damaged: {exc!r}", path=str(path)) from None


def add_label(fs: Fs, topic_dir: Path, label: Label) -> None:
    """To a directory that has none, as those of earlier versions, or one that a loss of power left empty. Not synced:
    it is worth something only when much else is lost, and the next sync of the filesystem takes it along."""
    path = topic_dir / TOPIC_NAME_FILE
    with suppress(FileNotFoundError):
        if fs.size(path) >= envelope.HEADER_BYTES:
            return
    with suppress(OSError):  # a full disk, say: the next start tries again
        file = fs.open(path, write=True, create=True)
        try:
            file.pwrite([label.pack()], 0)
        finally:
            file.close()
