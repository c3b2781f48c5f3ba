"""A page of memory that all processes of a channel share, in the file `shared`. Promise: an offset in it was written
to the files first; a page of another boot, or a copy of one, is not believed.

Nothing here needs to survive: who opens a channel and finds no page it can believe looks into the files instead.

      0  8s   magic         written last
      8  16s  boot id       of the kernel
     24  u64  device, u64 inode     of the file itself
    128  u64  published     receivers may read up to here
    136  u64  synced        of what was written, up to here it is on the disk
    144  u32  written       signal: published has risen
    192  u64  acked         the last offset that any receiver acknowledged
    200  u32  space         signal: something was acknowledged
    256  u64  chores        not used as a number
    264  u32  chore         signal: a receiver has left a segment
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from topicd import _native
from topicd._native.channel import core
from topicd._native.channel_interface import FOREVER_NS
from topicd.filechannel.layout import SHARED

PAGE_BYTES = 4096
PUBLISHED_AT, SYNCED_AT, WRITTEN_AT = 128, 136, 144
ACKED_AT, SPACE_AT = 192, 200
CHORES_AT, CHORE_AT = 256, 264
_MAGIC = b"TFCPAGE1"
_IDENTITY = struct.Struct("=16sQQ")
_FILE_MODE = 0o660
_NS = 1_000_000_000


def boot_id() -> bytes:
    return bytes.fromhex(Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", ""))


class Page:
    def __init__(self, memory: mmap.mmap) -> None:
        self.memory = memory

    @classmethod
    def private(cls) -> Page:
        return cls(mmap.mmap(-1, PAGE_BYTES))

    # ---- offsets ----

    @property
    def published(self) -> int:
        return _native.core.load(self.memory, PUBLISHED_AT)

    @property
    def synced(self) -> int:
        return _native.core.load(self.memory, SYNCED_AT)

    def publish(self, offset: int) -> None:
        core.publish(self.memory, PUBLISHED_AT, offset, WRITTEN_AT)

    def note_synced(self, offset: int) -> None:
        _native.core.store(self.memory, SYNCED_AT, offset)

    def tell_acked(self, offset: int) -> None:
        """Wakes senders that wait for room."""
        core.publish(self.memory, ACKED_AT, offset, SPACE_AT)

    # ---- waiting ----

    def count(self, signal_at: int) -> int:
        return core.signal_count(self.memory, signal_at)

    def wake(self, signal_at: int) -> None:
        core.raise_signal(self.memory, signal_at)

    def wait_written(self, seen: int, known: int, timeout: float | None) -> int:
        """published, once it is not `known`, the signal was raised since it counted `seen`, or the time is over."""
        return core.await_signal(self.memory, WRITTEN_AT, seen, PUBLISHED_AT, known, _ns(timeout))

    def wait(self, signal_at: int, seen: int, timeout: float | None) -> None:
        """For the signals of space and chores."""
        value_at = ACKED_AT if signal_at == SPACE_AT else CHORES_AT
        known = _native.core.load(self.memory, value_at)
        core.await_signal(self.memory, signal_at, seen, value_at, known, _ns(timeout))


def _ns(timeout: float | None) -> int:
    return FOREVER_NS if timeout is None else min(max(int(timeout * _NS), 0), FOREVER_NS - 1)


class SharedFile:
    """The file behind the page. Its lock is held for moments only: to begin a page, to add and remove receivers."""

    def __init__(self, directory: Path) -> None:
        self._fd = os.open(directory / SHARED, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
        try:
            # Only ever to this size: a mapping beyond the end of its file would kill its process.
            os.ftruncate(self._fd, PAGE_BYTES)
            # And not without a block of the disk: a store for which a full disk has none would kill its process, too.
            os.posix_fallocate(self._fd, 0, PAGE_BYTES)
            self._memory = mmap.mmap(self._fd, PAGE_BYTES)
        except BaseException:
            os.close(self._fd)
            raise
        self.page = Page(self._memory)

    @contextmanager
    def locked(self) -> Iterator[None]:
        # A descriptor of its own: threads of one process exclude each other as well.
        fd = os.open(f"/proc/self/fd/{self._fd}", os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def is_trusted(self) -> bool:
        return _is_of(self._memory, self._fd)

    def begin(self, end: int, synced: int) -> None:
        """A page for this boot. Call with the lock held."""
        self._memory[:8] = bytes(8)
        self.page.note_synced(synced)
        self.page.publish(end)
        self._memory[8 : 8 + _IDENTITY.size] = _identity(self._fd)
        self._memory[:8] = _MAGIC

    def close(self) -> None:
        # The mapping goes with its last user: a thread may still sleep on it.
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def look_at_page(directory: Path) -> int | None:
    """What was published, if the page is of this boot. Changes nothing: the directory may be read-only."""
    try:
        fd = os.open(directory / SHARED, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        if os.fstat(fd).st_size < PAGE_BYTES:
            return None
        with mmap.mmap(fd, PAGE_BYTES, prot=mmap.PROT_READ) as memory:
            return Page(memory).published if _is_of(memory, fd) else None
    finally:
        os.close(fd)


def _is_of(memory: mmap.mmap, fd: int) -> bool:
    return memory[:8] == _MAGIC and memory[8 : 8 + _IDENTITY.size] == _identity(fd)


def _identity(fd: int) -> bytes:
    stat = os.fstat(fd)
    return _IDENTITY.pack(boot_id(), stat.st_dev, stat.st_ino)
