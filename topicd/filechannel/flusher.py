"""A thread that writes the buffer of a `buffered` channel out, some time after something came into it."""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition, Thread

from topicd.errors import TopicdError


class Flusher:
    def __init__(self, flush: Callable[[], None], interval: float) -> None:
        self._flush = flush
        self._interval = interval
        self._changed = Condition()
        self._wanted = False
        self._stopped = False
        self._thread = Thread(target=self._run, name="filechannel-flush", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def want(self) -> None:
        # Read without the lock: the thread takes the wish back before it flushes, never after.
        if not self._wanted:
            with self._changed:
                self._wanted = True
                self._changed.notify()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted or self._stopped)
                self._changed.wait_for(lambda: self._stopped, self._interval)
                if self._stopped:
                    return
                self._wanted = False
            try:
                self._flush()
            except TopicdError:
                return  # the writer keeps it, and the next send raises it
