"""topicctl as a process of its own: with pipes, from a shell, and on a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shlex
import struct
import subprocess
import sys
import termios
import time

from tests.support.daemon import Daemon

TOPICCTL = [sys.executable, "-m", "topicd.cli.main"]
ANSI = re.compile(rb"\x1b\[[0-9;?]*[a-zA-Z]")


def environment(daemon: Daemon) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "NO_COLOR")}
    return {**kept, "TOPICD_SOCKET": str(daemon.run.root), "TERM": "xterm-256color"}


def run_ctl(daemon: Daemon, *args: str, input: str | None = None, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*TOPICCTL, *args],
        input=input,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(daemon),
    )
    assert done.returncode == code, (args, done.returncode, done.stdout[-2000:], done.stderr)
    assert "Traceback" not in done.stderr
    return done


def shell(daemon: Daemon, line: str) -> str:
    """A line as a user types it; the exit code of a pipe is that of its first failure."""
    line = line.replace("topicctl ", shlex.join(TOPICCTL) + " ")
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line}"],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(daemon),
    )
    assert done.returncode == 0, (line, done.stderr)
    return done.stdout


class Terminal:
    """topicctl on a terminal of 80 by 24."""

    def __init__(self, daemon: Daemon, *args: str) -> None:
        own, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.process = subprocess.Popen(
            [*TOPICCTL, *args],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment(daemon),
            start_new_session=True,
        )
        os.close(theirs)
        self._fd = own
        self.output = b""

    def read_until(self, wanted: bytes, timeout: float = 30.0) -> None:
        deadline = time.monotonic() + timeout
        while wanted not in ANSI.sub(b"", self.output):
            assert time.monotonic() < deadline, self.output
            self.read_some(0.1)

    def read_some(self, seconds: float) -> bool:
        if not select.select([self._fd], [], [], seconds)[0]:
            return True
        try:
            piece = os.read(self._fd, 65536)
        except OSError:
            return False
        self.output += piece
        return bool(piece)

    def type(self, keys: bytes) -> None:
        os.write(self._fd, keys)

    def finish(self, timeout: float = 30.0) -> int:
        deadline = time.monotonic() + timeout
        while self.read_some(0.1) and time.monotonic() < deadline and self.process.poll() is None:
            pass
        code = self.process.wait(5)
        while self.read_some(0.05) and select.select([self._fd], [], [], 0)[0]:
            pass
        os.close(self._fd)
        return code
