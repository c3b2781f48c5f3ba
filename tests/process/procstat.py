"""What the kernel says about processes, for tests that measure."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_TICKS_S = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pids: Iterable[int]) -> float:
    """User and system time of all threads."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS_S


def voluntary_switches(pid: int) -> int:
    """How often its threads went to sleep by themselves: once for every wake-up."""
    found = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        for line in (task / "status").read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches"):
                found += int(line.split()[1])
    return found


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def pss_bytes(pid: int, kind: str = "Pss") -> int:
    """Its share of the memory it uses: all of it, or Pss_Anon, Pss_File, Pss_Shmem."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(f"{kind}:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(f"process {pid} has no memory")
