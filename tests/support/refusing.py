"""A disk with a bad page, or a full one, for processes that are started with `environment`: by a library that is loaded
before that of C. It needs no right to mount; a map of a file is not its business.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")


class Refusals:
    def __init__(self, directory: Path) -> None:
        self._rules = directory / "refusals"
        self._library = directory / "refusing.so"
        compiler = os.environ.get("CC", "cc")
        made = [compiler, "-shared", "-fPIC", "-O1", "-o", str(self._library), str(SOURCE), "-ldl"]
        subprocess.run(made, check=True, timeout=60)
        self._rules.touch()

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library), "TOPICD_REFUSALS": str(self._rules)}

    def bad(self, path: Path, start: int, end: int) -> None:
        """Processes that are started from now on cannot read these bytes."""
        self._add(f"bad {start} {end} {path.resolve()}")

    def full(self, marker: Path, directory: Path) -> None:
        """Processes that are started from now on cannot make files longer below it while the marker is there."""
        self._add(f"full {marker.resolve()} {directory.resolve()}")

    def _add(self, rule: str) -> None:
        with self._rules.open("a") as file:
            file.write(rule + "\n")
