"""A daemon of our own that nobody else can reach: on a restored directory it brings logs and segments together, and is
asked for what a restore or a drill wants to know; on a new one it is measured. Promise: it goes by no settings but
these, and is gone afterwards, also if we are killed.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import topicd
from topicd.cli.exits import CliError, Exit
from topicd.client.blocking.client import Client
from topicd.errors import TopicdError

# The least that does the work of a restore.
SMALL = {
    "wal_shards": "1",
    "delivery_shards": "1",
    "ring_bytes": "4MiB",
    "wal_file_bytes": "8MiB",
    "linger_us": "0",
}
_POLL_S = 0.05
_STOP_S = 600.0
TIMEOUT_S = 600.0


_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def _end_with_parent() -> None:
    """SIGTERM: it leaves no shared memory behind."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _flag(name: str, value: str) -> str:
    return f"--{name}" if value == "true" else f"--{name}={value}"


class PrivateDaemon:
    def __init__(self, data: Path, settings: Mapping[str, str] = SMALL, within: Path | None = None) -> None:
        """within: where its sockets lie; the name of a socket may not be long."""
        self._data = data
        self._settings = settings
        self._run = Path(tempfile.mkdtemp(prefix="topicd-private-", dir=within))
        self._log = self._run / "log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def target(self) -> str:
        return str(self._run)

    @property
    def process(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("it is not running")
        return self._process

    def __enter__(self) -> Client:
        return self.start()

    def start(self) -> Client:
        """Returns when it serves."""
        process = self.launch()
        try:
            return self._connected(process)
        except BaseException:
            self._stop()
            raise

    def launch(self) -> subprocess.Popen[bytes]:
        """Returns at once. Again, if it was killed."""
        flags = [_flag(name.replace("_", "-"), value) for name, value in self._settings.items()]
        where = [f"--data-dir={self._data}", f"--run-dir={self._run}", "--config=/dev/null", "--no-http"]
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("TOPICD_", "NOTIFY_"))}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "topicd", *where, *flags],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_end_with_parent,  # noqa: PLW1509 one system call
            )
        return self._process

    def _connected(self, process: subprocess.Popen[bytes]) -> Client:
        """As long as it lives it may take its time: there may be much to recover."""
        while process.poll() is None:
            try:
                client = topicd.connect(self._run, timeout=TIMEOUT_S)
            except TopicdError:
                time.sleep(_POLL_S)
                continue
            if all(row["state"] == "serving" for row in client.status()["processes"]):
                return client
            client.close()
            time.sleep(_POLL_S)
        last = self._log.read_text(errors="replace").strip().splitlines()[-1:]
        raise CliError(f"no daemon starts on {self._data}: {' '.join(last)}", Exit.FAILED)

    def _stop(self) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        if process.poll() is None:
            process.terminate()
        try:
            return process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()
        finally:
            shutil.rmtree(self._run, ignore_errors=True)

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        code = self._stop()
        if code and kind is None:
            raise CliError(f"the daemon on {self._data} did not stop well (code {code})", Exit.FAILED)
