"""All shared memory and doorbells of one instance. Promise: created completely, every page of it, or nothing is left;
nothing is left behind by unlink_all(). The bells region is made last: where it exists, everything else was made.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import NamedTuple

from topicd import paths, values
from topicd.config import RING_BYTES_MIN, ConfigError
from topicd.ipc import doorbell, pressure, ring, shm, slots, tally
from topicd.ipc.control import process_name
from topicd.ipc.pressure import Board
from topicd.ipc.shardboot import DELIVERY, WAL
from topicd.ipc.stats import PAYLOAD_MAX, StatsPage
from topicd.limits import MIB
from topicd.paths import Instance

WAL_STATE_MAX = 8 * 1024


class Memory:
    """Rings between WAL and delivery shards, a bell for each of these, a page of figures for every process, and the
    board with the pressure of all."""

    def __init__(
        self, instance: str, wal_shards: int, delivery_shards: int, ring_bytes: int, names: Sequence[str] = ()
    ) -> None:
        self.instance = instance
        self._wal_shards = wal_shards
        self._delivery_shards = delivery_shards
        self._ring_bytes = ring_bytes
        self._rung = [process_name(WAL, i) for i in range(wal_shards)]
        self._rung += [process_name(DELIVERY, i) for i in range(delivery_shards)]
        self._names = list(dict.fromkeys([*self._rung, *names]))
        self.pages: dict[str, StatsPage] = {}
        self.bells: dict[str, int] = {}
        self.board: Board | None = None

    def create(self, old: Instance | None = None) -> None:
        """ConfigError if it can never fit, OSError if it does not now. old: a killed run, which is drained next."""
        self._check_size()
        try:
            self._create()
        except OSError as exc:
            self.close()
            unlink_all(self.instance)
            if exc.errno in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
                raise OSError(exc.errno, self._too_little(_room().free) + _kept_for(old)) from None
            raise

    def _create(self) -> None:
        for wal in range(self._wal_shards):
            slots.create(paths.wal_state_shm(self.instance, wal), WAL_STATE_MAX, self.instance).close()
            for dlv in range(self._delivery_shards):
                ring.create(paths.ring_shm(self.instance, wal, dlv), self._ring_bytes, self.instance).close()
        self.pages = {name: StatsPage.create(self.instance, name) for name in self._names}
        self.board = Board(pressure.create(self.instance, self._delivery_shards))
        tally.create(self.instance, self._delivery_shards).close()
        for name in self._rung:
            self.bells[name] = doorbell.create_fd()
        doorbell.create_words(paths.bells_shm(self.instance), len(self._rung), self.instance).close()

    def close(self) -> None:
        for page in self.pages.values():
            page.close()
        for fd in self.bells.values():
            os.close(fd)
        if self.board is not None:
            self.board.close()
        self.pages, self.bells, self.board = {}, {}, None

    def _check_size(self) -> None:
        """Is the whole of it too small? That is no moment's trouble."""
        size = _room().size
        if self._needed > size:
            raise ConfigError(self._too_little(size, "in all"))

    @property
    def _needed(self) -> int:
        pages = len(self._names) * 2 * (PAYLOAD_MAX + WAL_STATE_MAX)
        return self._wal_shards * self._delivery_shards * self._ring_bytes + pages

    def _too_little(self, room: int, of_what: str = "free") -> str:
        rings = f"{self._wal_shards} x {self._delivery_shards} rings of {values.format_size(self._ring_bytes)}"
        return (
            f"{paths.SHM_DIR} has {room // MIB} MiB {of_what}; {rings} and a page for each process need "
            f"{-(-self._needed // MIB)} MiB: enlarge it, see who fills it, or lower ring_bytes, wal_shards or "
            "delivery_shards"
        )


class _Room(NamedTuple):
    size: int
    free: int


def _room() -> _Room:
    found = os.statvfs(paths.SHM_DIR)
    return _Room(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)


def _kept_for(old: Instance | None) -> str:
    """What a killed run left there, and how to start beside it."""
    if old is None:
        return ""
    size = sum(os.stat(f"{paths.SHM_DIR}{name}").st_size for name in shm.names_of(old.instance))
    return (
        f". {size // MIB} MiB more hold what a killed run had not written to the log: a start with ring_bytes = "
        f"{values.format_size(RING_BYTES_MIN)} needs the least room beside them, writes it and gives them back"
    )


def has_rings(old: Instance) -> bool:
    """Is the shared memory of a killed run still there, whole?"""
    found = set(shm.names_of(old.instance))
    needed = {paths.bells_shm(old.instance)}
    for wal in range(old.wal_shards):
        needed.add(paths.wal_state_shm(old.instance, wal))
        needed.update(paths.ring_shm(old.instance, wal, dlv) for dlv in range(old.delivery_shards))
    return needed <= found


def unlink_all(instance: str) -> None:
    for name in shm.names_of(instance):
        shm.unlink(name)
