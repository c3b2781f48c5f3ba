"""Turns of connections. Promise: while others want something, too, a connection is read QUANTUM bytes at a time, and
pays what one large message took beyond that by letting others go first; while somebody writes little, whoever writes
much has no more than its share of unanswered writes before those. Whoever is alone is not held up by any of this.

Whoever has been heard within RECENT_S wants something. Those who write much do not hold each other up: their writes
share the way to the log as they come.
"""

from __future__ import annotations

import time

from topicd.limits import KIB
from topicd.shards.delivery.sessions.peer import Peer

QUANTUM = 64 * KIB
SHARE = 64 * KIB  # of unanswered writes
RECENT_S = 0.1
MUCH = 256 * KIB  # written within RECENT_S


class Fairness:
    def __init__(self) -> None:
        self._heard: Peer | None = None  # last
        self._modest: Peer | None = None  # the last of those that write little
        self._contended_until = 0.0
        self._modest_until = 0.0
        self.holding: set[Peer] = set()  # have their share under way, and wait until some of it is answered

    def heard(self, peer: Peer) -> bool:
        """Does a turn of its own begin with this?"""
        if self._heard is peer:
            return False
        if self._heard is not None:
            self._contended_until = time.monotonic() + RECENT_S
        self._heard = peer
        return True

    @property
    def contended(self) -> bool:
        """Has anybody else been heard?"""
        return time.monotonic() < self._contended_until

    def wrote_little(self, peer: Peer, now: float) -> None:
        self._modest = peer
        self._modest_until = now + RECENT_S

    def has_others(self, peer: Peer, now: float) -> bool:
        """Is there somebody beside it who writes little?"""
        return now < self._modest_until and self._modest is not peer

    def forget(self, peer: Peer) -> None:
        self.holding.discard(peer)
        if self._heard is peer:
            self._heard = None
        if self._modest is peer:
            self._modest = None
            self._modest_until = 0.0

    def release(self) -> None:
        """Nobody waits for its share any more: whoever writes too much is told so."""
        holding, self.holding = self.holding, set()
        for peer in holding:
            peer.share_freed()


class Pace:
    """How much one connection writes."""

    def __init__(self) -> None:
        self._since = 0.0
        self._bytes = 0
        self._before = 0

    def is_modest(self, size: int, now: float) -> bool:
        """It writes so much more: is it still little, in this stretch of RECENT_S and in the one before?"""
        passed = now - self._since
        if passed > RECENT_S:
            self._before = self._bytes if passed < 2 * RECENT_S else 0
            self._bytes = 0
            self._since = now
        self._bytes += size
        return self._bytes < MUCH and self._before < MUCH
