"""Somebody who is told when a topic has new records, or is gone."""

from __future__ import annotations

from collections.abc import Callable


class Follower:
    @property
    def asked(self) -> bool:
        """Does it answer requests, or work of topicd itself? Then it is told also while nothing is pushed."""
        return False

    def moved(self) -> None:
        raise NotImplementedError

    def gone(self) -> None:
        raise NotImplementedError


class Told(Follower):
    """One that passes it on, to topicd's own work."""

    def __init__(self, moved: Callable[[], None], gone: Callable[[], None]) -> None:
        self._moved = moved
        self._gone = gone

    @property
    def asked(self) -> bool:
        return True

    def moved(self) -> None:
        self._moved()

    def gone(self) -> None:
        self._gone()
