"""Syncs that nobody waits for, beside the turns of a WAL shard. Promise: take() says that a sync succeeded only once it
has returned, and it was begun after begin() was called; one at a time, and what it found is said exactly once.

While such a sync runs, groups are written and those who wait for that are answered: only the file's own end has to
wait for it (WalLog). What is written meanwhile is sent to the disk a piece at a time, so that no sync has much to do.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from topicd._native import core
from topicd._native.interface import Buffer
from topicd.disk.interface import File

log = logging.getLogger(__name__)

# The word that both sides look at.
NONE, UNDER_WAY, ENDED = 0, 1, 2


class Aside(Protocol):
    def show_in(self, memory: Buffer, at: int) -> None:
        """Keep the word there from now on; nothing is under way."""
        ...

    @property
    def state(self) -> int: ...

    def open(self) -> None: ...

    def begin(self, file: File) -> None:
        """Sync the file, and say so later. Nothing may be under way, and the file stays open until take()."""
        ...

    def take(self) -> float:
        """Wait for the end of what is under way, if it has not ended: the seconds it took. Raises its OSError."""
        ...

    def send(self, file: File, start: int, end: int) -> None:
        """A hint: these bytes may go to the disk."""
        ...

    def leave(self, file: File) -> None:
        """The file is about to be closed, and nothing of it is under way."""
        ...

    def close(self) -> None: ...


class _Word:
    """Where a loop in C sees it, too."""

    def __init__(self) -> None:
        self._memory: Buffer = bytearray(8)
        self._at = 0

    def show_in(self, memory: Buffer, at: int) -> None:
        self._memory, self._at = memory, at
        self._set(NONE)

    @property
    def state(self) -> int:
        return core.load(self._memory, self._at)

    def _set(self, state: int) -> None:
        core.store(self._memory, self._at, state)


class InTurn(_Word):
    """Without a thread, for logs whose calls are watched or counted: begin() syncs, take() says so."""

    def __init__(self) -> None:
        super().__init__()
        self._error: OSError | None = None

    def open(self) -> None:
        """There is nothing to start."""

    def begin(self, file: File) -> None:
        try:
            file.sync_data()
        except OSError as exc:
            self._error = exc
        self._set(ENDED)

    def take(self) -> float:
        error, self._error = self._error, None
        self._set(NONE)
        if error is not None:
            raise error
        return 0.0

    def send(self, file: File, start: int, end: int) -> None:
        """There is no beside."""

    def leave(self, file: File) -> None:
        """Nothing goes on with it."""

    def close(self) -> None:
        """There is nothing to end."""


class Beside(_Word):
    """In a thread."""

    def __init__(self, news: Callable[[], None]) -> None:
        """news: called in the thread when a sync has ended, so that whoever sleeps looks."""
        super().__init__()
        self._news = news
        self._changed = threading.Condition()
        self._due: File | None = None
        self._hint: tuple[File, int, int] | None = None
        self._sending: File | None = None
        self._error: OSError | None = None
        self._took_s = 0.0
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="wal-sync", daemon=True)

    def open(self) -> None:
        self._thread.start()

    def begin(self, file: File) -> None:
        with self._changed:
            self._set(UNDER_WAY)
            self._due = file
            self._changed.notify_all()

    def take(self) -> float:
        with self._changed:
            self._changed.wait_for(lambda: self.state != UNDER_WAY)
            error, self._error = self._error, None
            self._set(NONE)
        if error is not None:
            raise error
        return self._took_s

    def send(self, file: File, start: int, end: int) -> None:
        with self._changed:
            if self._hint is not None and self._hint[0] is file:
                start = min(start, self._hint[1])
            self._hint = file, start, end
            self._changed.notify_all()

    def leave(self, file: File) -> None:
        with self._changed:
            if self._hint is not None and self._hint[0] is file:
                self._hint = None
            self._changed.wait_for(lambda: self._sending is not file)

    def close(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self._due is not None or self._hint is not None)
                due, hint = self._due, self._hint
                if due is None and hint is not None:
                    self._hint, self._sending = None, hint[0]
                elif due is None:
                    return
            if due is not None:
                self._sync(due)
            elif hint is not None:
                self._send(*hint)

    def _sync(self, file: File) -> None:
        began = time.monotonic()
        error: OSError | None = None
        try:
            file.sync_data()
        except OSError as exc:
            error = exc
        with self._changed:
            self._error = error
            self._took_s = time.monotonic() - began
            self._due = None
            self._set(ENDED)
            self._changed.notify_all()
        self._news()

    def _send(self, file: File, start: int, end: int) -> None:
        try:
            file.begin_sync(start, end - start)
        except OSError as exc:
            log.debug("bytes not sent ahead", extra={"error": str(exc)})  # the sync will say it
        finally:
            with self._changed:
                self._sending = None
                self._changed.notify_all()
