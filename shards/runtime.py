"""The life of any shard: boot from what the supervisor says, turn until told to stop, drain, leave.

Promise: a shard leaves when the supervisor's channel closes, ignores the terminal's SIGINT (the supervisor
decides), and treats SIGTERM like the supervisor's stop.
"""

from __future__ import annotations

import gc
import logging
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from topicd import _native, compiled, telemetry
from topicd.clock import Clock, SystemClock
from topicd.config import Settings
from topicd.disk.fs import Fs, RealFs
from topicd.errors import TopicdError
from topicd.ipc import control, shm
from topicd.ipc.doorbell import Doorbell
from topicd.ipc.stats import StatsPage
from topicd.paths import DataDir, RunDir, bells_shm

log = logging.getLogger(__name__)

HEARTBEAT_S = 1.0
# Without a store-load fence a wake-up can be missed, so the pure twin looks again this often.
PURE_POLL_S = 0.002


class Shard:
    """What every shard has at hand once it booted."""

    def __init__(
        self,
        *,
        boot: control.BootInfo,
        channel: control.ControlChannel,
        settings: Settings,
        stats: StatsPage,
        clock: Clock,
        fs: Fs,
        data: DataDir,
        run: RunDir,
        bells: shm.Region,
        bell: Doorbell,
    ) -> None:
        self.boot = boot
        self.channel = channel
        self.settings = settings
        self.stats = stats
        self.clock = clock
        self.fs = fs
        self.data = data
        self.run = run
        self.bells = bells
        self.bell = bell

    def bell_of(self, kind: str, index: int) -> Doorbell:
        fd = self.boot.bell_fds[control.process_name(kind, index)]
        return Doorbell(self.bells, control.process_index(kind, index, self.boot.wal_shards), fd)

    def serving(self) -> None:
        self.stats.state = "serving"
        self.channel.send({"event": "serving"})
        start_collector()

    def progress(self, percent: float, what: str) -> None:
        self.channel.send({"event": "progress", "percent": percent, "what": what})


def boot(make_clock: Callable[[Settings], Clock] = lambda settings: SystemClock()) -> Shard:
    channel, info = control.attach_child()
    settings = Settings.from_wire(info.settings)
    telemetry.setup(info.name, settings.log_level, settings.log_format)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if _native.why_pure and (info.kind, info.index) == (control.DELIVERY, 0):
        log.warning("pure-Python codec in use: 20 to 50 times slower", extra={"reason": _native.why_pure})
    elif compiled.why_not_used and (info.kind, info.index) == (control.DELIVERY, 0):
        log.warning("modules are not compiled: an append takes longer", extra={"reason": compiled.why_not_used})
    bells = shm.attach(bells_shm(info.instance), shm.RegionKind.BELLS, info.instance)
    bell = Doorbell(bells, info.bell_index, info.bell_fds[info.name])
    return Shard(
        boot=info,
        channel=channel,
        settings=settings,
        stats=StatsPage.attach(info.instance, info.name),
        clock=make_clock(settings),
        fs=RealFs(),
        data=DataDir(Path(settings.data_dir)),
        run=RunDir(Path(settings.run_dir)),
        bells=bells,
        bell=bell,
    )


def start_collector() -> None:
    """The collector of cycles, stopped while a process starts: what is made then stays, and walking it again and again
    took a tenth of the start. Where nobody stopped it, in tests, nothing is frozen."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def run(
    main: Callable[[Shard], None], make_clock: Callable[[Settings], Clock] = lambda settings: SystemClock()
) -> None:
    """The body of a shard's __main__. What a user can act on is one line, our own faults a traceback in the log."""
    shard = boot(make_clock)
    try:
        main(shard)
    except TopicdError as exc:
        _give_up(shard.channel, str(exc))
    except EOFError:
        log.info("supervisor is gone")
    except Exception:
        log.exception("shard failed")
        sys.exit(1)


def _give_up(channel: control.ControlChannel, message: str) -> None:
    """Fatal and not cured by a restart: the supervisor stops everything and shows the message."""
    try:
        channel.send({"event": "failed", "message": message})
    except EOFError:
        log.error("shard failed", extra={"error": message})
    sys.exit(1)


def messages(channel: control.ControlChannel) -> list[dict[str, Any]]:
    """What the supervisor said; its end of the channel closing is a stop."""
    try:
        return channel.receive()
    except EOFError:
        return [{"event": "stop"}]
