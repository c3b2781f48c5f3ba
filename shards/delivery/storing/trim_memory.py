"""Memory that a flood of batches needed and nobody needs now. Promise: what is given back is given back in a quiet
second, never between two writes: faulting it in again is what a busy shard is spared."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from topicd.limits import MIB

if TYPE_CHECKING:
    from topicd.shards.delivery.actor import Actor

log = logging.getLogger(__name__)

_WORTH = 8 * MIB  # went through memory since the last time


def malloc_trim() -> None:
    """glibc's; other C libraries give memory back by themselves or not at all."""
    import ctypes  # not at every start: it is needed after a flood

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


class Relief:
    def __init__(self, actor: Actor, trim: Callable[[], None] = malloc_trim) -> None:
        self._actor = actor
        self._trim = trim
        self._seen = 0
        self._relieved_at = 0

    def tick(self) -> bool:
        """Once a second; True if memory was given back."""
        moved = self._actor.bytes_taken
        quiet, self._seen = moved == self._seen, moved
        if not quiet or moved - self._relieved_at < _WORTH or self._actor.checkpointer.tail_bytes:
            return False
        self._relieved_at = moved
        self._trim()
        log.debug("memory given back")
        return True
