"""What a round costs beside its time: processor seconds of everybody in it, and bytes on their way to the disk."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence

import psutil

from benchmarks import procs
from topicd.bench.load import Figures

MILLION = 1e6


class Costs:
    """Of one round: the server's processes, this one, and those it starts and waits for meanwhile."""

    def __init__(self, pids: Callable[[], Sequence[int]]) -> None:
        self._pids = pids
        self._cpu_s = self._cpu()
        self._written = self._bytes()

    def added_to(self, figures: Figures, size: int) -> Figures:
        """With `cpu_m`, CPU seconds per million records, and `written`, bytes written per byte of payload; as they are
        if the round does not say how many records it took."""
        records = figures.get("records")
        if not records:
            return figures
        cpu_s, written = self._cpu() - self._cpu_s, self._bytes() - self._written
        return {**figures, "cpu_m": cpu_s / records * MILLION, "written": written / (records * size)}

    def _cpu(self) -> float:
        mine = psutil.Process().cpu_times()
        return procs.cpu_seconds(self._pids()) + sum(mine[:4])  # with those of ended children

    def _bytes(self) -> int:
        """Of the server; of a library that has none, of this process."""
        total = 0
        for pid in self._pids() or [os.getpid()]:
            with contextlib.suppress(psutil.Error):
                total += psutil.Process(pid).io_counters().write_bytes
        return total
