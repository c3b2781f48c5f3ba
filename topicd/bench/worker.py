"""The other side of a measurement, in a process of its own: it shares no interpreter with the side that measures."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

READY = "ready"
WORKER_TIMEOUT = 120.0


def _child(target: Callable[..., Any], link: Connection, args: tuple[Any, ...]) -> None:
    try:
        link.send(("result", target(link, *args)))
    except Exception as error:
        # Raised again in the process that waits for the result.
        link.send(("error", f"{type(error).__name__}: {error}"))


class Worker:
    """A function in a fresh process. Its first argument is the link, where it sends READY once it is."""

    def __init__(self, target: Callable[..., Any], *args: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.link, theirs = context.Pipe()
        self._process = context.Process(target=_child, args=(target, theirs, args), daemon=True)
        self._process.start()
        theirs.close()

    def receive(self, timeout: float = WORKER_TIMEOUT) -> Any:
        """The next message; an error inside the worker is raised here."""
        if not self.link.poll(timeout):
            raise TimeoutError(f"worker {self._process.pid} said nothing for {timeout:.0f} s")
        message = self.link.recv()
        if isinstance(message, tuple) and message[0] == "error":
            raise RuntimeError(f"worker failed: {message[1]}")
        return message

    def wait_ready(self) -> None:
        if self.receive() != READY:
            raise RuntimeError("worker answered something else than ready")

    def go(self) -> None:
        self.link.send("go")

    def result(self) -> Any:
        return self.receive()[1]

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.join(0.0 if kind else 5.0)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self.link.close()
