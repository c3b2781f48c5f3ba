"""The one door to the disk: every open, write, sync, rename and unlink of storage code goes through Fs.

Promise: pwrite returns only when every byte was accepted; a failed call raises OSError with its errno;
nothing is durable before sync_data/sync (a file's bytes) and sync_dir (its name). Tests put FakeDisk, FaultFs
and MonitorFs (tests/support) in the place of RealFs.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from topicd import _native
from topicd._native.interface import Buffer, Listing
from topicd.disk import look, steps
from topicd.disk.interface import Failure, File, FileId, Fs
from topicd.disk.steps import Chain, Rename
from topicd.errors import FormatError

__all__ = [
    "TMP_SUFFIX",
    "File",
    "FileId",
    "Fs",
    "RealFile",
    "RealFs",
    "is_directory",
    "leads_nowhere",
    "naming",
    "no_file",
    "read_all",
    "replace_file",
    "tmp_path",
    "write_beside",
]

_IOV_MAX = os.sysconf("SC_IOV_MAX")
_SYNC_FILE_RANGE_WRITE = 2
_FILE_MODE = 0o640
_DIR_MODE = 0o750


class RealFile:
    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def pread(self, size: int, offset: int) -> bytes:
        data = os.pread(self._fd, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]
        got = len(data)
        while got < size and (data := os.pread(self._fd, size - got, offset + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def pwrite(self, parts: Sequence[Buffer], offset: int) -> None:
        if len(parts) <= _IOV_MAX:
            # Nearly always one call is enough; what it left is written below.
            done = os.pwritev(self._fd, parts, offset)
            if done == sum(map(len, parts)):
                return
        rest = iter(parts)
        while chunk := [memoryview(part).cast("B") for part in islice(rest, _IOV_MAX)]:
            offset = self._write_chunk(chunk, offset)

    def _write_chunk(self, views: list[memoryview], offset: int) -> int:
        at, left = 0, sum(map(len, views))
        while left:
            done = os.pwritev(self._fd, views[at:], offset)
            if done <= 0:
                raise OSError(errno.EIO, "the disk accepted no byte")
            offset += done
            left -= done
            while at < len(views) and done >= len(views[at]):
                done -= len(views[at])
                at += 1
            if done:
                views[at] = views[at][done:]
        return offset

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def sync_data(self) -> None:
        os.fdatasync(self._fd)

    def sync(self) -> None:
        os.fsync(self._fd)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def read_into(self, target: memoryview, offset: int) -> int:
        got, size = 0, len(target)
        while got < size and (done := os.preadv(self._fd, [target[got:]], offset + got)):
            got += done
        return got

    def fileno(self) -> int:
        return self._fd

    @property
    def raw_fd(self) -> int:
        """What C may write through instead of pwrite. Files that watch or fail their calls have none."""
        return self._fd

    def begin_sync(self, offset: int, length: int) -> None:
        _libc().sync_file_range(self._fd, offset, length, _SYNC_FILE_RANGE_WRITE)

    def forget(self, size: int) -> None:
        os.posix_fadvise(self._fd, 0, size, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        # A cached reader is forgotten, not closed, because another thread may still read through it.
        self.close()


class RealFs:
    def __init__(self) -> None:
        self._anchors: dict[Path, int] = {}

    def open(self, path: Path | str, *, write: bool = False, create: bool = False, exclusive: bool = False) -> RealFile:
        # O_NONBLOCK means nothing for a file; a pipe that lies in its place would keep the process for ever.
        flags = os.O_NONBLOCK | (os.O_RDWR if write else os.O_RDONLY)
        if create:
            flags |= os.O_CREAT
        if exclusive:
            flags |= os.O_CREAT | os.O_EXCL
        try:
            file = RealFile(os.open(path, flags, _FILE_MODE))
        except OSError as error:
            raise _plainer(error) from None
        kind = os.fstat(file.raw_fd).st_mode
        # A device gives what is none of our bytes. Whoever writes to a file has read it before.
        if stat.S_ISFIFO(kind) or not (write or stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
            raise OSError(errno.ENXIO, "is no plain file", str(path))
        return file

    def rename(self, source: Path, target: Path) -> None:
        os.rename(source, target)

    def unlink(self, path: Path, missing_ok: bool = False) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def link(self, source: Path, target: Path) -> None:
        os.link(source, target, follow_symlinks=False)

    def mkdir(self, path: Path) -> None:
        os.makedirs(path, _DIR_MODE, exist_ok=True)

    def rmdir(self, path: Path) -> None:
        os.rmdir(path)

    def listdir(self, path: Path) -> list[str]:
        try:
            return os.listdir(path)
        except FileNotFoundError:
            return []

    def exists(self, path: Path) -> bool:
        try:
            _stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def size(self, path: Path) -> int:
        return _stat(path).st_size

    def identify(self, path: Path) -> FileId:
        found = _stat(path)
        return FileId(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)

    def sync_dir(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        except OSError as error:
            # A filesystem that cannot sync directories says EINVAL and keeps its own order of names.
            if error.errno != errno.EINVAL:
                raise
        finally:
            os.close(fd)

    def sync_filesystem(self, path: Path) -> None:
        if _libc().syncfs(self._anchor(path)) != 0:
            code = _errno_of_libc()
            raise OSError(code, os.strerror(code), str(path))

    def _anchor(self, path: Path) -> int:
        # It stays open: the kernel tells a descriptor of every write-back error since its last syncfs, and a
        # fresh one would miss those that another process was told of first.
        fd = self._anchors.get(path)
        if fd is None:
            fd = self._anchors[path] = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        return fd

    def __del__(self) -> None:
        while self._anchors:
            os.close(self._anchors.popitem()[1])

    def free_bytes(self, path: Path) -> int:
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def run(self, chains: Sequence[Chain]) -> dict[int, Failure]:
        if _native.run_chains is None:
            return steps.run_steps(self, chains)
        found = _native.run_chains(chains, _FILE_MODE, _DIR_MODE, steps.LONG, steps.PIECE)
        return {number: _failure(chains[number], *what) for number, what in found.items()}

    def look_into(self, directories: Sequence[str]) -> list[Listing | None]:
        if _native.look is None:
            return look.look_by_calls(self, directories)
        return _native.look(directories, look.WHOLE, look.HEAD, look.MOST_FILES, look.BUDGET)


def _plainer(error: OSError) -> OSError:
    """A link to itself leads nowhere, as one does whose end is missing: nothing is there."""
    if error.errno != errno.ELOOP:
        return error
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ELOOP), error.filename)


def _stat(path: Path) -> os.stat_result:
    try:
        return os.stat(path)
    except OSError as error:
        raise _plainer(error) from None


def _failure(chain: Chain, number: int, code: int, size: int) -> Failure:
    if not code:
        return Failure(number, None, size)
    step = chain[number]
    target = step.target if isinstance(step, Rename) else None
    return Failure(number, OSError(code, os.strerror(code), step[0], None, target))


@cache
def _libc() -> Any:
    import ctypes  # not at every start: it is needed once something was written

    libc = ctypes.CDLL(None, use_errno=True)
    libc.syncfs.argtypes = [ctypes.c_int]
    libc.syncfs.restype = ctypes.c_int
    libc.sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    libc.sync_file_range.restype = ctypes.c_int
    return libc


def _errno_of_libc() -> int:
    import ctypes

    return ctypes.get_errno()


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Calls on an open file do not know its name: their errors get it here."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def read_all(fs: Fs, path: Path, limit: int) -> bytes:
    """The whole file; FormatError if it is larger than limit."""
    file = fs.open(path)
    try:
        with naming(path):
            size = file.size()
        if size > limit:
            raise FormatError(
                f"{path}: {size} bytes, expected at most {limit}", path=str(path), found=size, expected=limit
            )
        with naming(path):
            return file.pread(size, 0)
    finally:
        file.close()


def is_directory(fs: Fs, path: Path) -> bool:
    """Where a file should be, somebody may have put a directory."""
    try:
        fs.listdir(path)
    except OSError:
        return False
    return fs.exists(path)


def leads_nowhere(fs: Fs, path: Path) -> bool:
    """Is it a link to something that is not there, or to itself?"""
    return not fs.exists(path) and path.name in fs.listdir(path.parent)


def no_file(fs: Fs, path: Path) -> str:
    """What it is that lies in the place of a file and is none; "" if it is a file, or nothing is there."""
    if is_directory(fs, path):
        return "is a directory"
    if leads_nowhere(fs, path):
        return "is a link that leads nowhere"
    try:
        fs.open(path).close()
    except OSError as error:
        # Of the rest whoever opens it for its bytes hears as well.
        if error.errno == errno.ENXIO:
            return "is a pipe, a socket or a device"
    return ""


TMP_SUFFIX = ".tmp"


def tmp_path(path: Path) -> Path:
    return path.with_name(path.name + TMP_SUFFIX)


def write_beside(fs: Fs, path: Path, parts: Sequence[Buffer]) -> Path:
    """The parts as a synced file under the temporary name of path; after an OSError it is removed again."""
    tmp = tmp_path(path)
    try:
        file = fs.open(tmp, write=True, create=True)
        try:
            file.truncate(0)
            file.pwrite(parts, 0)
            file.sync()
        finally:
            file.close()
    except OSError:
        with suppress(OSError):
            fs.unlink(tmp, missing_ok=True)
        raise
    return tmp


def replace_file(fs: Fs, path: Path, parts: Sequence[Buffer]) -> None:
    """Put the parts in the place of path, durably. After a failure: the old or the new bytes, whole."""
    # The bytes before the name: a rename may survive a crash that its unsynced bytes do not.
    fs.rename(write_beside(fs, path, parts), path)
    fs.sync_dir(path.parent)
