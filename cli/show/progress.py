"""A progress bar with rate and time left, on stderr, for what takes longer than a moment. Promise: short
work and work without a terminal show nothing and load nothing.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

QUIET_S = 0.7


class Bar:
    """`unit` is bytes or a noun; `total` None means that nobody knows."""

    def __init__(self, label: str, total: int | None, unit: str = "records", *, shown: bool | None = None) -> None:
        self._label = label
        self._total = total
        self._unit = unit
        self._shown = sys.stderr.isatty() if shown is None else shown
        self._began = time.monotonic()
        self._done = 0
        self._note = ""
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._began

    def advance(self, amount: int, note: str = "") -> None:
        self._done += amount
        self._note = note or self._note
        if not self._shown:
            return
        if self._progress is None and self.elapsed >= QUIET_S:
            self._open()
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=self._done, note=self._note)

    def _open(self) -> None:
        from rich import progress
        from rich.console import Console

        speed: Any = progress.TransferSpeedColumn() if self._unit == "bytes" else _rate_column(self._unit)
        amount: Any = progress.DownloadColumn(True) if self._unit == "bytes" else progress.MofNCompleteColumn()
        self._progress = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.TaskProgressColumn(),
            amount,
            speed,
            progress.TimeRemainingColumn(),
            progress.TextColumn("{task.fields[note]}"),
            console=Console(stderr=True),
            transient=True,
        )
        self._progress.start()
        self._task = self._progress.add_task(self._label, total=self._total, note=self._note)

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def _rate_column(unit: str) -> Any:
    from rich.progress import ProgressColumn, Task
    from rich.text import Text

    from topicd.cli.show.human import short_count

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text(f"{short_count(speed)} {unit}/s" if speed else "-")

    return Rate()
