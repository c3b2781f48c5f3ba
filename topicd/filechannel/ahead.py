"""Room ahead of the end of the segment that is written: reserved on the disk and mapped, so that a small send of `os`
is a store and no call, and a large one finds its pages made. Promise: no byte below the end is touched; where room
cannot be had, sends write to the file as they do without it; before a segment is sealed or closed, its file ends where
its messages end.

A thread does the work, in windows, and nobody waits for it: until a window is there sends write. A process that dies
leaves zeros behind its last message, and a repair cuts them (survey.py). docs/adr/0026.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from contextlib import suppress
from threading import Lock, Thread

from topicd import _native
from topicd._native.channel import core
from topicd._native.channel_interface import CLEARED_AT, FROM_AT, TO_AT
from topicd.filechannel.active import Active
from topicd.filechannel.flusher import release
from topicd.filechannel.layout import HEADER_BYTES
from topicd.limits import MIB

WINDOW_BYTES = 4 * MIB
PARTS = 8  # a segment has at least so many windows
LITTLE = 64  # a channel takes room once a segment holds this part of a window: those that are used little take none
FAR = 1 << 62  # there is nothing to ask
PAGE_BYTES = mmap.ALLOCATIONGRANULARITY
SECTOR_BYTES = 512  # what a filesystem without descriptors is asked for


class Window:
    def __init__(self, begin: int, end: int, memory: mmap.mmap | None) -> None:
        self.begin, self.end = begin, end  # positions in the file
        self.memory = memory


class Ahead:
    """Its owner calls with its own lock held; only turn() runs beside that."""

    def __init__(self, state: bytearray, written: Callable[[], int], cut_bytes: int) -> None:
        self._state = state
        self._written = written  # the offset behind the last message
        self._window_bytes = min(WINDOW_BYTES, cut_bytes // PARTS)
        self._shape = Lock()  # the size of the file
        self._active: Active | None = None
        self._reserved = 0
        self._limit = 0
        self._refused = False
        self._current: Window | None = None
        self._next: Window | None = None
        self._stopped = False
        self._told = Lock()  # released by who wants room, acquired by the thread
        self._told.acquire()
        self._thread: Thread | None = None

    def begin(self, active: Active) -> None:
        """From now on this is the segment that is written."""
        with self._shape:
            self._active, self._reserved, self._refused = active, 0, False

    def end(self) -> None:
        """The file ends where its messages end. Called again it does nothing."""
        with self._shape:
            active, self._active = self._active, None
            self._current = self._next = None
            self._point_at(None)
            if active is not None and self._reserved:
                active.file.truncate(active.position(self._written()))

    def stop(self) -> None:
        with suppress(OSError):  # the next opening cuts it
            self.end()
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stopped = True
            release(self._told)
            thread.join()

    def window(self, limit: int) -> tuple[mmap.mmap | None, int]:
        """What to store to, and from which position on to ask again. limit: no room is wanted behind that position."""
        active = self._active
        if active is None:
            return None, FAR
        self._limit = limit
        position = active.position(self._written())
        if self._current is None or position >= self._current.end:
            # The owner keeps senders out of the window until it is told which.
            self._current, self._next = self._next, None
            self._point_at(self._current)
        current = self._current
        if current is None and position < HEADER_BYTES + self._window_bytes // LITTLE:
            return None, HEADER_BYTES + self._window_bytes // LITTLE
        if self._next is None and not self._refused and limit > max(self._reserved, position):
            self._work(active)
        if current is None:
            return None, FAR if self._refused else position + max(self._window_bytes // LITTLE, 1)
        return current.memory, current.end

    def _work(self, active: Active) -> None:
        if active.raw_fd is None:
            self.turn()
            return
        release(self._told)
        if self._thread is None:
            self._thread = Thread(target=self._run, name="filechannel-ahead", daemon=True)
            self._thread.start()

    def _point_at(self, window: Window | None) -> None:
        _native.core.store(self._state, TO_AT, 0)
        if window is not None and window.memory is not None:
            _native.core.store(self._state, FROM_AT, window.begin)
            _native.core.store(self._state, CLEARED_AT, window.begin)
            _native.core.store(self._state, TO_AT, window.end)

    # ---- the thread ----

    def _run(self) -> None:
        while True:
            self._told.acquire()
            if self._stopped:
                return
            self.turn()

    def turn(self) -> None:
        """One more window, if none waits."""
        with self._shape:
            active = self._active
            if active is None or self._next is not None or self._refused:
                return
            grain = PAGE_BYTES if active.raw_fd is not None else SECTOR_BYTES
            begin = max(self._reserved, active.position(self._written())) // grain * grain
            end = min(begin + self._window_bytes, self._limit) // grain * grain
            if end <= begin:
                return
            try:
                self._refused = not _reserve(active, begin, end)
                self._reserved = end
                memory = None if active.raw_fd is None or self._refused else _map(active.raw_fd, begin, end)
            except OSError:
                # Some of it may be there. Whether a message still finds room its own write finds out.
                self._refused, self._reserved = True, end
            if self._refused:
                return
            self._next = Window(begin, end, memory)


def _reserve(active: Active, begin: int, end: int) -> bool:
    if active.raw_fd is not None:
        return core.reserve(active.raw_fd, begin, end - begin)
    size = active.file.size()
    active.file.pwrite([bytes(max(end - size, 0))], size)
    return True


def _map(fd: int, begin: int, end: int) -> mmap.mmap:
    try:
        return mmap.mmap(fd, end - begin, offset=begin)
    except ValueError as error:  # somebody has cut the file off
        raise OSError(str(error)) from error
