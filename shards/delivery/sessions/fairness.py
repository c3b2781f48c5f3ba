"""Turns of connections. Promise: while others want something, too, a connection is read QUANTUM bytes at a time, and
pays what one large message took beyond that by letting others go first; while somebody asks for little, whoever writes
much has no more than its share of unanswered writes before that, and while somebody does so again and again, it pauses
after each piece, `flood_leave` times as long as that took, one after the other if several write much. Whoever is alone
is not held up by any of this.

Whoever has been heard within RECENT_S wants something. Those who write much do not hold each other up: their writes
share the way to the log as they come. Why they pause: docs/adr/0028.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from topicd.limits import KIB
from topicd.shards.delivery.sessions.peer import Peer

QUANTUM = 64 * KIB
SHARE = 64 * KIB  # of unanswered writes
PIECE = 32 * KIB  # after so much, at the earliest, it pauses
RECENT_S = 0.1
MUCH = 256 * KIB  # written within RECENT_S
PAUSE_MAX_S = 0.005  # for one piece, however long the disk takes
PAUSE_MIN_S = 0.001  # the loop's timers know no less: what is shorter is put together


class Fairness:
    def __init__(self, leave: Callable[[], int], now: Callable[[], float] = time.monotonic) -> None:
        """leave: so many times as long as its share took, whoever writes much pauses."""
        self._leave = leave
        self.now = now
        self._heard: Peer | None = None  # last
        self._modest: Peer | None = None  # the last of those that ask for little
        self._contended_until = 0.0
        self._modest_until = 0.0
        self._patient: Peer | None = None  # of these, the last one that asks again and again
        self._patient_until = 0.0
        self._paused_until = 0.0
        self._owed_s = 0.0  # pauses that were too short to be made
        self.paused_s = 0.0
        self.holding: set[Peer] = set()  # have their share under way, and wait until some of it is answered

    def heard(self, peer: Peer) -> bool:
        """Does a turn of its own begin with this?"""
        if self._heard is peer:
            return False
        if self._heard is not None:
            self._contended_until = self.now() + RECENT_S
        self._heard = peer
        return True

    @property
    def contended(self) -> bool:
        """Has anybody else been heard?"""
        return self.now() < self._contended_until

    def asked_little(self, peer: Peer, now: float, *, again: bool) -> None:
        """again: within RECENT_S. For who asks more seldom, a pause comes too late."""
        self._modest = peer
        self._modest_until = now + RECENT_S
        if again:
            self._patient, self._patient_until = peer, self._modest_until

    def has_others(self, peer: Peer, now: float) -> bool:
        """Is there somebody beside it who asks for little?"""
        return now < self._modest_until and self._modest is not peer

    def leaves(self, peer: Peer, now: float) -> bool:
        """Does it pause after each piece, for somebody beside it?"""
        return now < self._patient_until and self._patient is not peer and self._leave() > 0

    def pause(self, peer: Peer, since: float) -> float:
        """What was begun then is answered: so long it waits before it goes on. Pauses of several follow each other."""
        now = self.now()
        if not self.leaves(peer, now):
            return 0.0
        self._owed_s += min(self._leave() * (now - since), PAUSE_MAX_S)
        if self._owed_s < PAUSE_MIN_S:
            return 0.0
        own, self._owed_s = self._owed_s, 0.0
        self._paused_until = max(self._paused_until, now) + own
        self.paused_s += own
        return self._paused_until - now

    def forget(self, peer: Peer) -> None:
        self.holding.discard(peer)
        if self._heard is peer:
            self._heard = None
        if self._modest is peer:
            self._modest = None
            self._modest_until = 0.0
        if self._patient is peer:
            self._patient = None
            self._patient_until = 0.0

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
        self.much = False  # as far as was asked

    def is_modest(self, size: int, now: float) -> bool:
        """It writes so much more: is it still little, in this stretch of RECENT_S and in the one before?"""
        passed = now - self._since
        if passed > RECENT_S:
            self._before = self._bytes if passed < 2 * RECENT_S else 0
            self._bytes = 0
            self._since = now
        self._bytes += size
        self.much = self._bytes >= MUCH or self._before >= MUCH
        return not self.much
