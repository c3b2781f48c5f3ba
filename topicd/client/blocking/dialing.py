"""Work that may block, beside whoever holds a lock. Promise: the holder never waits for a daemon that does not answer,
and a connection that is ready too late for anybody is closed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    def close(self) -> None: ...


T = TypeVar("T", bound=Closable | None)


class Attempt(Generic[T]):
    """Something that is tried once. When `done`, `result` returns what came of it or raises what went wrong."""

    def __init__(self, work: Callable[[], T]) -> None:
        self.done = False
        self._work = work
        self._found: T | None = None
        self._error: BaseException | None = None
        self._given_up = False
        self._lock = threading.Lock()

    def run(self) -> None:
        found: T | None = None
        try:
            found = self._work()
        except BaseException as exc:
            self._error = exc
        with self._lock:
            self._found = found
            self.done = True
            late = self._given_up
        if late and found is not None:
            found.close()

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._found  # type: ignore[return-value]

    def give_up(self) -> None:
        """Nobody wants the result any more."""
        with self._lock:
            self._given_up = True
            found = self._found
        if found is not None:
            found.close()


class Start(Protocol):
    """How an attempt is made."""

    def __call__(self, work: Callable[[], T], /) -> Attempt[T]: ...


def at_once(work: Callable[[], T], /) -> Attempt[T]:
    """In the caller's thread, for callers who have nothing else to do."""
    attempt = Attempt(work)
    attempt.run()
    return attempt


class Beside:
    """In a thread of its own; `tell` is called when the attempt is done."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell

    def __call__(self, work: Callable[[], T], /) -> Attempt[T]:
        attempt = Attempt(work)

        def run() -> None:
            attempt.run()
            self._tell()

        threading.Thread(target=run, name="topicd-dial", daemon=True).start()
        return attempt


class Bell:
    """Wakes a thread that polls `descriptor`. May be rung from any thread and after it was closed."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()

    def ring(self) -> None:
        with self._lock:
            if self.descriptor >= 0:
                os.eventfd_write(self.descriptor, 1)

    def silence(self) -> None:
        try:
            os.eventfd_read(self.descriptor)
        except BlockingIOError:
            return

    def close(self) -> None:
        with self._lock:
            descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
