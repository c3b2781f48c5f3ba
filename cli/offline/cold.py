"""Does the cold directory's disk answer? Promise: whoever asks is told within some seconds, and can be stopped.

A process that waits for a disk cannot even be killed before the disk answers. So another process looks first.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress

from topicd.cli.exits import CliError, Exit
from topicd.disk.cold import recorded
from topicd.disk.fs import Fs
from topicd.errors import FormatError
from topicd.paths import DataDir

PATIENCE_S = 10.0
_LOOK = "import os, sys; os.path.exists(sys.argv[1])"


def require_answer(fs: Fs, data: DataDir) -> None:
    """CliError if it does not. One that is missing answers, too; what that means is for others to say."""
    cold = None
    with suppress(OSError, FormatError):
        cold = recorded(fs, data)
    if cold is None:
        return
    # Not waited for at the end: it goes when the disk answers.
    look = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _LOOK, str(cold.mark)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        look.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        what = f"the cold directory {cold.root} has not answered for {PATIENCE_S:.0f} s"
        hint = "whoever reads it would wait until its disk answers, and could not be stopped"
        raise CliError(what, Exit.FAILED, hint) from None
