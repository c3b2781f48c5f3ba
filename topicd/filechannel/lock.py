"""One writer for a directory, one process for a receiver's name. Promise: a lock goes with the process that holds it,
however that ends; a refusal names the holder.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from topicd.disk.fs import File
from topicd.filechannel.errors import InUse
from topicd.filechannel.layout import LOCK

_FILE_MODE = 0o660


class WriterLock:
    def __init__(self, directory: Path) -> None:
        self._path = directory / LOCK
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)
        except BlockingIOError:
            pid = writer_pid(directory)
            self.release()
            raise InUse(
                f"{directory} is written by process {pid or '(unknown)'}; there is one writer at a time, "
                "others can read with writer=False",
                pid=pid,
                path=str(directory),
            ) from None
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def writer_pid(directory: Path) -> int | None:
    """What the lock file says; only while it is locked does that mean anything."""
    with suppress(OSError, ValueError):
        return int((directory / LOCK).read_text())
    return None


def running_writer(directory: Path) -> int | None:
    """The pid of the process that holds the writer's lock now."""
    try:
        fd = os.open(directory / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return writer_pid(directory) or 0
    finally:
        os.close(fd)
    return None


def try_own(file: File) -> bool:
    """Lock an open file for as long as it stays open; False if another has it. Files of a test disk have no owner."""
    try:
        fd = file.fileno()
    except OSError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
