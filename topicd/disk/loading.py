"""Whole files in memory. Promise: what the disk gives is there, what it cannot give is named, and nothing kills the
process: not a bad sector, and not somebody who cuts the file off meanwhile.

A read that fails is repeated page by page, so that one bad sector costs one page. The bytes of a page that cannot be
read are zero in memory: no frame, group or checksum is valid over them unless zero is what they were. A disk of which
much is gone is not asked for every single page: each may take seconds to fail.
"""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path
from typing import NamedTuple

from topicd.disk.interface import File, Fs
from topicd.limits import KIB, MIB

PAGE = 4 * KIB
_PIECE = 1 * MIB  # read at once; also what is given up at once where many pages fail
_STEP = 64 * KIB  # of a file that is read where somebody looks
_LARGE = 1 * MIB  # from here on in memory of its own, which goes back when it is not needed any more
_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # a map of no file
WHOLE_MAX = 2048 * MIB  # no file of ours that is read whole is longer; of one that is, no more is held in memory
_NAMED = 3  # bad ranges that a message names
_SINGLE_FAILURES = 64  # pages of a file that are tried one by one
# What a read says when the disk, or the filesystem that checks it, has not got the bytes. Anything else (no memory, no
# descriptor, no right) says nothing about the file.
_UNREADABLE = frozenset(
    {
        errno.EIO,
        errno.ENODATA,
        errno.EILSEQ,
        errno.EBADMSG,
        errno.EUCLEAN,
        errno.EREMOTEIO,
        errno.ETIMEDOUT,
        errno.ENOLINK,
        errno.ENXIO,
    }
)


class BadRange(NamedTuple):
    """Bytes of a file that the disk did not give."""

    start: int
    end: int
    errno: int

    def __str__(self) -> str:
        return f"bytes {self.start} to {self.end - 1} cannot be read ({os.strerror(self.errno)})"


class Content(NamedTuple):
    view: memoryview  # zero where it could not be read
    bad: list[BadRange]  # ascending, neighbours joined; offsets in the file

    def touches(self, start: int, end: int) -> bool:
        """Could some of these bytes of the file not be read?"""
        return any(part.start < end and start < part.end for part in self.bad)

    @property
    def problem(self) -> str:
        """What could not be read, "" if nothing."""
        more = f" and {len(self.bad) - _NAMED} more" if len(self.bad) > _NAMED else ""
        return ", ".join(map(str, self.bad[:_NAMED])) + more


def is_unreadable(error: OSError) -> bool:
    """Does a failed read mean that the bytes are not to be had?"""
    return error.errno in _UNREADABLE


def load(file: File, start: int = 0, end: int | None = None) -> Content:
    """The bytes start..end as they are now, to the end of the file by default; fewer if it is shorter, and of a file
    that is longer than WHOLE_MAX."""
    size = (min(file.size(), start + WHOLE_MAX) if end is None else end) - start
    if size <= 0:
        return Content(memoryview(b""), [])
    memory: bytearray | mmap.mmap = mmap.mmap(-1, size, flags=_PRIVATE) if size >= _LARGE else bytearray(size)
    loading = _Loading(file, memoryview(memory), start)
    got = loading.run()
    return Content(memoryview(memory).toreadonly()[:got], loading.bad)


def load_file(fs: Fs, path: Path | str) -> Content:
    file = fs.open(path)
    try:
        return load(file)
    finally:
        file.close()


class PartLoaded:
    """A file in memory, read where somebody looks at it. The rest costs nothing and is zero."""

    def __init__(self, file: File) -> None:
        self.size = file.size()
        self._file = file
        self._memory: bytes | mmap.mmap = mmap.mmap(-1, self.size, flags=_PRIVATE) if self.size else b""
        self._loaded = bytearray(-(-self.size // _STEP))  # 1: that step is there
        self.content = Content(memoryview(self._memory).toreadonly(), [])

    def want(self, start: int, end: int) -> None:
        """From now on these bytes are in `content`, or named there as bad."""
        step, last = start // _STEP, -(-min(end, self.size) // _STEP)
        if (first := self._loaded.find(0, step, last)) == -1:
            return
        at, stop = first * _STEP, min(last * _STEP, self.size)
        loading = _Loading(self._file, memoryview(self._memory)[at:stop], at)
        loading.run()
        self._loaded[first:last] = b"\1" * (last - first)
        # What was read before and is read again now is named once.
        known = [part for part in self.content.bad if part.end <= at or stop <= part.start]
        self.content.bad[:] = sorted([*known, *loading.bad])

    def find(self, what: bytes, start: int, end: int) -> int:
        """Where these bytes stand, -1 if nowhere. What is looked through does not stay in memory."""
        if self._loaded.find(0, start // _STEP, -(-end // _STEP)) == -1:
            return self._memory.find(what, start, end)
        window = bytearray(min(_PIECE, end - start) + len(what))
        at = start
        while at < end:
            size = min(len(window), end - at)
            try:
                got = self._file.read_into(memoryview(window)[:size], at)
            except OSError as error:
                if not is_unreadable(error):
                    raise
                self.want(start, end)
                return self._memory.find(what, start, end)
            if (found := window.find(what, 0, got)) != -1:
                return at + found
            if got < size or at + got >= end:
                return -1
            at += got - len(what) + 1
        return -1


class _Loading:
    def __init__(self, file: File, target: memoryview, start: int) -> None:
        self._file = file
        self._target = target
        self._start = start
        self._failures = 0
        self.bad: list[BadRange] = []

    def run(self) -> int:
        """How many bytes there were."""
        size, at = len(self._target), 0
        while at < size:
            end = min(at + _PIECE, size)
            got = self._piece(at, end)
            if got < end - at:
                return at + got
            at = end
        return size

    def _piece(self, at: int, end: int) -> int:
        try:
            return self._file.read_into(self._target[at:end], self._start + at)
        except OSError as error:
            if not is_unreadable(error):
                raise
            if self._failures >= _SINGLE_FAILURES:
                self._give_up(at, end, error)
                return end - at
        return self._by_page(at, end)

    def _by_page(self, at: int, end: int) -> int:
        """Pages as the disk has them: they begin at multiples of their size in the file."""
        begun = at
        while at < end:
            stop = min(at + PAGE - (self._start + at) % PAGE, end)
            try:
                got = self._file.read_into(self._target[at:stop], self._start + at)
            except OSError as error:
                if not is_unreadable(error):
                    raise
                self._failures += 1
                if self._failures >= _SINGLE_FAILURES:
                    stop = end
                self._give_up(at, stop, error)
                got = stop - at
            at += got
            if at < stop:
                break
        return at - begun

    def _give_up(self, at: int, end: int, error: OSError) -> None:
        self._target[at:end] = bytes(end - at)
        start, stop = self._start + at, self._start + end
        if self.bad and self.bad[-1].end == start:
            start = self.bad.pop().start
        self.bad.append(BadRange(start, stop, error.errno or errno.EIO))
