"""What tests of the file channel share: messages with numbers, and processes beside this one."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
FULL = os.environ.get("TOPICD_SWEEP") == "full"
SMALL = 4096  # the smallest segment
WAIT_S = 20.0  # for what must happen soon, on a busy machine


def numbered(first: int, last: int, size: int = 0) -> list[bytes]:
    return [b"%08d" % number + b"." * size for number in range(first, last)]


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def segment_names(directory: Path) -> list[str]:
    found = [name for name in names(directory) if name.startswith("segment.")]
    return sorted(found, key=lambda name: int(name.split(".")[1]))


def python(code: str, *args: object, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


@contextmanager
def child(code: str, *args: object) -> Iterator[subprocess.Popen[str]]:
    """A process that is gone afterwards."""
    process = python(code, *args)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


class Background(threading.Thread):
    """A thread whose result or exception join() hands over."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._result: Any = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._result = self._work()
        except BaseException as error:
            self._error = error

    def result(self) -> Any:
        self.join(WAIT_S)
        assert not self.is_alive(), "still waiting"
        if self._error is not None:
            raise self._error
        return self._result
