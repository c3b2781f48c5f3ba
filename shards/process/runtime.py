"""What a shard has beside any other child process: the data directory, its doorbell, those of the other shards,
and the board with the pressure of the daemon.
"""

from __future__ import annotations

import fcntl
import logging
import os
import resource
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from topicd import _native, child, compiled
from topicd.clock import Clock, SystemClock
from topicd.config import Settings
from topicd.disk.fs import Fs, RealFs
from topicd.ipc import shm
from topicd.ipc.control import BootInfo, ControlChannel, process_name
from topicd.ipc.doorbell import Doorbell
from topicd.ipc.pressure import Board
from topicd.ipc.shardboot import DELIVERY, ShardBoot
from topicd.ipc.stats import StatsPage
from topicd.paths import DataDir, RunDir, bells_shm
from topicd.shards.process import cores

log = logging.getLogger(__name__)

# Without a store-load fence a wake-up can be missed, so the pure twin looks again this often.
PURE_POLL_S = 0.002
_DESCRIPTORS = 4_096


class Shard(child.Process):
    def __init__(
        self,
        *,
        info: BootInfo,
        channel: ControlChannel,
        settings: Settings,
        stats: StatsPage,
        clock: Clock,
        fs: Fs,
        data: DataDir,
        run: RunDir,
    ) -> None:
        super().__init__(info=info, channel=channel, settings=settings, stats=stats, clock=clock, run=run)
        self.boot = ShardBoot.of(info)
        self.fs = fs
        self.data = data
        self.bells = shm.attach(bells_shm(info.instance), shm.RegionKind.BELLS, info.instance)
        self.bell = self.bell_of(info.kind, info.index)
        self.board = Board.attach(info.instance)

    def bell_of(self, kind: str, index: int) -> Doorbell:
        name = process_name(kind, index)
        return Doorbell(self.bells, self.boot.bell_word(name), self.boot.bell_fds[name])


def make_room_for_descriptors(known: int) -> None:
    """The kernel doubles a process's table of them when it is full, and once there are threads, whoever opens one more
    waits for all cores meanwhile: 14 ms. While there are none it costs nothing. known: an open one."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError):
        os.close(fcntl.fcntl(known, fcntl.F_DUPFD_CLOEXEC, min(soft, _DESCRIPTORS) - 1))


def boot(make_clock: Callable[[Settings], Clock]) -> Shard:
    process = child.boot(make_clock)
    make_room_for_descriptors(process.channel.fileno())
    info, settings = process.info, process.settings
    if (info.kind, info.index) == (DELIVERY, 0):  # one says it for all
        if _native.why_pure:
            log.warning("pure-Python codec in use: 20 to 50 times slower", extra={"reason": _native.why_pure})
        elif compiled.why_not_used:
            log.warning("modules are not compiled: an append takes longer", extra={"reason": compiled.why_not_used})
    if settings.pin_shards:
        cores.pin(info.kind, info.index, ShardBoot.of(info).delivery_shards)
    return Shard(
        info=info,
        channel=process.channel,
        settings=settings,
        stats=process.stats,
        clock=process.clock,
        fs=RealFs(),
        data=DataDir(Path(settings.data_dir)),
        run=process.run,
    )


def run(
    main: Callable[[Shard], None], make_clock: Callable[[Settings], Clock] = lambda settings: SystemClock()
) -> None:
    """The body of a shard's __main__."""
    child.run(boot(make_clock), main)
