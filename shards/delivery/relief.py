"""Memory that a flood of batches needed and nobody needs now. Promise: what is given back is given back in a quiet
second, never between two writes: faulting it in again is what a busy shard is spared."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from topicd.limits import MIB

if TYPE_CHECKING:
    from topicd.shards.delivery.actor import Actor

log = logging.getLogger(__name__)

_WORTH = 8 * MIB  # went through memory since the last time


def _malloc_trim() -> Callable[[int], int] | None:
    """glibc's; other C libraries give memory back by themselves or not at all."""
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None
    return trim


class Relief:
    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._trim = _malloc_trim()
        self._seen = 0
        self._relieved_at = 0

    def tick(self) -> bool:
        """Once a second; True if memory was given back."""
        moved = self._actor.bytes_taken
        quiet, self._seen = moved == self._seen, moved
        if not quiet or moved - self._relieved_at < _WORTH or self._actor.checkpointer.tail_bytes:
            return False
        self._relieved_at = moved
        if self._trim is None:
            return False
        self._trim(0)
        log.debug("memory given back")
        return True
