"""The cold directory: a larger, slower disk for the data of old segments. Promise: nothing is written to a directory
that does not carry this data directory's mark, so an empty mount point is never taken for the disk that belongs there.

Which directory it is stands in meta/cold.bin (envelope TCDR, version 1: id, root), beside the data, so that tools find
it without the daemon's settings; its mark, TOPICD-COLD, has the same id (envelope TCDM, version 1).
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import NamedTuple

from topicd import paths
from topicd.disk import envelope
from topicd.disk.interface import Fs
from topicd.errors import FormatError

RECORD_MAGIC = b"TCDR"
MARK_MAGIC = b"TCDM"
VERSION = 1


class ColdMissing(OSError):
    """The cold directory is not there, or another one is in its place."""

    def __init__(self, root: Path | str, why: str) -> None:
        super().__init__(errno.ENODEV, why, str(root))


class ColdDir(NamedTuple):
    """A cold directory by its mark and its path."""

    id: str
    root: Path

    @property
    def mark(self) -> Path:
        return self.root / paths.COLD_MARK

    @property
    def topics(self) -> Path:
        return self.root / "topics"

    def topic(self, topic_dir: Path | str) -> Path:
        """Where the data of that topic's segments lies."""
        return self.topics / Path(topic_dir).name

    def check(self, fs: Fs) -> None:
        """Raises ColdMissing unless it is there and the right one."""
        try:
            found = envelope.load(fs, self.mark, MARK_MAGIC, VERSION)
        except FileNotFoundError:
            raise ColdMissing(self.root, f"has no {paths.COLD_MARK}: is its disk mounted?") from None
        except FormatError as error:
            raise ColdMissing(self.root, error.message) from None
        if not isinstance(found, dict) or found.get("id") != self.id:
            raise ColdMissing(self.root, "belongs to another data directory")


def recorded(fs: Fs, data: paths.DataDir) -> ColdDir | None:
    """The cold directory that this data directory has; None: it never had one. FormatError if the record is damaged."""
    try:
        body = envelope.load(fs, data.cold, RECORD_MAGIC, VERSION)
        return ColdDir(str(body["id"]), Path(str(body["root"])))
    except FileNotFoundError:
        return None
    except (KeyError, TypeError) as exc:
        raise FormatError(f"{data.cold}: is damaged: {exc!r}", path=str(data.cold)) from None


def adopt(fs: Fs, data: paths.DataDir, root: Path, id: str) -> ColdDir:
    """root is this data directory's cold directory from now on, durably; the caller holds the lock. id: the data
    directory's own. The first one gets its mark; one at another path must carry it. ColdMissing: nothing changed."""
    known = recorded(fs, data)
    if known is not None and known.root == root:
        return known  # whether its disk is there shows when it is used
    found = ColdDir(id if known is None else known.id, root)
    if known is None and not fs.exists(found.mark):
        if not fs.exists(root):
            raise ColdMissing(root, "does not exist")
        envelope.save(fs, found.mark, MARK_MAGIC, VERSION, {"id": id})
    found.check(fs)
    # The mark before the record: what is on record carries its mark, or its disk is not there.
    envelope.save(fs, data.cold, RECORD_MAGIC, VERSION, {"id": found.id, "root": str(root)})
    return found


def told(error: OSError | FormatError) -> str:
    """Which file, and why; for people."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)
