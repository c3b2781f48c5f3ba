"""Threads for what blocks, and how busy they are."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from queue import Queue
from threading import Lock, Thread
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


class PatientThreads(Executor):
    """Threads for what may never come back, as a disk that does not answer: nobody waits for them at the end, and not
    more than so many things wait for them. submit raises queue.Full then."""

    def __init__(self, threads: int, name: str, waiting_max: int) -> None:
        self._waiting: Queue[tuple[Future[Any], Callable[[], Any]]] = Queue(waiting_max)
        self._size = threads
        self._name = name
        self._threads: list[Thread] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._waiting.put_nowait((future, partial(fn, *args, **kwargs)))
        if len(self._threads) < self._size:
            thread = Thread(target=self._run, name=f"{self._name}-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return future

    def _run(self) -> None:
        while True:
            future, work = self._waiting.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = work()
            except BaseException as exc:
                future.set_exception(exc)
            else:
                future.set_result(result)
            del future, work
