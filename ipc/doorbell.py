"""Waking another process. Promise: no wake-up is lost and no system call is made for a side that is awake.

Every process has one eventfd and one word in the bells region: 1 while it sleeps (or is about to). To sleep:
announce(), look at the work once more, wait on the eventfd, awake(). To wake: publish the work, then ring().
The full fence on both sides makes it impossible that both miss each other.
"""

from __future__ import annotations

import os

from topicd._native import core
from topicd.ipc import shm

_STRIDE = 64


def create_words(name: str, processes: int, instance: str) -> shm.Region:
    return shm.create(name, shm.RegionKind.BELLS, processes * _STRIDE, instance)


def create_fd() -> int:
    return os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)


class Doorbell:
    """One process's bell, held by the process itself and by all who may wake it."""

    def __init__(self, region: shm.Region, process: int, fd: int) -> None:
        self.memory = region.memory
        self.at = shm.BODY_AT + process * _STRIDE
        self.fd = fd

    def ring_and_yield(self) -> None:
        """Whoever is woken may have been put on this very core, and whoever is awake may be waiting on it: let it go
        first."""
        self.ring()
        os.sched_yield()

    def ring(self) -> bool:
        """True if somebody slept."""
        if core.fence_load(self.memory, self.at):
            # Cleared here so that the next ring costs nothing; the sleeper announces anew once it was woken.
            core.store(self.memory, self.at, 0)
            os.eventfd_write(self.fd, 1)
            return True
        return False

    def ring_always(self) -> None:
        """For a side that may not have announced its sleep: start-up and shutdown."""
        os.eventfd_write(self.fd, 1)

    def announce(self) -> None:
        core.store_fence(self.memory, self.at, 1)

    def withdraw(self) -> None:
        """Not asleep after all: nobody needs to ring until the next announcement."""
        core.store(self.memory, self.at, 0)

    def awake(self) -> None:
        """Withdraw the announcement and empty the eventfd; rings coalesce, their number means nothing."""
        self.withdraw()
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return
