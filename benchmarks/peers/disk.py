"""The disk as a peer: its limits are measured in the same rounds as everybody else's figures."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from benchmarks.drivers import filechannel
from benchmarks.peers.base import Address, Driver, Peer
from topicd.bench import disk
from topicd.bench.load import Figures, Load
from topicd.limits import KIB, MIB

SMALL = (("append 4 KiB", disk.append, 4 * KIB), ("overwrite 4 KiB", disk.overwrite, 4 * KIB))
LARGE = (("append 100 KiB", disk.append, 100 * KIB), ("overwrite 100 KiB", disk.overwrite, 100 * KIB))
STREAM = (("append 1 MiB", disk.append, MIB), ("overwrite 1 MiB", disk.overwrite, MIB))


class Disk(Peer):
    name = "disk"
    is_server = False
    has_sessions = False

    @classmethod
    def missing(cls) -> str | None:
        return None

    def drivers(self, test: str, load: Load) -> Mapping[str, Driver]:
        wanted: tuple[tuple[str, disk.Limit, int], ...] = ()
        if test == "disk":
            wanted = SMALL + LARGE + STREAM
        elif test == "A" and load.durable:
            wanted = SMALL
        elif test == "C" and load.durable:
            wanted = STREAM[1:]
        sends = filechannel.Work.SEND, filechannel.Work.SEND_MANY
        if test == filechannel.TEST and load.steps[0] in sends and not load.durable:
            return {filechannel.WRITE_LOOP: filechannel.write_loop}
        return {name: partial(_limit, limit, block) for name, limit, block in wanted}

    def facts(self) -> dict[str, str]:
        return {"version": "raw file", "settings": "pwrite + fdatasync for each block"}

    def address(self, durable: bool) -> Address:
        raise NotImplementedError("the disk has no server")


def _limit(limit: disk.Limit, block: int, peer: Disk, load: Load) -> Figures:
    figures = limit(peer.root / "blocks", block, load.seconds)
    # A disk stores bytes, not records: its rate would mean nothing beside records/s.
    return {name: value for name, value in figures.items() if name != "rate"}
