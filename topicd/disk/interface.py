"""A filesystem as the rest of the code sees it: the real one (fs.py), and those that tests put in its place.

Files are read, never mapped: a page that the disk cannot give, or that was cut off, is an OSError or a short read of
one call, where a map would kill the process (docs/adr/0011).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from topicd._native.interface import Buffer, Chain, Listing


class Failure(NamedTuple):
    step: int  # its number in the chain
    error: OSError | None  # None: the file of a Put is shorter than its offset
    size: int = 0  # of that file


class FileId(NamedTuple):
    """Which file it is, and which state of it: two looks that find the same have seen the same bytes, if nobody writes
    in place."""

    device: int
    inode: int
    size: int
    mtime_ns: int


class File(Protocol):
    def pread(self, size: int, offset: int) -> bytes:
        """Up to size bytes from offset; fewer only at the end of the file."""
        ...

    def pwrite(self, parts: Sequence[Buffer], offset: int) -> None:
        """Write the parts back to back from offset; after an OSError any prefix may be in the file."""
        ...

    def truncate(self, size: int) -> None: ...

    def sync_data(self) -> None:
        """Make the bytes and the size durable (fdatasync)."""
        ...

    def sync(self) -> None:
        """Make the bytes and every attribute durable (fsync)."""
        ...

    def size(self) -> int: ...

    def read_into(self, target: memoryview, offset: int) -> int:
        """Fill target from offset; how many bytes there were, fewer only at the end of the file. After an OSError any
        part of target may be filled."""
        ...

    def fileno(self) -> int: ...

    def begin_sync(self, offset: int, length: int) -> None:
        """A hint: these bytes will be synced soon, the disk may begin. Only the sync promises and reports."""
        ...

    def forget(self, size: int) -> None:
        """So many bytes from the beginning will not be read soon: the memory that holds them may go to others."""
        ...

    def close(self) -> None:
        """May be called twice."""
        ...


class Fs(Protocol):
    def open(self, path: Path | str, *, write: bool = False, create: bool = False, exclusive: bool = False) -> File:
        """Without write: read only. create makes a missing file; exclusive refuses an existing one."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Atomic, replaces target; durable after sync_dir of the parent(s)."""
        ...

    def unlink(self, path: Path, missing_ok: bool = False) -> None: ...

    def link(self, source: Path, target: Path) -> None:
        """Another name for the same file; an existing target is refused. Durable after sync_dir of its parent."""
        ...

    def mkdir(self, path: Path) -> None:
        """Make path and its missing parents; an existing directory is fine. The caller syncs the parents."""
        ...

    def rmdir(self, path: Path) -> None: ...

    def listdir(self, path: Path) -> list[str]:
        """Names in no particular order; a missing directory has none."""
        ...

    def exists(self, path: Path) -> bool: ...

    def size(self, path: Path) -> int: ...

    def identify(self, path: Path) -> FileId: ...

    def sync_dir(self, path: Path) -> None:
        """Make creates, renames and unlinks inside path durable."""
        ...

    def sync_filesystem(self, path: Path) -> None:
        """Make everything on the filesystem of the directory path durable: cheaper than many single syncs."""
        ...

    def free_bytes(self, path: Path) -> int: ...

    def run(self, chains: Sequence[Chain]) -> dict[int, Failure]:
        """Do the steps of every chain, one chain after the other; which chains failed, by number, and where."""
        ...

    def look_into(self, directories: Sequence[str]) -> list[Listing | None]:
        """What small directories hold, with the bytes of their files; a missing one holds nothing. None, for a
        directory or a file: it could not be had like this, ask for it by the other calls."""
        ...
