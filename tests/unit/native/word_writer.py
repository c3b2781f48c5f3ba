"""Stores growing values in a shared word. Usage: python word_writer.py native|pure <file> <last>."""

from __future__ import annotations

import importlib
import mmap
import sys
from pathlib import Path

NAMES = {"native": "topicd._native._core", "pure": "topicd._native.pure"}
BOTH_HALVES = 0x1_0000_0001  # the same number in both halves: a torn word shows


def main() -> None:
    core = importlib.import_module(NAMES[sys.argv[1]])
    with Path(sys.argv[2]).open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        for value in range(1, int(sys.argv[3]) + 1):
            store = core.store_fence if value % 2 else core.store
            store(memory, 64, value * BOTH_HALVES)


if __name__ == "__main__":
    main()
