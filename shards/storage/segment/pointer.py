"""`.cold`: the frames of a segment lie in the cold directory (envelope TCLD, version 1). Promise: which segments do,
and what they cover, is known without asking the cold disk. Index, seal and deletion marks stay where they were.

    first_seq, records, data_bytes of the segment, as its seal says
    part                           what the file is called there: data or data.z
    file_bytes                     how large it is
    dropped                        the segment is being removed: nothing of it is to be read
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from topicd.disk import envelope
from topicd.disk.fs import Fs
from topicd.errors import FormatError
from topicd.shards.storage.segment.names import DATA, PACKED

MAGIC = b"TCLD"
VERSION = 1


class Pointer(NamedTuple):
    first_seq: int
    records: int
    data_bytes: int
    part: str
    file_bytes: int
    dropped: bool = False


def save_pointer(fs: Fs, path: Path, pointer: Pointer) -> None:
    """Durably: from now on the segment lies there."""
    envelope.save(fs, path, MAGIC, VERSION, pointer._asdict())


def load_pointer(fs: Fs, path: Path) -> Pointer:
    """FileNotFoundError without one; FormatError if it cannot be believed."""
    return _from_body(path, envelope.load(fs, path, MAGIC, VERSION))


def parse_pointer(path: Path, raw: bytes) -> Pointer:
    """FormatError if it cannot be believed."""
    return _from_body(path, envelope.unpack(path, MAGIC, VERSION, raw))


def _from_body(path: Path, body: Any) -> Pointer:
    try:
        numbers = {key: int(body[key]) for key in ("first_seq", "records", "data_bytes", "file_bytes")}
        if body["part"] not in (DATA, PACKED):
            raise ValueError(body["part"])
        return Pointer(**numbers, part=str(body["part"]), dropped=bool(body["dropped"]))
    except (KeyError, TypeError, ValueError) as exc:
        raise FormatError(f"{path}: is damaged: {exc!r}", path=str(path)) from None
