"""The Python that Spark starts for its tasks.

Spark hands its path to a shell without quoting when it looks for Python data sources: behind a path with a space it
finds none, and does not say why.
"""

from __future__ import annotations

import atexit
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path


@cache
def python_for_spark() -> str:
    """This interpreter, by a path without spaces: if need be through a link that lasts as long as this process."""
    executable = Path(sys.executable)
    if " " not in str(executable):
        return str(executable)
    place = Path(tempfile.mkdtemp(prefix="topicd-spark-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    # The whole environment: an interpreter knows by its neighbours which packages are its own.
    (place / "env").symlink_to(executable.parent.parent)
    return str(place / "env" / executable.parent.name / executable.name)
