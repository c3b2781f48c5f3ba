"""Threads for what blocks, and how busy they are."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any


class CountedThreads(ThreadPoolExecutor):
    """Threads, and how busy they are."""

    def __init__(self, threads: int, name: str) -> None:
        super().__init__(threads, thread_name_prefix=name)
        self._size = threads
        self._under_way = 0
        self._lock = Lock()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = super().submit(fn, *args, **kwargs)
        with self._lock:
            self._under_way += 1
        future.add_done_callback(self._done)
        return future

    def _done(self, future: Future[Any]) -> None:
        with self._lock:
            self._under_way -= 1

    def business(self) -> float:
        """1: every thread has something to do."""
        return min(1.0, self._under_way / self._size)
