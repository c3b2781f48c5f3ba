"""The life of any process that the supervisor starts: boot from what it says, beat, turn until told to stop, leave.

Promise: a child leaves when the supervisor's channel closes, ignores the terminal's SIGINT (the supervisor decides),
and treats SIGTERM like the supervisor's stop. It gives a sign of life every HEARTBEAT_S by publishing its stats.
"""

from __future__ import annotations

import errno
import gc
import logging
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from topicd import telemetry
from topicd.clock import Clock, SystemClock
from topicd.config import Settings
from topicd.errors import TopicdError
from topicd.ipc.control import BootInfo, ControlChannel, attach_child
from topicd.ipc.stats import StatsPage
from topicd.paths import RunDir

log = logging.getLogger(__name__)

HEARTBEAT_S = 1.0
# So long the thread that answers waits for one that computes. At the 5 ms of Python checkpoints held up answers.
_SWITCH_S = 0.0001

# What no restart cures, when a process has not served yet, and what does.
_MISPLACED = {
    errno.EACCES: "give it to the user that topicd runs as (chown)",
    errno.EPERM: "give it to the user that topicd runs as (chown)",
    errno.EROFS: "mount it for writing",
    errno.ENOTDIR: "put the directory back, or move away what is in its place",
    errno.EISDIR: "put the file back, or move the directory away",
    errno.ENXIO: "put the file back, or move away what is in its place",
    errno.ELOOP: "put back what the link stands for",
}


class Process:
    """What every child has at hand once it booted."""

    def __init__(
        self,
        *,
        info: BootInfo,
        channel: ControlChannel,
        settings: Settings,
        stats: StatsPage,
        clock: Clock,
        run: RunDir,
    ) -> None:
        self.info = info
        self.channel = channel
        self.settings = settings
        self.stats = stats
        self.clock = clock
        self.run = run

    def serving(self) -> None:
        self.stats.state = "serving"
        self.channel.send({"event": "serving"})
        start_collector()

    def progress(self, percent: float, what: str) -> None:
        self.channel.send({"event": "progress", "percent": percent, "what": what})


P = TypeVar("P", bound=Process)


def boot(make_clock: Callable[[Settings], Clock] = lambda settings: SystemClock()) -> Process:
    channel, info = attach_child()
    settings = Settings.from_wire(info.settings)
    telemetry.setup(info.name, settings.log_level, settings.log_format)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return Process(
        info=info,
        channel=channel,
        settings=settings,
        stats=StatsPage.attach(info.instance, info.name),
        clock=make_clock(settings),
        run=RunDir(Path(settings.run_dir)),
    )


def malloc_trim() -> None:
    """glibc's; other C libraries give memory back by themselves or not at all."""
    import ctypes  # not at every start: it is needed after a flood

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def start_collector() -> None:
    """The collector of cycles, stopped while a process starts: what is made then stays, and walking it again and again
    took a tenth of the start. Where nobody stopped it, in tests, nothing is frozen."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def run(process: P, main: Callable[[P], None]) -> None:
    """The rest of a __main__. What a user can act on is one line, our own faults a traceback in the log."""
    sys.setswitchinterval(_SWITCH_S)
    try:
        main(process)
    except TopicdError as exc:
        _give_up(process.channel, str(exc))
    except EOFError:
        log.info("supervisor is gone")
    except OSError as exc:
        if exc.errno in _MISPLACED and process.stats.state != "serving":
            _give_up(process.channel, f"{exc.filename}: {exc.strerror}; {_MISPLACED[exc.errno]}")
        # A full disk, for example: the next start may find it mended.
        log.error("process failed", extra={"error": exc})
        log.debug("where it failed", exc_info=True)
        sys.exit(1)
    except Exception:
        log.exception("process failed")
        sys.exit(1)


def _give_up(channel: ControlChannel, message: str) -> None:
    """Fatal and not cured by a restart: the supervisor stops everything and shows the message."""
    try:
        channel.send({"event": "failed", "message": message})
    except EOFError:
        log.error("process failed", extra={"error": message})
    sys.exit(1)


def messages(channel: ControlChannel) -> list[dict[str, Any]]:
    """What the supervisor said; its end of the channel closing is a stop."""
    try:
        return channel.receive()
    except EOFError:
        return [{"event": "stop"}]
