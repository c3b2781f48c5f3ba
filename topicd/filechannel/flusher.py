"""A thread that writes the buffer of a `buffered` channel out, some time after something came into it.

Only plain locks: a Condition or an Event that an interrupt (Ctrl-C) meets in the wrong moment stays locked for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Lock, Thread

from topicd.errors import TopicdError


class Flusher:
    def __init__(self, flush: Callable[[], None], interval: float) -> None:
        self._flush = flush
        self._interval = interval
        self._wanted = False
        self._stopped = False
        # Released by who has something to tell, acquired by the thread that waits for it.
        self._told, self._stopping = Lock(), Lock()
        self._told.acquire()
        self._stopping.acquire()
        self._thread = Thread(target=self._run, name="filechannel-flush", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def want(self) -> None:
        # Read without a lock: the thread takes the wish back before it flushes, never after.
        if not self._wanted:
            self._wanted = True
            release(self._told)

    def stop(self) -> None:
        self._stopped = True
        release(self._stopping)
        release(self._told)
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped:
            self._told.acquire()
            if self._stopped or self._stopping.acquire(timeout=self._interval):
                return
            self._wanted = False
            try:
                self._flush()
            except TopicdError:
                return  # the writer keeps it, and the next send raises it


def release(lock: Lock) -> None:
    """Whoever waits for it goes on; nobody waits: the next one does not."""
    with suppress(RuntimeError):  # it is released already
        lock.release()
