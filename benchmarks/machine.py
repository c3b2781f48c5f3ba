"""The machine made ready for a run."""

from __future__ import annotations

import mmap
from pathlib import Path

import psutil

from topicd.bench.machine import filesystem, is_volatile

TOUCH_PIECE = 256 * 2**20
TOUCH_AT_MOST = 10 * 2**30


def check_disk(path: Path) -> None:
    """Refuse a directory in memory: every sync there is free and every figure false."""
    if is_volatile(path):
        raise SystemExit(f"{path} is on {filesystem(path)[1]}, where a sync costs nothing; give --dir on a real disk")


def touch_memory() -> float:
    """Touch free memory once; the GiB touched. A virtual machine gets each page from its host at the first touch, which
    costs many times the copy into it: whoever happens to write to untouched pages would pay for all."""
    pieces: list[mmap.mmap] = []
    wanted = min(TOUCH_AT_MOST, psutil.virtual_memory().free * 6 // 10) // TOUCH_PIECE
    for _ in range(wanted):
        piece = mmap.mmap(-1, TOUCH_PIECE)
        pieces.append(piece)
        for at in range(0, TOUCH_PIECE, mmap.PAGESIZE):
            piece[at] = 1
    for piece in pieces:
        piece.close()
    return len(pieces) * TOUCH_PIECE / 2**30
